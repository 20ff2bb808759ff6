// SPDX-License-Identifier: Apache-2.0
// Attention of one QueryBlock; the tree is stated in kernels/attention.h. With more than
// kRowsTogether rows, a tile of K and V is converted to floats once, unless widening in registers
// is faster (kWidensFast). That changes no bit.
#pragma once

#include "kernels/cpu/attention/attention_tile_impl.h"
#include "kernels/cpu/attention/latent_tile_impl.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/isa/math16.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

constexpr int32_t kPartition = 512;
constexpr float kLowest = -3.40282347e+38F;

// Running state of a block's rows: of the current partition, or of the merged earlier ones.
struct RowStates {
  alignas(64) float m[kAttentionMaxRows];
  alignas(64) float l[kAttentionMaxRows];
  float* o;  // [row][value_dim]
};

SLUICE_INLINE void reset(RowStates& states, int32_t rows, int32_t head_dim) {
  for (int32_t r = 0; r < kAttentionMaxRows; ++r) {
    states.m[r] = kLowest;
    states.l[r] = 0;
  }
  for (int32_t i = 0; i < rows * head_dim; i += 16) store(states.o + i, zero());
}

// The lanes of vector v that hold keys of `range`.
struct SeenLanes {
  Mask16 before;
  Mask16 inside;

  SLUICE_INLINE SeenLanes(KeyRange range, int v)
      : before(less(load(kLaneIds), broadcast(range.begin - 16 * v))),
        inside(less(load(kLaneIds), broadcast(range.end - 16 * v))) {}

  SLUICE_INLINE V16 or_else(V16 other, V16 seen) const {
    return select(before, other, select(inside, seen, other));
  }
};

// Folds each of `count` rows, at most 16, to one lane; the other lanes are 0. Rows from `count` on
// are overwritten. Few rows (decodes) are faster one by one: 2 to 3% of their attention.
template <typename FoldOne, typename Combine>
SLUICE_INLINE V16 fold_each(V16* rows, int32_t count, FoldOne fold_one, Combine combine) {
  if (count <= kRowsTogether) {
    alignas(64) float folded[16] = {};
    for (int32_t r = 0; r < count; ++r) folded[r] = fold_one(rows[r]);
    return load(folded);
  }
  for (int32_t r = count; r < 16; ++r) rows[r] = zero();
  return fold_rows(rows, combine);
}

// What the scores of a row lose by their keys' distances, where heads have slopes.
struct Distances {
  V16 slope;
  int32_t own;  // the row's position in the tile

  SLUICE_INLINE Distances(const QueryBlock& block, int32_t row, int32_t tile_begin)
      : slope(broadcast(block.slopes[(block.row_begin + row) % block.group])),
        own(block.first_position + (block.row_begin + row) / block.group - tile_begin) {}

  SLUICE_INLINE V16 added_to(V16 scores, int v) const {
    const V16 from = to_float(sub(load(kLaneIds), broadcast(own - 16 * v)));
    return fma(slope, max(from, sub(zero(), from)), scores);
  }
};

