// SPDX-License-Identifier: Apache-2.0
// Scores of one tile of latents; the definition is in kernels/latent_attention.h. The cache holds a
// key's elements side by side: a block of elements of all keys is turned, so that a lane is a key,
// and serves every row before the next one is read, while it is in the nearest cache.
#pragma once

#include "kernels/cpu/attention/attention_tile_impl.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

// A block's places in scratch memory, after its scores and its running and merged outputs.
struct LatentScratch {
  float* turned;    // [kLatentElements][kTile]
  float* values;    // [kTile][latent], where they are not read from the cache
  int32_t* chosen;  // [kPartition] positions, ascending

  SLUICE_INLINE explicit LatentScratch(const QueryBlock& block) {
    turned = block.scratch + kAttentionMaxRows * (kTile + 2 * int64_t{block.head_dim});
    values = turned + kLatentElements * kTile;
    chosen = reinterpret_cast<int32_t*>(values + int64_t{kTile} * block.head_dim);
  }
};

// Where the keys of a tile lie, with the last one repeated in the places after it.
struct LatentRows {
  const std::byte* latent[kTile];
  const std::byte* rope[kTile];
};

template <typename Load>
SLUICE_INLINE void find_latents(const QueryBlock& block,
                                const int32_t* chosen,
                                int32_t tile_begin,
                                int32_t count,
                                LatentRows* rows) {
  using Element = typename Load::Element;
  const int shift = __builtin_ctz(static_cast<unsigned>(block.block_size));
  const int64_t latent_bytes = int64_t{block.head_dim} * static_cast<int64_t>(sizeof(Element));
  const int64_t rope_bytes = int64_t{block.rope_width} * static_cast<int64_t>(sizeof(Element));
  for (int32_t j = 0; j < kTile; ++j) {
    const int32_t inside = j < count ? j : count - 1;
    const int32_t key = chosen != nullptr ? chosen[inside] : tile_begin + inside;
    const int64_t id = block.block_table[key >> shift];
    const int64_t slot = key & (block.block_size - 1);
    rows->latent[j] = block.k + id * block.block_bytes + slot * latent_bytes;
    rows->rope[j] = block.v + id * block.v_block_bytes + slot * rope_bytes;
  }
}

// out[d][j] = element d of key j, for `count` elements, a multiple of 16, of 16 keys.
template <typename Load>
SLUICE_INLINE void turn_keys(
    Load, const std::byte* const* keys, int64_t offset, int32_t count, float* out) {
  using Element = typename Load::Element;
  for (int32_t d = 0; d < count; d += 16) {
    I16 square[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      square[j] = bits_of(Load::load16(reinterpret_cast<const Element*>(keys[j] + offset) + d));
    }
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) store(out + (d + i) * kTile, float_of_bits(square[i]));
  }
}

#if !defined(SLUICE_ISA_SCALAR)
// Pairs of elements are turned as one.
SLUICE_INLINE void turn_keys(
    LoadBF16 one, const std::byte* const* keys, int64_t offset, int32_t count, float* out) {
  int32_t d = 0;
  for (; d + 32 <= count; d += 32) {
    I16 square[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      square[j] = load(reinterpret_cast<const int32_t*>(keys[j] + offset + int64_t{2} * d));
    }
    transpose(square);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      float* const pair = out + (d + 2 * i) * kTile;
      store(pair, float_of_bits(shift_left(square[i], 16)));
      store(pair + kTile, float_of_bits(bit_and(square[i], broadcast(int32_t{-65536}))));
    }
  }
  if (d < count)
    turn_keys<LoadBF16>(one, keys, offset + int64_t{2} * d, count - d, out + d * kTile);
}
#endif

// Elements that are turned together: those from byte `offset` on of each key.
struct LatentElements {
  const std::byte* const* keys = nullptr;  // [kTile]
  int64_t offset = 0;
  int32_t num_cached = 0;  // with the zeros after a rotated part
  int32_t num_chained = 0;
};

// Returns those from element `at` of keys and queries on.
template <typename Load>
SLUICE_INLINE LatentElements elements_at(const QueryBlock& block,
                                         const LatentRows& rows,
                                         int32_t at) {
  const bool is_rope = at >= block.head_dim;
  const int32_t from = is_rope ? at - block.head_dim : at;
  const auto limit = [](int32_t left) { return left < kLatentElements ? left : kLatentElements; };
  return {is_rope ? rows.rope : rows.latent,
          from * static_cast<int64_t>(sizeof(typename Load::Element)),
          limit((is_rope ? block.rope_width : block.head_dim) - from),
          limit((is_rope ? block.rope_dim : block.head_dim) - from)};
}

// Lines of memory to bring near while chains are computed: of a key every few steps.
struct LinesAhead {
  const std::byte* const* keys = nullptr;  // null: none
  int64_t offset = 0;
  int64_t bytes = 0;
  int32_t steps = kLatentElements;
};

