// SPDX-License-Identifier: Apache-2.0
// The products of attention with one tile of keys: scores q . k, and outputs weighted over V. Up to
// kRowsTogether query rows share each load of K and V; their number changes no bit.
#pragma once

#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/isa/vec16.h"

namespace sluice::kernels::cpu::SLUICE_ISA {

constexpr int32_t kTile = 64;
constexpr int32_t kTileVectors = kTile / 16;

// The rows that share each load, and the most vectors of 16 per row whose accumulators fit the
// registers, by the number of rows. kWidensBF16Fast: see LoadF32.
#if defined(SLUICE_ISA_SCALAR)
constexpr int32_t kRowsTogether = 4;
constexpr int32_t kVectorsTogether[kRowsTogether + 1] = {0, 1, 1, 1, 1};
constexpr bool kWidensBF16Fast = false;
#elif defined(SLUICE_ISA_AVX512)
constexpr int32_t kRowsTogether = 6;
constexpr int32_t kVectorsTogether[kRowsTogether + 1] = {0, 4, 4, 4, 4, 4, 4};
constexpr bool kWidensBF16Fast = true;
#else
constexpr int32_t kRowsTogether = 4;
constexpr int32_t kVectorsTogether[kRowsTogether + 1] = {0, 4, 2, 2, 1};
constexpr bool kWidensBF16Fast = false;
#endif

// How a cache's elements are read, and the unit of its scales, if any. kWidensFast: widening
// elements again for each kRowsTogether rows is faster than once for all rows, through memory.
struct LoadF32 {
  using Element = float;
  static constexpr bool kScaled = false;
  static constexpr bool kWidensFast = true;

  SLUICE_INLINE static V16 load16(const float* p) { return load(p); }
};

struct LoadF16 {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static constexpr bool kWidensFast = false;

  SLUICE_INLINE static V16 load16(const uint16_t* p) { return load_half(p); }
};

struct LoadBF16 {
  using Element = uint16_t;
  static constexpr bool kScaled = false;
  static constexpr bool kWidensFast = kWidensBF16Fast;

  SLUICE_INLINE static V16 load16(const uint16_t* p) { return load_bf16(p); }
};

struct LoadI8 {
  using Element = int8_t;
  static constexpr bool kScaled = true;
  static constexpr bool kWidensFast = false;
  static constexpr float kScaleUnit = 1.0F;

  SLUICE_INLINE static V16 load16(const int8_t* p) { return to_float(load_narrow(p)); }
};

struct LoadE4M3 {
  using Element = uint8_t;
  static constexpr bool kScaled = true;
  static constexpr bool kWidensFast = false;
  static constexpr float kScaleUnit = 256.0F;  // load_e4m3 gives values / 256

  SLUICE_INLINE static V16 load16(const uint8_t* p) { return load_e4m3(p); }
};

// One tile as the inner loops read it. Element d of keys [16 v, 16 v + 16) starts at
// k[v] + d * k_stride; v[v] is [16][V's head_dim].
template <typename Element>
struct TileView {
  const Element* k[kTileVectors];
  const Element* v[kTileVectors];
  int64_t k_stride;
  // The next tile, prefetched while this one is read, since blocks lie anywhere and are too short
  // for the hardware to follow. Null: nothing.
  const TileView* next = nullptr;
};

// Scales of the keys of one tile.
struct TileScales {
  alignas(64) float k[kTile];
  alignas(64) float v[kTile];
};

// The keys of a tile that a row sees: [begin, end).
struct KeyRange {
  int32_t begin;
  int32_t end;
};

// Runs call.operator()<rows>(), with kRowsTogether where `rows` is larger.
template <int kRows = 1, typename Call>
SLUICE_INLINE void with_rows(int32_t rows, Call call) {
  if constexpr (kRows < kRowsTogether) {
    if (rows > kRows) return with_rows<kRows + 1>(rows, call);
  }
  call.template operator()<kRows>();
}

// scores[r][16 v ...] = q_r . k for `kVectors` vectors from `v`.
template <typename Load, int kRows, int kVectors>
SLUICE_INLINE void score_vectors(const TileView<typename Load::Element>& tile,
                                 int32_t v,
                                 int32_t width,
                                 const float* const* q,
                                 float* scores) {
  V16 acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) acc[r][i] = zero();
  }
  constexpr int32_t kLine = 64 / sizeof(typename Load::Element);
  const typename Load::Element* k[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) k[i] = tile.k[v + i];
  int64_t offset = 0;
  for (int32_t d = 0; d < width; ++d, offset += tile.k_stride) {
    V16 keys[kVectors];
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) keys[i] = Load::load16(k[i] + offset);
    if (tile.next != nullptr && offset % kLine < tile.k_stride) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) __builtin_prefetch(tile.next->k[v + i] + offset);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const V16 query = broadcast(q[r][d]);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) acc[r][i] = fma(query, keys[i], acc[r][i]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(scores + r * kTile + 16 * (v + i), acc[r][i]);
  }
}