// Turns the scores of `count` rows, at most 16, into weights exp(s - m') of V, unspecified for keys
// that a row does not see. Updates m and l; `rescale` is the factor for the outputs so far. Rows go
// side by side, since each is a chain of dependent operations. kWhole: all rows see the whole tile.
// `scales` is null for a cache without scales; `first_row`: the first of them in the block.
template <bool kWhole>
[[gnu::noinline]] static void softmax_rows(const QueryBlock& block,
                                           const TileScales* scales,
                                           KeyRange keys,
                                           const KeyRange* ranges,
                                           int32_t tile_begin,
                                           int32_t first_row,
                                           int32_t count,
                                           float* scores,
                                           float* m,
                                           float* l,
                                           float* rescale) {
  const int first = kWhole ? 0 : keys.begin / 16;
  const int last = kWhole ? kTileVectors : (keys.end + 15) / 16;
  V16 rows[16];
  for (int32_t r = 0; r < count; ++r) {
    float* const row = scores + r * kTile;
    V16 top = broadcast(kLowest);
#pragma GCC unroll 4
    for (int v = first; v < last; ++v) {
      V16 s = load(row + 16 * v);
      if (scales != nullptr) s = mul(s, load(scales->k + 16 * v));
      s = mul(s, broadcast(block.scale));
      if (block.soft_cap != 0) {
        const V16 cap = broadcast(block.soft_cap);
        s = mul(cap, tanh(div(s, cap)));
      }
      if (block.slopes != nullptr) s = Distances(block, first_row + r, tile_begin).added_to(s, v);
      if (block.place_bias != nullptr) {
        s = add(s, load(block.place_bias_of(first_row + r, tile_begin + 16 * v)));
      }
      if constexpr (!kWhole) s = SeenLanes(ranges[r], v).or_else(broadcast(kLowest), s);
      top = max(top, s);
      store(row + 16 * v, s);
    }
    rows[r] = top;
  }
  const V16 m_old = load(m);
  const V16 largest = fold_each(
      rows, count, [](V16 a) { return max_lane(a); }, [](V16 a, V16 b) { return max(a, b); });
  const V16 m_new = max(m_old, largest);
  const V16 factor = exp(sub(m_old, m_new));
  store(m, m_new);
  store(rescale, factor);
  for (int32_t r = 0; r < count; ++r) {
    float* const row = scores + r * kTile;
    const V16 m_row = broadcast(m[r]);
    V16 total = zero();
#pragma GCC unroll 4
    for (int v = first; v < last; ++v) {
      V16 p = exp(sub(load(row + 16 * v), m_row));
      // A score may itself be the lowest float; only keys outside the range weigh nothing for sure.
      if constexpr (!kWhole) p = SeenLanes(ranges[r], v).or_else(zero(), p);
      total = add(total, p);
      if (scales != nullptr) p = mul(p, load(scales->v + 16 * v));
      store(row + 16 * v, p);
    }
    rows[r] = total;
  }
  const V16 sums = fold_each(
      rows, count, [](V16 a) { return fold_by_halves(a); }, [](V16 a, V16 b) { return add(a, b); });
  store(l, fma(load(l), factor, sums));
}

// Adds one partition's state to the merged ones, for row r.
SLUICE_INLINE void merge_row(float* m,
                             float* l,
                             float* o,
                             float m_next,
                             float l_next,
                             const float* o_next,
                             int32_t head_dim) {
  alignas(64) float weights[16] = {};
  const float m_new = *m > m_next ? *m : m_next;
  weights[0] = *m - m_new;
  weights[1] = m_next - m_new;
  store(weights, exp(load(weights)));
  const V16 mine = broadcast(weights[0]);
  const V16 next = broadcast(weights[1]);
  *m = m_new;
  *l = __builtin_fmaf(l_next, weights[1], *l * weights[0]);
  for (int32_t d = 0; d < head_dim; d += 16) {
    store(o + d, fma(load(o_next + d), next, mul(load(o + d), mine)));
  }
}

// out = o / l, after the sink, if any, has joined l.
SLUICE_INLINE void finish_row(
    float m, float l, const float* o, const float* sink, int32_t width, float* out) {
  V16 rescale = broadcast(1.0F);
  if (sink != nullptr) {
    alignas(64) float weights[16] = {};
    const float m_new = m > *sink ? m : *sink;
    weights[0] = m - m_new;
    weights[1] = *sink - m_new;
    store(weights, exp(load(weights)));
    rescale = broadcast(weights[0]);
    l = __builtin_fmaf(1.0F, weights[1], l * weights[0]);
  }
  const V16 denominator = broadcast(l);
  int32_t d = 0;
  for (; d + 16 <= width; d += 16) store(out + d, div(mul(load(o + d), rescale), denominator));
  if (d < width) store_partial(out + d, div(mul(load(o + d), rescale), denominator), width - d);
}

// Writes the output of row r of the block, at state m, l and o.
SLUICE_INLINE void write_row(const QueryBlock& block, int32_t r, float m, float l, const float* o) {
  const int32_t token = (block.row_begin + r) / block.group;
  const int32_t head = (block.row_begin + r) % block.group;
  finish_row(m,
             l,
             o,
             block.sinks != nullptr ? block.sinks + head : nullptr,
             block.value_width,
             block.out + token * block.out_stride + head * block.out_head_stride);
}

// The rows of one block during attention.
struct BlockRows {
  const float* q[kAttentionMaxRows];
  KeyRange visible[kAttentionMaxRows];  // absolute positions
  int32_t first_key;                    // any row's
  int32_t last_key;                     // any row's, one past
};

