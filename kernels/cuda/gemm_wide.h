// SPDX-License-Identifier: Apache-2.0
// Blocks of linear layers by wgmma for many rows, on Hopper, for gemm_wide.cu and gemm_gated.cu:
// they stay and take tiles of 128 outputs and 128 tokens (FP8: 64) in turn. Two warpgroups multiply
// 64 outputs each; a third has the thread that copies and three warps that store, so that a tile is
// finished while the next one is multiplied.
//
// Float sums are folded in halves of four segments, in three sets of registers: two are folded
// while a third is multiplied, and the tensor cores wait only at a half's end. The first half's
// value is parked in shared memory, where the second's joins it, and the storing warps take it from
// there. FP8 has one set more, the chunk's sums that are promoted, so its tiles have half of the
// tokens. INT8 sums, which are exact, are one chain.
//
// Shared memory is the limit: of its 128 bytes a clock wgmma reads 96, and copies write 64 more.
// Blocks of a cluster that shared weights or float x were slower.
#pragma once

#include <type_traits>

#include "kernels/cuda/gemm_ring.h"

namespace sluice::kernels::cuda::wide {

namespace ptx = gpu::ptx;

template <typename Format>
inline constexpr int kTokens = Format::kIsPromoted ? 64 : 128;  // tokens of a tile
template <typename Format>
inline constexpr int kWords = kTokens<Format> / 2;
template <typename Format>
inline constexpr int kStages = Format::kIsPromoted ? 7 : 5;
inline constexpr int kStoringWarps = 3;
// The first storing thread; the copying thread's warp precedes it.
inline constexpr int kStorers = kConsumers + 32;
template <typename Format>
inline constexpr int kStorerRows = (kTokens<Format> + kStoringWarps - 1) / kStoringWarps;
inline constexpr int kThreads = kStorers + 32 * kStoringWarps;
inline constexpr int kConsumerRegisters = 224;
inline constexpr int kOtherRegisters = 56;
inline constexpr int kHalf = kSegments / 2;
inline constexpr int kGroupTiles = 16;          // tiles of tokens, before the next outputs
inline constexpr int kRowWords = kOutputs + 4;  // no two lanes of a store meet in a bank

// The order in which a block takes its tiles. kInPairs: there are two layers of as many outputs,
// and a tile of the first one is followed by that of the same outputs and tokens of the second one.
enum class Order : uint8_t { kInTurn, kInPairs };

// Consumer warps write `tile` (`written`), storing warps store it (`stored`). `scales` are the
// storing warps', for the tokens that each has.
//
// Only threads access `tile`, with plain loads and stores, so no proxy fence is needed. Of a
// block's tiles 0, 1, ... tile t is phase t of both mbarriers. A consumer warp arrives at `written`
// once a tile, after the last word of its second half; a storing warp at `stored` once a tile,
// after its last load, also where it has no row. One lane arrives for its warp after __syncwarp,
// which puts the other lanes' accesses before the arrival. Every lane waits for itself: storing
// warps for phase t of `written` before they load tile t, consumers for phase t - 1 of `stored`
// before their first word of tile t; phase -1 is complete from the start. So loads of tile t follow
// all of its words, and words of tile t + 1 follow all loads of tile t. No phase completes twice
// while a warp still waits for it: the next one needs that warp's arrival at the other mbarrier.
// The thread that wrote a first half to the tile reads it back.
template <typename Format>
struct alignas(1024) Memory {
  Ring<kTokens<Format>, kStages<Format>> ring;
  ptx::Mbarrier written;
  ptx::Mbarrier stored;
  float scales[kStoringWarps][kStorerRows<Format>];
  alignas(16) typename Format::Sum tile[kTokens<Format>][kRowWords];
};

// Calls f(layer, tile) for this block's tiles. Tokens vary first, kGroupTiles tiles of them, so
// that weights come from memory once and few of them are in use at a time.
template <typename Format, Order kOrder, typename F>
__device__ __forceinline__ void for_own_tiles(const Together& layers, F f) {
  constexpr int kTileTokens = kTokens<Format>;
  constexpr int32_t kAtOnce = kOrder == Order::kInPairs ? 2 : 1;
  const int32_t num_rows = layers.each[0].num_rows;
  const int32_t down = layers.num_tiles / kAtOnce;
  const auto across = static_cast<int32_t>(ceil_div(num_rows, kTileTokens));
  const int32_t all = down * across;
  for (auto i = static_cast<int32_t>(blockIdx.x); i < all; i += static_cast<int32_t>(gridDim.x)) {
    const int32_t group = i / (kGroupTiles * down);
    const int32_t left = across - group * kGroupTiles;
    const int32_t width = left < kGroupTiles ? left : kGroupTiles;
    const int32_t in_group = i - group * kGroupTiles * down;
    const Place place = place_of(layers, in_group / width);
    const int32_t token = group * kGroupTiles + in_group % width;
#pragma unroll 1
    for (int32_t layer = place.layer; layer < place.layer + kAtOnce; ++layer) {
      f(layer, Tile{0, place.output, token * kTileTokens, num_rows});
    }
  }
}

// Copies the block's chunks, by one thread.
template <typename Format, Order kOrder>
__device__ __forceinline__ void copy_chunks(Memory<Format>& memory, const RingWork& work) {
  auto& ring = memory.ring;
  const Outputs& first = work.layers.each[0];
  Cursor<kStages<Format>> at;
  for_own_tiles<Format, kOrder>(work.layers, [&](int32_t layer, const Tile& tile) {
    Walk walk = walk_all<Format>(first);
    for (; walk.left.begin < walk.left.end; take_chunk<Format>(first, walk), at.advance()) {
      ptx::mbar_wait(&ring.empty[at.stage], at.parity ^ 1);
      ptx::Mbarrier* const full = &ring.full[at.stage];
      ptx::mbar_arrive_expect_tx(full, (kOutputs + kTokens<Format>)*kChunkBytes);
      const int32_t column = walk.left.begin * kQuantGroup;
      ptx::tma_load_2d(ring.weight[at.stage], &work.weight[layer], column, tile.output, full);
      Format::load_x(ring.x[at.stage], &work.x, walk.left.begin, tile.token, full);
    }
  });
}

// A tile's context for consumers; `outputs` are its layer's.
template <typename Format>
struct Work {
  const Outputs& outputs;
  Promotion<Format, kTokens<Format>>& promotion;
};

// A consumer warp's walk through the ring. One group of wgmma stays in flight, with FP8 none: a
// chunk is promoted while the other warpgroup multiplies.
template <typename Format>
class Chunks {
 public:
  using Sum = typename Format::Sum;
  using Sums = Sum[kWords<Format>];