// Scores of vectors [begin, end) of the tile for kRows rows.
template <typename Load, int kRows>
[[gnu::noinline]] static void score_rows(const TileView<typename Load::Element>& tile,
                                         int32_t begin,
                                         int32_t end,
                                         int32_t width,
                                         const float* const* q,
                                         float* scores) {
  constexpr int kVectors = kVectorsTogether[kRows];
  int32_t v = begin;
  for (; v + kVectors <= end; v += kVectors) {
    score_vectors<Load, kRows, kVectors>(tile, v, width, q, scores);
  }
  if constexpr (kVectors > 1) {
    for (; v < end; ++v) score_vectors<Load, kRows, 1>(tile, v, width, q, scores);
  }
}

// o_r[16 i ...] = o_r * rescale[r] + sum over the keys [begin, end), in order, for kVectors vectors
// of the output.
template <typename Load, int kRows, int kVectors>
SLUICE_INLINE void weigh_vectors(const TileView<typename Load::Element>& tile,
                                 KeyRange keys,
                                 int32_t head_dim,
                                 int32_t d,
                                 const float* weights,
                                 const float* rescale,
                                 float* o) {
  constexpr int32_t kLine = 64 / sizeof(typename Load::Element);
  V16 acc[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      acc[r][i] = mul(load(o + r * head_dim + d + 16 * i), broadcast(rescale[r]));
    }
  }
  for (int32_t begin = keys.begin; begin < keys.end;) {
    const int32_t v = begin / 16;
    const int32_t end = 16 * (v + 1) < keys.end ? 16 * (v + 1) : keys.end;
    const int64_t first = (begin % 16) * int64_t{head_dim} + d;
    const typename Load::Element* row = tile.v[v] + first;
    const typename Load::Element* ahead = tile.next != nullptr ? tile.next->v[v] + first : nullptr;
    for (int32_t j = begin; j < end; ++j, row += head_dim) {
      V16 values[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) values[i] = Load::load16(row + 16 * i);
      if (ahead != nullptr) {
#pragma GCC unroll 4
        for (int i = 0; i < 16 * kVectors; i += kLine) __builtin_prefetch(ahead + i);
        ahead += head_dim;
      }
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        const V16 weight = broadcast(weights[r * kTile + j]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) acc[r][i] = fma(weight, values[i], acc[r][i]);
      }
    }
    begin = end;
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) store(o + r * head_dim + d + 16 * i, acc[r][i]);
  }
}

template <typename Load, int kRows>
[[gnu::noinline]] static void weigh_rows(const TileView<typename Load::Element>& tile,
                                         KeyRange keys,
                                         int32_t head_dim,
                                         const float* weights,
                                         const float* rescale,
                                         float* o) {
  constexpr int kVectors = kVectorsTogether[kRows];
  int32_t d = 0;
  for (; d + 16 * kVectors <= head_dim; d += 16 * kVectors) {
    weigh_vectors<Load, kRows, kVectors>(tile, keys, head_dim, d, weights, rescale, o);
  }
  if constexpr (kVectors > 1) {
    for (; d < head_dim; d += 16) {
      weigh_vectors<Load, kRows, 1>(tile, keys, head_dim, d, weights, rescale, o);
    }
  }
}

// Adds the keys that one row alone sees.
template <typename Load>
SLUICE_INLINE void weigh_row(const TileView<typename Load::Element>& tile,
                             KeyRange keys,
                             int32_t head_dim,
                             const float* weights,
                             float* rescale,
                             float* o) {
  if (keys.begin >= keys.end) return;
  weigh_rows<Load, 1>(tile, keys, head_dim, weights, rescale, o);
  *rescale = 1;
}

// Rows with different ranges share the keys that all of them see and take the rest one by one, each
// in the order of its keys. A row's first call multiplies its output by rescale[r] and sets that to
// 1; a row without keys keeps its output.
template <typename Load>
SLUICE_INLINE void weigh_values(int rows,
                                const TileView<typename Load::Element>& tile,
                                const KeyRange* ranges,
                                int32_t head_dim,
                                const float* weights,
                                float* rescale,
                                float* o) {
  KeyRange common = ranges[0];
  for (int r = 1; r < rows; ++r) {
    if (ranges[r].begin > common.begin) common.begin = ranges[r].begin;
    if (ranges[r].end < common.end) common.end = ranges[r].end;
  }
  if (common.begin >= common.end) {
    for (int r = 0; r < rows; ++r) {
      weigh_row<Load>(
          tile, ranges[r], head_dim, weights + r * kTile, rescale + r, o + r * head_dim);
    }
    return;
  }
  for (int r = 0; r < rows; ++r) {
    const KeyRange before = {ranges[r].begin, common.begin};
    weigh_row<Load>(tile, before, head_dim, weights + r * kTile, rescale + r, o + r * head_dim);
  }
  with_rows(rows, [&]<int kRows>() {
    weigh_rows<Load, kRows>(tile, common, head_dim, weights, rescale, o);
  });
  for (int r = 0; r < rows; ++r) {
    rescale[r] = 1;
    const KeyRange after = {common.end, ranges[r].end};
    weigh_row<Load>(tile, after, head_dim, weights + r * kTile, rescale + r, o + r * head_dim);
  }
}

}  // namespace sluice::kernels::cpu::SLUICE_ISA