SLUICE_INLINE BlockRows block_rows(const QueryBlock& block) {
  BlockRows rows;
  rows.first_key = INT32_MAX;
  rows.last_key = 0;
  const int32_t num_chosen =
      block.chosen != nullptr
          ? count_chosen(chosen_of(block), block.first_position + block.row_begin / block.group + 1)
          : 0;
  for (int32_t r = 0; r < block.num_rows; ++r) {
    const int32_t token = (block.row_begin + r) / block.group;
    const int32_t head = (block.row_begin + r) % block.group;
    const int32_t position = block.first_position + token;
    rows.q[r] = block.q + token * block.q_stride + head * block.q_head_stride;
    rows.visible[r] = {first_visible_key(position, block.window, block.is_chunked),
                       end_of_visible_keys(position, block.window, block.keys_behind)};
    if (block.chosen != nullptr) rows.visible[r].end = num_chosen;
    if (rows.visible[r].begin < rows.first_key) rows.first_key = rows.visible[r].begin;
    if (rows.visible[r].end > rows.last_key) rows.last_key = rows.visible[r].end;
  }
  return rows;
}

// Points at the cache itself; blocks must have at least 16 slots.
template <typename Load>
SLUICE_INLINE void view_tile(const QueryBlock& block,
                             int32_t tile_begin,
                             int32_t v_begin,
                             int32_t v_end,
                             TileView<typename Load::Element>* tile) {
  using Element = typename Load::Element;
  tile->k_stride = block.block_size;
  for (int32_t v = v_begin; v < v_end; ++v) {
    const int32_t key = tile_begin + 16 * v;
    const int64_t id = block.block_table[key / block.block_size];
    const int32_t slot = key % block.block_size;
    tile->k[v] = reinterpret_cast<const Element*>(block.k + id * block.block_bytes) + slot;
    tile->v[v] = reinterpret_cast<const Element*>(block.v + id * block.v_block_bytes) +
                 int64_t{slot} * block.value_dim;
  }
}

// Converts the vectors of a tile to floats: K [vector][head_dim][16], V [vector][16][value_dim].
template <typename Load>
[[gnu::noinline]] static void convert_tile(const QueryBlock& block,
                                           int32_t tile_begin,
                                           KeyRange keys,
                                           float* k_out,
                                           float* v_out,
                                           TileView<float>* tile) {
  using Element = typename Load::Element;
  const int32_t head_dim = block.head_dim;
  const int32_t value_dim = block.value_dim;
  tile->k_stride = 16;
  for (int32_t v = keys.begin / 16; 16 * v < keys.end; ++v) {
    float* k_tile = k_out + int64_t{v} * 16 * head_dim;
    float* v_tile = v_out + int64_t{v} * 16 * value_dim;
    tile->k[v] = k_tile;
    tile->v[v] = v_tile;
    if (block.block_size >= 16) {
      TileView<Element> cache;
      view_tile<Load>(block, tile_begin, v, v + 1, &cache);
      for (int32_t d = 0; d < head_dim; ++d) {
        store(k_tile + 16 * d, Load::load16(cache.k[v] + d * cache.k_stride));
      }
      for (int32_t i = 0; i < 16 * value_dim; i += 16) {
        store(v_tile + i, Load::load16(cache.v[v] + i));
      }
      continue;
    }
    for (int32_t j = 0; j < 16; ++j) {
      if (16 * v + j < keys.begin || 16 * v + j >= keys.end) {
        for (int32_t d = 0; d < head_dim; ++d) k_tile[16 * d + j] = 0;
        continue;
      }
      const int32_t key = tile_begin + 16 * v + j;
      const int64_t id = block.block_table[key / block.block_size];
      const int32_t slot = key % block.block_size;
      const auto* k = reinterpret_cast<const Element*>(block.k + id * block.block_bytes) + slot;
      const auto* values = reinterpret_cast<const Element*>(block.v + id * block.v_block_bytes) +
                           int64_t{slot} * value_dim;
      for (int32_t d = 0; d < head_dim; d += 16) {
        Element column[16];
        for (int32_t i = 0; i < 16; ++i) column[i] = k[(d + i) * int64_t{block.block_size}];
        alignas(64) float wide[16];
        store(wide, Load::load16(column));
        for (int32_t i = 0; i < 16; ++i) k_tile[16 * (d + i) + j] = wide[i];
      }
      for (int32_t d = 0; d < value_dim; d += 16) {
        store(v_tile + int64_t{j} * value_dim + d, Load::load16(values + d));
      }
    }
  }
}