  __device__ __forceinline__ explicit Chunks(Memory<Format>& memory) : ring_(memory.ring) {}

  // d = the value of `groups`, which are not empty. meanwhile(0) to meanwhile(kPieces - 1),
  // constants, are called after the first chunks: while each is multiplied, or after it, all sums
  // before it are complete.
  template <int kPieces, typename F>
  __device__ __forceinline__ void multiply(const Work<Format>& work,
                                           Groups groups,
                                           Sums& d,
                                           F meanwhile) {
    take<0, kPieces>(work, groups, d, meanwhile);
    while (groups.begin < groups.end) take_chunk(work, groups, true, d);
  }

  __device__ __forceinline__ void multiply(const Work<Format>& work, Groups groups, Sums& d) {
    multiply<1>(work, groups, d, [](auto) {});
  }

  // Waits until d is complete.
  __device__ __forceinline__ void drain(Sums& d) {
    if constexpr (Format::kIsPromoted) return;
    ptx::wgmma_wait<0>();
    ptx::fence_registers(d);
    release();
    before_ = -1;
  }

 private:
  template <int kPiece, int kPieces, typename F>
  __device__ __forceinline__ void take(const Work<Format>& work,
                                       Groups& groups,
                                       Sums& d,
                                       F& meanwhile) {
    if constexpr (kPiece < kPieces) {
      if (kPiece == 0 || groups.begin < groups.end) take_chunk(work, groups, kPiece > 0, d);
      meanwhile(std::integral_constant<int, kPiece>{});
      take<kPiece + 1, kPieces>(work, groups, d, meanwhile);
    }
  }