// Continues the chains of kRows rows and kVectors vectors of keys over turned elements.
template <int kRows, int kVectors>
SLUICE_INLINE void chain_vectors(const float* turned,
                                 int32_t count,
                                 bool is_first,
                                 const float* const* q,
                                 int32_t at,
                                 const LinesAhead& ahead,
                                 float* scores) {
  V16 acc[kRows][kVectors];
  const float* rows[kRows];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    rows[r] = q[r] + at;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      acc[r][i] = is_first ? zero() : load(scores + r * kTile + 16 * i);
    }
  }
  for (int32_t begin = 0, key = 0; begin < count; begin += ahead.steps, ++key) {
    if (ahead.keys != nullptr) {
      const std::byte* const line = ahead.keys[key] + ahead.offset;
      for (int64_t i = 0; i < ahead.bytes; i += 64) __builtin_prefetch(line + i);
    }
    const int32_t end = begin + ahead.steps < count ? begin + ahead.steps : count;
    for (int32_t d = begin; d < end; ++d) {
      V16 keys[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) keys[i] = load(turned + d * kTile + 16 * i);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const V16 query = broadcast(rows[r][d]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) acc[r][i] = fma(query, keys[i], acc[r][i]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(scores + r * kTile + 16 * i, acc[r][i]);
  }
}

template <int kRows>
[[gnu::noinline]] static void chain_rows(const float* turned,
                                         int32_t vectors,
                                         int32_t count,
                                         const float* const* q,
                                         int32_t at,
                                         const LinesAhead& ahead,
                                         float* scores) {
  constexpr int kVectors = kVectorsTogether[kRows];
  int32_t v = 0;
  for (; v + kVectors <= vectors; v += kVectors) {
    chain_vectors<kRows, kVectors>(
        turned + 16 * v, count, at == 0, q, at, v == 0 ? ahead : LinesAhead{}, scores + 16 * v);
  }
  if constexpr (kVectors > 1) {
    for (; v < vectors; ++v) {
      chain_vectors<kRows, 1>(turned + 16 * v, count, at == 0, q, at, {}, scores + 16 * v);
    }
  }
}

// Leaves the scores of the first `num_keys` keys of a tile in block.scratch[row][key]. `next`: the
// keys of the tile that comes after, or null.
template <typename Load>
SLUICE_INLINE void score_latents(const QueryBlock& block,
                                 const float* const* q,
                                 const LatentRows& rows,
                                 const LatentRows* next,
                                 int32_t num_keys) {
  float* const turned = LatentScratch(block).turned;
  const int32_t vectors = (num_keys + 15) / 16;
  const int32_t groups = (block.num_rows + kRowsTogether - 1) / kRowsTogether;
  int32_t sharers = 1;  // the groups among which the lines ahead are divided
  while (2 * sharers <= groups) sharers *= 2;
  const int32_t width = block.head_dim + block.rope_dim;
  for (int32_t at = 0; at < width;) {
    const LatentElements here = elements_at<Load>(block, rows, at);
    for (int32_t v = 0; v < vectors; ++v) {
      turn_keys(Load{}, here.keys + 16 * v, here.offset, here.num_cached, turned + 16 * v);
    }
    const int32_t after = at + here.num_chained;
    LatentElements ahead;
    if (after < width) {
      ahead = elements_at<Load>(block, rows, after);
    } else if (next != nullptr) {
      ahead = elements_at<Load>(block, *next, 0);
    }
    const bool is_full = ahead.keys != nullptr && here.num_chained == kLatentElements;
    for (int32_t r = 0, group = 0; r < block.num_rows; ++group) {
      const int32_t together = (block.num_rows - r + groups - group - 1) / (groups - group);
      LinesAhead lines;
      if (is_full && group < sharers) {
        lines = {ahead.keys + kTile / sharers * group,
                 ahead.offset,
                 ahead.num_cached * int64_t{sizeof(typename Load::Element)},
                 sharers};
      }
      with_rows(together, [&]<int kRows>() {
        chain_rows<kRows>(
            turned, vectors, here.num_chained, q + r, at, lines, block.scratch + r * kTile);
      });
      r += together;
    }
    at = after;
  }
}

// Converts the values of the first `num_keys` keys.
template <typename Load>
SLUICE_INLINE void convert_latents(const QueryBlock& block,
                                   const LatentRows& rows,
                                   int32_t num_keys,
                                   TileView<float>* tile) {
  using Element = typename Load::Element;
  float* const values = LatentScratch(block).values;
  for (int32_t j = 0; j < num_keys; ++j) {
    const auto* const row = reinterpret_cast<const Element*>(rows.latent[j]);
    for (int32_t d = 0; d < block.head_dim; d += 16) {
      store(values + int64_t{j} * block.head_dim + d, Load::load16(row + d));
    }
  }
  for (int32_t v = 0; v < kTileVectors; ++v) tile->v[v] = values + int64_t{16} * v * block.head_dim;
}

// The words of a block whose token has chosen its keys.
SLUICE_INLINE const uint64_t* chosen_of(const QueryBlock& block) {
  return block.chosen + block.row_begin / block.group * block.chosen_stride;
}

// Writes the positions of the chosen keys [begin, end), counted in ascending order, of `words`.
SLUICE_INLINE void list_chosen(const uint64_t* words, int32_t begin, int32_t end, int32_t* out) {
  int32_t seen = 0;
  for (int32_t w = 0; seen < end; ++w) {
    const int32_t count = __builtin_popcountll(words[w]);
    if (seen + count > begin) {
      int32_t ordinal = seen;
      for (uint64_t left = words[w]; left != 0; left &= left - 1, ++ordinal) {
        if (ordinal >= begin && ordinal < end) {
          *out++ = w * 64 + __builtin_ctzll(left);
        }
      }
    }
    seen += count;
  }
}

SLUICE_INLINE int32_t count_chosen(const uint64_t* words, int32_t num_keys) {
  int32_t count = 0;
  for (int32_t w = 0; w < (num_keys + kTile - 1) / kTile; ++w) {
    count += __builtin_popcountll(words[w]);
  }
  return count;
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