// Scales of the keys of a tile that some row sees.
template <typename Load>
SLUICE_INLINE void load_scales(const QueryBlock& block,
                               int32_t tile_begin,
                               KeyRange keys,
                               TileScales* scales) {
  // Bytes before the scales.
  const int64_t k_codes = int64_t{block.block_size} * block.head_dim;
  const int64_t v_codes = int64_t{block.block_size} * block.value_dim;
  const auto k_scales = [&](int32_t key) {
    const int64_t id = block.block_table[key / block.block_size];
    return reinterpret_cast<const float*>(block.k + id * block.block_bytes + k_codes) +
           key % block.block_size;
  };
  const auto v_scales = [&](int32_t key) {
    const int64_t id = block.block_table[key / block.block_size];
    return reinterpret_cast<const float*>(block.v + id * block.v_block_bytes + v_codes) +
           key % block.block_size;
  };
  const V16 unit = broadcast(Load::kScaleUnit);
  for (int32_t v = keys.begin / 16; 16 * v < keys.end; ++v) {
    float* k_out = scales->k + 16 * v;
    float* v_out = scales->v + 16 * v;
    if (block.block_size < 16) {
      store(k_out, zero());
      store(v_out, zero());
      for (int32_t j = 0; j < 16; ++j) {
        if (16 * v + j < keys.begin || 16 * v + j >= keys.end) continue;
        k_out[j] = *k_scales(tile_begin + 16 * v + j);
        v_out[j] = *v_scales(tile_begin + 16 * v + j);
      }
      store(k_out, mul(load(k_out), unit));
      store(v_out, mul(load(v_out), unit));
      continue;
    }
    store(k_out, mul(load(k_scales(tile_begin + 16 * v)), unit));
    store(v_out, mul(load(v_scales(tile_begin + 16 * v)), unit));
  }
}

// Adds the values of a tile whose scores are in scratch memory, for every row that sees a key.
template <typename Load>
SLUICE_INLINE void weigh_tile(const QueryBlock& block,
                              const BlockRows& rows,
                              const TileView<typename Load::Element>& tile,
                              const TileScales* scales,
                              int32_t tile_begin,
                              KeyRange keys,
                              RowStates& states) {
  float* scores = block.scratch;
  KeyRange ranges[kAttentionMaxRows];
  alignas(64) float rescale[kAttentionMaxRows];
  for (int32_t base = 0; base < block.num_rows; base += 16) {
    const int32_t count = block.num_rows - base < 16 ? block.num_rows - base : 16;
    bool are_whole = true;
    for (int32_t r = base; r < base + count; ++r) {
      const int32_t begin = rows.visible[r].begin - tile_begin;
      const int32_t end = rows.visible[r].end - tile_begin;
      ranges[r] = {begin < 0 ? 0 : begin, end > kTile ? kTile : end};
      are_whole = are_whole && ranges[r].begin == 0 && ranges[r].end == kTile;
    }
    const auto softmax = are_whole ? softmax_rows<true> : softmax_rows<false>;
    softmax(block,
            scales,
            keys,
            ranges + base,
            tile_begin,
            base,
            count,
            scores + base * kTile,
            states.m + base,
            states.l + base,
            rescale + base);
  }
  for (int32_t r = 0; r < block.num_rows; r += kRowsTogether) {
    const int32_t together =
        block.num_rows - r < kRowsTogether ? block.num_rows - r : kRowsTogether;
    weigh_values<Load>(together,
                       tile,
                       ranges + r,
                       block.value_dim,
                       scores + r * kTile,
                       rescale + r,
                       states.o + int64_t{r} * block.value_dim);
  }
}

// Attends one tile for every row that sees a key of it.
template <typename Load>
SLUICE_INLINE void attend_tile(const QueryBlock& block,
                               const BlockRows& rows,
                               const TileView<typename Load::Element>& tile,
                               const TileScales* scales,
                               int32_t tile_begin,
                               KeyRange keys,
                               RowStates& states) {
  for (int32_t r = 0; r < block.num_rows; r += kRowsTogether) {
    with_rows(block.num_rows - r, [&]<int kRows>() {
      score_rows<Load, kRows>(tile,
                              keys.begin / 16,
                              (keys.end + 15) / 16,
                              block.width,
                              rows.q + r,
                              block.scratch + r * kTile);
    });
  }
  weigh_tile<Load>(block, rows, tile, scales, tile_begin, keys, states);
}

