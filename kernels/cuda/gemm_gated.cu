// SPDX-License-Identifier: Apache-2.0
// Gate and up of a feed-forward network and their gate function in one launch, for many rows of 16
// bits on Hopper: the layers by gemm_wide.h, whose storing warps write function(gate, up) as the
// next layer's input. A block takes a tile of gate and then the same tile of up, whose places are
// the same threads': a thread reads back the gate that it has written itself, from the L2 cache,
// and up is never written. The tensor cores multiply the next tile meanwhile.
//
// The bits are gate_mul's: the same function of the same values. A row that has one scale takes all
// of its values, which no tile has; tiles of FP8 take a quarter of the time, in which storing warps
// would not be done.
#include <algorithm>

#include "kernels/cuda/gates.h"
#include "kernels/cuda/gemm_wide.h"
#include "kernels/cuda/overlap.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

using wide::FourSums;

// Finishes four outputs of a tile of gate, or of up and with it of the pair.
template <ActivationFormat kRows, GateFunction kFunction>
struct FinishPair {
  const Outputs& of_gate;
  const GateMulArgs& gate;
  int32_t layer;
  int32_t output;

  __device__ __forceinline__ FourSums<float>* place_of(int32_t token) const {
    return reinterpret_cast<FourSums<float>*>(of_gate.out + token * of_gate.out_stride + output);
  }

  __device__ __forceinline__ bool is_inside() const { return output < of_gate.n; }

  // Returns what this thread has kept of the gate.
  __device__ __forceinline__ FourSums<float> kept_of(int32_t token) const {
    return layer == 1 && is_inside() ? *place_of(token) : FourSums<float>{};
  }

  __device__ __forceinline__ void store(int32_t token,
                                        float,
                                        const FourSums<float>& sums,
                                        const FourSums<float>& kept) const {
    if (layer == 0) {
      if (is_inside()) *place_of(token) = sums;
      return;
    }
    Four both = {};
    if (is_inside()) {
#pragma unroll
      for (int c = 0; c < 4; ++c) both.v[c] = gated<kFunction>(kept.x[c], sums.x[c], gate);
    }
    Activations out = gate.out;
    out.format = kRows;  // a constant for what follows
    write_four(kRows, row_of(out, token), output / 4, both, output / 4 < vectors_of(out));
  }
};

template <typename Format, ActivationFormat kRows, GateFunction kFunction>
__global__ void __launch_bounds__(wide::kThreads, 1)
    wide_wgmma_gated_kernel(const __grid_constant__ RingWork work,
                            const __grid_constant__ GateMulArgs gate) {
  static_assert(!Format::kIsScaled);
  if constexpr (ptx::kHasWgmma) {
    wide::wide_block<Format, wide::Order::kInPairs>(work, [&](int32_t layer, int32_t output) {
      return FinishPair<kRows, kFunction>{work.layers.each[0], gate, layer, output};
    });
  }
}

// Whether a block's tiles in pairs take about as many rounds as tiles by themselves.
bool fills_blocks(int64_t pairs, int64_t blocks) {
  constexpr int64_t kMostPercent = 103;  // gate_mul takes 11 of what gate and up take
  return 2 * ceil_div(pairs, blocks) * 100 <= kMostPercent * ceil_div(2 * pairs, blocks);
}

// Whether the two layers are what FinishPair takes.
bool are_pairs(const Outputs& of_gate, const Outputs& of_up, const GateMulArgs& gate) {
  const bool is_in_fours = of_gate.n % 4 == 0 && of_gate.out_stride % 4 == 0 &&
                           reinterpret_cast<uintptr_t>(of_gate.out) % 16 == 0;
  return is_in_fours && of_gate.n == of_up.n && of_gate.n == gate.out.k &&
         of_gate.bias == nullptr && of_up.bias == nullptr;
}

template <typename Format, ActivationFormat kRows, GateFunction kFunction>
bool start(Stream stream, std::span<const Layer> layers, const GateMulArgs& gate) {
  constexpr int kTileTokens = wide::kTokens<Format>;
  const int32_t num_rows = layers[0].outputs.num_rows;
  gpu::LaunchShape shape{.threads = wide::kThreads,
                         .shared_bytes = sizeof(wide::Memory<Format>),
                         .overlaps = overlaps(LaunchKind::kLinear, num_rows)};
  const auto kernel = wide_wgmma_gated_kernel<Format, kRows, kFunction>;
  const int64_t pairs = num_tiles(layers) / 2 * ceil_div(num_rows, kTileTokens);
  const int64_t blocks = gpu::blocks_at_once(shape, kernel);
  if (!fills_blocks(pairs, blocks)) return false;
  shape.blocks_x = std::min(pairs, blocks);
  gpu::launch(stream, shape, kernel, ring_work(layers, kTileTokens), gate);
  return true;
}

template <typename Format, ActivationFormat kRows>
bool start(Stream stream, std::span<const Layer> layers, const GateMulArgs& gate) {
  switch (gate.function) {
    case GateFunction::kSilu:
      return start<Format, kRows, GateFunction::kSilu>(stream, layers, gate);
    case GateFunction::kGeluTanh:
      return start<Format, kRows, GateFunction::kGeluTanh>(stream, layers, gate);
    default:
      return false;
  }
}

}  // namespace

bool launch_gated(Stream stream, std::span<const Layer> layers, const GateMulArgs& gate) {
  CHECK_EQ(layers.size(), 2U);
  if (!are_pairs(layers[0].outputs, layers[1].outputs, gate) || !takes_wide(layers)) return false;
  switch (gate.out.format) {
    case ActivationFormat::kBF16:
      return start<WgmmaBf16, ActivationFormat::kBF16>(stream, layers, gate);
    case ActivationFormat::kF16:
      return start<WgmmaF16, ActivationFormat::kF16>(stream, layers, gate);
    default:
      return false;
  }
}

}  // namespace sluice::kernels::cuda