  // d = (accumulate ? d : 0) + the next chunk.
  __device__ __forceinline__ void take_chunk(const Work<Format>& work,
                                             Groups& groups,
                                             bool accumulate,
                                             Sums& d) {
    const int32_t left = groups.end - groups.begin;
    const int32_t own = chunk_groups<Format>(work.outputs, groups.begin);
    if constexpr (Format::kIsPromoted) {
      work.promotion.load(groups.begin);
      ptx::mbar_wait(&ring_.full[at_.stage], at_.parity);
      Sums sums;
      issue_chunk<Format>(ring_, at_.stage, left < own ? left : own, false, sums);
      ptx::wgmma_wait<0>();
      ptx::fence_registers(sums);
      before_ = at_.stage;
      release();
      if (!accumulate) clear(d);
      work.promotion.add(sums, d);
    } else {
      ptx::mbar_wait(&ring_.full[at_.stage], at_.parity);
      // A chain of exact sums may include what follows its groups, which is zeros.
      if (Format::kInOnePiece || left > 1) {
        issue_steps<Format, kSteps>(ring_, at_.stage, accumulate, d);
      } else {
        issue_steps<Format, kSteps / 2>(ring_, at_.stage, accumulate, d);
      }
      ptx::wgmma_wait<1>();
      release();
      before_ = at_.stage;
    }
    groups.begin += own;
    at_.advance();
  }

  __device__ __forceinline__ static void clear(Sums& d) {
#pragma unroll
    for (int i = 0; i < kWords<Format>; ++i) d[i] = 0;
  }

  __device__ __forceinline__ void release() {
    if (before_ >= 0 && is_first_lane()) ptx::mbar_arrive(&ring_.empty[before_]);
  }

  Ring<kTokens<Format>, kStages<Format>>& ring_;
  Cursor<kStages<Format>> at_;
  int before_ = -1;  // stage of the products in flight
};

enum class Next : uint8_t { kNothing, kPark, kStore };

// Passes a thread's value on, in pieces, while the next one is multiplied: a first half is parked
// in the tile, a second half joins it there, and the tile goes to the storing warps.
template <typename Format>
class Passing {
 public:
  using Sum = typename Format::Sum;
  static constexpr int kPieces = 4;

  __device__ __forceinline__ explicit Passing(Memory<Format>& memory) : memory_(memory) {
    const int thread = static_cast<int>(threadIdx.x);
    own_ = &memory.tile[thread % 4 * 2][thread / 32 * 16 + thread % 32 / 4];
  }

  __device__ __forceinline__ void set_next(Next next) { next_ = next; }

  template <int kPiece>
  __device__ __forceinline__ void pass_on(Sum (&value)[kWords<Format>]) {
    if (next_ == Next::kNothing) return;
    if (kPiece == 0 && !parked_) {
      ptx::mbar_wait(&memory_.stored, stored_parity_);
      stored_parity_ ^= 1;
    }
    constexpr int kFirst = kPiece * (kWords<Format> / kPieces);
    constexpr int kEnd = kFirst + kWords<Format> / kPieces;
    if (parked_) {
#pragma unroll
      for (int i = kFirst; i < kEnd; ++i) value[i] = sum_of(word(i), value[i]);
    }
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) word(i) = value[i];
    if (kPiece < kPieces - 1) return;
    parked_ = next_ == Next::kPark;
    next_ = Next::kNothing;
    if (parked_) return;
    __syncwarp();
    if (is_first_lane()) ptx::mbar_arrive(&memory_.written);
  }

 private:
  // Returns the place of value[i]: i = 4 j + 2 h + c has token 8 j + c and output own_ + 8 h.
  __device__ __forceinline__ Sum& word(int i) const {
    return own_[(i / 4 * 8 + i % 2) * kRowWords + i % 4 / 2 * 8];
  }

  Memory<Format>& memory_;
  Sum* own_;
  Next next_ = Next::kNothing;
  bool parked_ = false;
  int stored_parity_ = 1;
};

// a += b.
template <int kCount>
__device__ __forceinline__ void join(float (&a)[kCount], const float (&b)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) a[i] = __fadd_rn(a[i], b[i]);
}