// Attends all tiles of one partition, left to right.
template <typename Load>
SLUICE_INLINE void attend_partition(const QueryBlock& block,
                                    const BlockRows& rows,
                                    int32_t partition,
                                    RowStates& states) {
  float* k_floats = block.scratch + kAttentionMaxRows * (kTile + 2 * int64_t{block.value_dim});
  float* v_floats = k_floats + int64_t{kTile} * block.head_dim;
  const bool convert =
      block.block_size < 16 || (block.num_rows > kRowsTogether && !Load::kWidensFast);
  const int32_t last_of_block = block.partition_end * kPartition;
  const int32_t last_key = rows.last_key < last_of_block ? rows.last_key : last_of_block;
  for (int32_t t = 0; t < kPartition / kTile; ++t) {
    const int32_t tile_begin = partition * kPartition + t * kTile;
    const int32_t begin = rows.first_key - tile_begin;
    const int32_t end = rows.last_key - tile_begin;
    const KeyRange keys = {begin < 0 ? 0 : begin, end > kTile ? kTile : end};
    if (keys.begin >= keys.end) continue;
    TileScales own_scales;
    const TileScales* scales = nullptr;
    if constexpr (Load::kScaled) {
      load_scales<Load>(block, tile_begin, keys, &own_scales);
      scales = &own_scales;
    }
    if (convert) {
      TileView<float> tile;
      convert_tile<Load>(block, tile_begin, keys, k_floats, v_floats, &tile);
      attend_tile<LoadF32>(block, rows, tile, scales, tile_begin, keys, states);
    } else {
      TileView<typename Load::Element> tile;
      TileView<typename Load::Element> next;
      view_tile<Load>(block, tile_begin, keys.begin / 16, (keys.end + 15) / 16, &tile);
      // A tile is prefetched only if all of it can be read.
      if (tile_begin + 2 * kTile <= last_key) {
        view_tile<Load>(block, tile_begin + kTile, 0, kTileVectors, &next);
        tile.next = &next;
      }
      attend_tile<Load>(block, rows, tile, scales, tile_begin, keys, states);
    }
  }
}

// Likewise of latents, which have no window. Where the rows' token has chosen its keys, a tile is
// 64 of those.
template <typename Load>
SLUICE_INLINE void attend_latents(const QueryBlock& block,
                                  const BlockRows& rows,
                                  int32_t partition,
                                  RowStates& states) {
  using Element = typename Load::Element;
  const int32_t first = partition * kPartition;
  const int32_t left = rows.last_key - first;
  const int32_t num_keys = left < kPartition ? left : kPartition;
  int32_t* const chosen = block.chosen != nullptr ? LatentScratch(block).chosen : nullptr;
  if (chosen != nullptr) list_chosen(chosen_of(block), first, first + num_keys, chosen);
  LatentRows places[2];
  const auto find = [&](int32_t at) {
    const int32_t count = num_keys - at < kTile ? num_keys - at : kTile;
    if (count <= 0) return 0;
    find_latents<Load>(block,
                       chosen != nullptr ? chosen + at : nullptr,
                       first + at,
                       count,
                       &places[at / kTile % 2]);
    return count;
  };
  int32_t count = find(0);
  for (int32_t at = 0; count > 0; at += kTile) {
    const LatentRows& here = places[at / kTile % 2];
    const int32_t next = find(at + kTile);
    const KeyRange keys = {0, count};
    score_latents<Load>(
        block, rows.q, here, next > 0 ? &places[(at / kTile + 1) % 2] : nullptr, count);
    if (Load::kWidensFast && block.block_size >= 16 && chosen == nullptr) {
      TileView<Element> tile;
      for (int32_t v = 0; 16 * v < count; ++v) {
        tile.v[v] = reinterpret_cast<const Element*>(here.latent[16 * v]);
      }
      weigh_tile<Load>(block, rows, tile, nullptr, first + at, keys, states);
    } else {
      TileView<float> tile;
      convert_latents<Load>(block, here, count, &tile);
      weigh_tile<LoadF32>(block, rows, tile, nullptr, first + at, keys, states);
    }
    count = next;
  }
}

template <typename Load, bool kIsLatent = false>
SLUICE_INLINE void attend(const QueryBlock& block) {
  const BlockRows rows = block_rows(block);
  const int32_t value_dim = block.value_dim;
  RowStates running;
  RowStates merged;
  running.o = block.scratch + kAttentionMaxRows * kTile;
  merged.o = running.o + int64_t{kAttentionMaxRows} * value_dim;
  bool started[kAttentionMaxRows] = {};

  for (int32_t partition = block.partition_begin; partition < block.partition_end; ++partition) {
    const KeyRange keys = {partition * kPartition, (partition + 1) * kPartition};
    if (rows.first_key >= keys.end || rows.last_key <= keys.begin) continue;
    reset(running, block.num_rows, value_dim);
    if constexpr (kIsLatent) {
      attend_latents<Load>(block, rows, partition, running);
    } else {
      attend_partition<Load>(block, rows, partition, running);
    }
    for (int32_t r = 0; r < block.num_rows; ++r) {
      if (rows.visible[r].begin >= keys.end || rows.visible[r].end <= keys.begin) continue;
      const float* o = running.o + int64_t{r} * value_dim;
      if (block.partials != nullptr) {
        const int64_t slot = int64_t{partition - block.partition_base} * block.rows_per_request +
                             block.row_begin + r;
        float* partial = block.partials + slot * (value_dim + 2);
        std::memcpy(partial, o, static_cast<size_t>(value_dim) * sizeof(float));
        partial[value_dim] = running.m[r];
        partial[value_dim + 1] = running.l[r];
      } else if (started[r]) {
        merge_row(&merged.m[r],
                  &merged.l[r],
                  merged.o + int64_t{r} * value_dim,
                  running.m[r],
                  running.l[r],
                  o,
                  value_dim);
      } else {
        started[r] = true;
        merged.m[r] = running.m[r];
        merged.l[r] = running.l[r];
        std::memcpy(
            merged.o + int64_t{r} * value_dim, o, static_cast<size_t>(value_dim) * sizeof(float));
      }
    }
  }
  if (block.partials != nullptr) return;
  for (int32_t r = 0; r < block.num_rows; ++r) {
    write_row(block, r, merged.m[r], merged.l[r], merged.o + int64_t{r} * value_dim);
  }
}

static void latent_block(const QueryBlock& block) {
  switch (block.dtype) {
    case DType::kF32:
      return attend<LoadF32, true>(block);
    case DType::kF16:
      return attend<LoadF16, true>(block);
    default:
      return attend<LoadBF16, true>(block);
  }
}

static void attention_block(const QueryBlock& block) {
  if (block.rope_dim > 0) return latent_block(block);
  switch (block.dtype) {
    case DType::kF32:
      return attend<LoadF32>(block);
    case DType::kF16:
      return attend<LoadF16>(block);
    case DType::kI8:
      return attend<LoadI8>(block);
    case DType::kF8E4M3:
      return attend<LoadE4M3>(block);
    default:
      return attend<LoadBF16>(block);
  }
}

// Folds the partials of the rows of `block` left to right and writes their outputs. The first
// partition of a row is overwritten with the merged state.
static void attention_merge(const QueryBlock& block) {
  const int32_t value_dim = block.value_dim;
  const BlockRows rows = block_rows(block);
  for (int32_t r = 0; r < block.num_rows; ++r) {
    const int32_t row = block.row_begin + r;
    const int64_t step = int64_t{block.rows_per_request} * (value_dim + 2);
    const int32_t first = rows.visible[r].begin / kPartition - block.partition_base;
    const int32_t last = (rows.visible[r].end - 1) / kPartition - block.partition_base;
    float* merged = block.partials + first * step + int64_t{row} * (value_dim + 2);
    const float* next = merged + step;
    for (int32_t p = first + 1; p <= last; ++p, next += step) {
      merge_row(&merged[value_dim],
                &merged[value_dim + 1],
                merged,
                next[value_dim],
                next[value_dim + 1],
                next,
                value_dim);
    }
    write_row(block, r, merged[value_dim], merged[value_dim + 1], merged);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