// value = the sum of the half from segment `first` on; meanwhile the previous value is passed on.
// `one` and `two` are the caller's for all halves: as variables of this function they spill.
template <typename Format, typename F>
__device__ __forceinline__ void multiply_half(Chunks<Format>& chunks,
                                              const Work<Format>& work,
                                              int32_t first,
                                              float (&one)[kWords<Format>],
                                              float (&two)[kWords<Format>],
                                              float (&value)[kWords<Format>],
                                              F pass_on) {
  const Outputs& outputs = work.outputs;
  chunks.template multiply<Passing<Format>::kPieces>(work, groups_of(outputs, first), two, pass_on);
  chunks.multiply(work, groups_of(outputs, first + 1), one);
  chunks.template multiply<1>(work, groups_of(outputs, first + 2), value, [&](auto) {
    ptx::fence_registers(one);
    ptx::fence_registers(two);
    join(two, one);
  });
  chunks.multiply(work, groups_of(outputs, first + 3), one);
  chunks.drain(one);
  ptx::fence_registers(value);
#pragma unroll
  for (int i = 0; i < kWords<Format>; ++i) {
    value[i] = __fadd_rn(two[i], __fadd_rn(value[i], one[i]));
  }
}

template <typename Format, Order kOrder>
__device__ __forceinline__ void multiply_tiles(Memory<Format>& memory, const Together& layers) {
  using Sum = typename Format::Sum;
  Chunks<Format> chunks(memory);
  Passing<Format> passing(memory);
  Sum value[kWords<Format>];
  const auto pass_on = [&](auto piece) { passing.template pass_on<piece.value>(value); };
  for_own_tiles<Format, kOrder>(layers, [&](int32_t layer, const Tile& tile) {
    // Segments are equal in all layers; scales for promotions are a layer's own.
    const Outputs& outputs = layers.each[Format::kIsPromoted ? layer : 0];
    Promotion<Format, kTokens<Format>> promotion(outputs, tile);
    const Work<Format> work{outputs, promotion};
    if constexpr (Format::kInOnePiece) {
      Sum sums[kWords<Format>];
      const Groups groups = groups_of(outputs, outputs.segments);
      chunks.template multiply<Passing<Format>::kPieces>(work, groups, sums, pass_on);
      chunks.drain(sums);
#pragma unroll
      for (int i = 0; i < kWords<Format>; ++i) value[i] = sums[i];
      passing.set_next(Next::kStore);
    } else {
      Sum one[kWords<Format>];
      Sum two[kWords<Format>];
      for (int32_t first = 0; first < outputs.segments.count; first += kHalf) {
        multiply_half(chunks, work, first, one, two, value, pass_on);
        const bool is_last = first + kHalf >= outputs.segments.count;
        passing.set_next(is_last ? Next::kStore : Next::kPark);
      }
    }
  });
  pass_on(std::integral_constant<int, 0>{});
  pass_on(std::integral_constant<int, 1>{});
  pass_on(std::integral_constant<int, 2>{});
  pass_on(std::integral_constant<int, 3>{});
}

template <typename Sum>
struct alignas(16) FourSums {
  Sum x[4];
};

// Finishes the sums of a lane's four outputs of a tile, for all tokens.
template <typename Format>
struct Finish {
  const Outputs& outputs;
  int32_t count;  // how many of the four outputs the layer has
  float scale[4];
  float bias[4];
  float* out;  // for token 0
  bool aligned;

  __device__ __forceinline__ Finish(const Outputs& all, int32_t first)
      : outputs(all), out(all.out + first) {
    const int32_t left = all.n - first;
    count = left < 0 ? 0 : left < 4 ? left : 4;
    aligned = count == 4 && reinterpret_cast<uintptr_t>(out) % 16 == 0 && all.out_stride % 4 == 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      bias[c] = all.bias != nullptr && c < count ? all.bias[first + c] : 0.0F;
      scale[c] = is_scaled() && c < count ? all.weight_scale[first + c] : 0.0F;
    }
  }

  __device__ __forceinline__ bool is_scaled() const {
    return Format::kIsScaled && outputs.segments.are_all();
  }

  __device__ __forceinline__ float value(typename Format::Sum sum, float token_scale, int c) const {
    if constexpr (!Format::kIsScaled) {
      return sum;
    } else {
      return is_scaled() ? Format::scaled(sum, token_scale, scale[c]) : Format::unscaled(sum);
    }
  }

  __device__ __forceinline__ float scale_of(int32_t token) const {
    return is_scaled() ? row_scale(outputs, token) : 0.0F;
  }

  // What store() needs of the same outputs, loaded before it for several tokens: nothing.
  struct Kept {};

  __device__ __forceinline__ Kept kept_of(int32_t) const { return {}; }

  __device__ __forceinline__ void store(int32_t token,
                                        float token_scale,
                                        const FourSums<typename Format::Sum>& sums,
                                        Kept) const {
    FourSums<float> y;
    float* const to = out + token * outputs.out_stride;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      y.x[c] = value(sums.x[c], token_scale, c);
      if (outputs.bias != nullptr) y.x[c] = __fadd_rn(y.x[c], bias[c]);
    }
    if (aligned) {
      auto* const four = reinterpret_cast<FourSums<float>*>(to);
      if (outputs.add) {
        const FourSums<float> before = *four;
#pragma unroll
        for (int c = 0; c < 4; ++c) y.x[c] = __fadd_rn(before.x[c], y.x[c]);
      }
      *four = y;
      return;
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (c < count) to[c] = outputs.add ? __fadd_rn(to[c], y.x[c]) : y.x[c];
    }
  }
};

// Stores the block's tiles, by the storing warps. finish_of(layer, output) returns what finishes a
// lane's four outputs of a tile, as Finish does; a warp's lanes do so together. A place of a tile
// is the same thread's in all tiles.
template <typename Format, Order kOrder, typename FinishOf>
__device__ __forceinline__ void store_tiles(Memory<Format>& memory,
                                            const Together& layers,
                                            FinishOf finish_of) {
  using Sums = FourSums<typename Format::Sum>;
  // Rows of a warp, with what is kept for them: more would spill.
  constexpr int kAtOnce = Format::kIsScaled || kOrder == Order::kInPairs ? 2 : 4;
  const auto warp = static_cast<int32_t>(threadIdx.x - kStorers) / 32;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float(&scales)[kStorerRows<Format>] = memory.scales[warp];
  int parity = 0;
  for_own_tiles<Format, kOrder>(layers, [&](int32_t layer, const Tile& tile) {
    const auto finish = finish_of(layer, tile.output + 4 * lane);
    const int32_t left = tile.token_end - tile.token;
    const int32_t rows = left < kTokens<Format> ? left : kTokens<Format>;
    // Scales are loaded before the tile arrives: the loop below would wait for each of them.
    if constexpr (Format::kIsScaled) {
      for (int32_t i = lane; i * kStoringWarps + warp < rows; i += 32) {
        scales[i] = finish.scale_of(tile.token + i * kStoringWarps + warp);
      }
      __syncwarp();
    }
    ptx::mbar_wait(&memory.written, parity);
    parity ^= 1;
    for (int32_t first = 0; first * kStoringWarps + warp < rows; first += kAtOnce) {
      Sums sums[kAtOnce];
      float scale[kAtOnce];
      decltype(finish.kept_of(0)) kept[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t row = (first + i) * kStoringWarps + warp;
        const int32_t from = row < rows ? row : warp;
        sums[i] = *reinterpret_cast<const Sums*>(&memory.tile[from][4 * lane]);
        scale[i] = Format::kIsScaled ? scales[from / kStoringWarps] : 0.0F;
        kept[i] = finish.kept_of(tile.token + from);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t row = (first + i) * kStoringWarps + warp;
        if (row < rows) finish.store(tile.token + row, scale[i], sums[i], kept[i]);
      }
    }
    __syncwarp();
    if (lane == 0) ptx::mbar_arrive(&memory.stored);
  });
}

template <typename Format, Order kOrder, typename FinishOf>
__device__ __forceinline__ void wide_block(const RingWork& work, FinishOf finish_of) {
  using Shared = Memory<Format>;
  GPU_DYN_SHARED(Shared, memory);
  ptx::start_next_launch();
  if (threadIdx.x == 0) {
    init_ring(memory.ring);
    ptx::mbar_init(&memory.written, kConsumerWarps);
    ptx::mbar_init(&memory.stored, kStoringWarps);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  if (threadIdx.x < kConsumers) {
    ptx::take_registers<kConsumerRegisters>();
    ptx::wait_for_launches();
    multiply_tiles<Format, kOrder>(memory, work.layers);
  } else {
    ptx::give_registers<kOtherRegisters>();
    ptx::wait_for_launches();
    if (threadIdx.x == kConsumers) copy_chunks<Format, kOrder>(memory, work);
    if (threadIdx.x >= kStorers) store_tiles<Format, kOrder>(memory, work.layers, finish_of);
  }
}

}  // namespace sluice::kernels::cuda::wide
