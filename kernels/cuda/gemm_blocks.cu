// SPDX-License-Identifier: Apache-2.0
// Weights in tiles times int8 activations with the CPU's bits: a group of 32 is one instruction of
// int8 tensor cores, whose exact sums go into the tree of kernels/gemm.h in fp32. gemm_tiles.h and
// gemm_tiles_wide.h copy and fold.
#include "kernels/cuda/gemm_tiles_wide.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int32_t kRecordBytes = activation_record_bytes(ActivationFormat::kInt8);

// A lane's part of a group of 16 outputs: outputs `lane / 4` and 8 further on.
template <WeightFormat kFormat>
struct WeightGroup {
  uint32_t a[4];  // in the layout of ptx::mma_s8
  GroupScales scales[2];
};

template <WeightFormat kFormat>
__device__ __forceinline__ WeightGroup<kFormat> load_group(const std::byte* record) {
  const int32_t lane = lane_of_warp();
  const GroupAt at = GroupRecord<kFormat>::at(record);
  const auto* const registers = reinterpret_cast<const uint32_t*>(at.codes);
  WeightGroup<kFormat> w;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int32_t output = lane / 4 + 8 * h;
    const auto load = [&](int32_t r) { return registers[r * kRowTile + output]; };
    w.a[h] = chunk_of<kFormat>(lane % 4, load);
    w.a[2 + h] = chunk_of<kFormat>(lane % 4 + 4, load);
    w.scales[h] = load_scales<kFormat>(at, output);
  }
  return w;
}

// A lane's part of a group of 8 tokens: codes in mma_s8's layout, and the scales of the two tokens
// whose sums it has.
struct TokenGroup {
  uint32_t b[2];
  float scale[2];
  float term[2][2];  // t_a by token and half; [0] of the whole group
  int32_t sum[2];    // code sums by token, for weights with zero points per group
};

template <WeightFormat kFormat>
__device__ __forceinline__ TokenGroup load_tokens(const std::byte* record) {
  const int32_t lane = lane_of_warp();
  const auto* const codes = reinterpret_cast<const uint32_t*>(record) + lane / 4 * 8 + lane % 4;
  const std::byte* const tail = record + kActivationRows * kQuantGroup;
  const auto* const floats = reinterpret_cast<const float*>(tail) + lane % 4 * 2;
  const auto* const sums = reinterpret_cast<const int32_t*>(tail) + lane % 4 * 2;
  TokenGroup x{{codes[0], codes[4]}, {floats[0], floats[1]}, {}, {}};
  if constexpr (kHasMin<kFormat>) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if constexpr (kHalves<kFormat>) {
        const int32_t first = sums[3 * kActivationRows + c];
        const int32_t second = sums[2 * kActivationRows + c] - first;
        x.term[c][0] = __fmul_rn(__int2float_rn(first), x.scale[c]);
        x.term[c][1] = __fmul_rn(__int2float_rn(second), x.scale[c]);
      } else {
        x.term[c][0] = floats[kActivationRows + c];
      }
    }
  }
  if constexpr (kHasZeros<kFormat>) {
    x.sum[0] = sums[2 * kActivationRows];
    x.sum[1] = sums[2 * kActivationRows + 1];
  }
  return x;
}

// Adds the terms of a group, or of half of it, in the tree's order.
template <WeightFormat kFormat>
__device__ __forceinline__ void add_sums(const WeightGroup<kFormat>& w,
                                         const TokenGroup& x,
                                         const int32_t (&isum)[4],
                                         int half,
                                         float* acc) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const GroupScales& scales = w.scales[i / 2];
    const float scale = __fmul_rn(scales.scale[half], x.scale[i % 2]);
    // A zero point may make a code more than 8 bits, so it is taken off the sum. Rows after the
    // last hold anything; their sums may overflow and are never read.
    const auto zeros = static_cast<uint32_t>(scales.zero) * static_cast<uint32_t>(x.sum[i % 2]);
    const int32_t sum = kHasZeros<kFormat>
                            ? static_cast<int32_t>(static_cast<uint32_t>(isum[i]) - zeros)
                            : isum[i];
    acc[i] = __fmaf_rn(__int2float_rn(sum), scale, acc[i]);
    if constexpr (kHasMin<kFormat>) {
      acc[i] = __fmaf_rn(scales.minimum[half], x.term[i % 2][half], acc[i]);
    }
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void add_group(const WeightGroup<kFormat>& w,
                                          const TokenGroup& x,
                                          float* acc) {
  if constexpr (!kHalves<kFormat>) {
    int32_t isum[4] = {};
    ptx::mma_s8(isum, w.a, x.b[0], x.b[1]);
    add_sums<kFormat>(w, x, isum, 0, acc);
  } else {
    int32_t low[4] = {};
    int32_t high[4] = {};
    const uint32_t first[4] = {w.a[0], w.a[1], 0, 0};
    const uint32_t second[4] = {0, 0, w.a[2], w.a[3]};
    ptx::mma_s8(low, first, x.b[0], x.b[1]);
    ptx::mma_s8(high, second, x.b[0], x.b[1]);
    add_sums<kFormat>(w, x, low, 0, acc);
    add_sums<kFormat>(w, x, high, 1, acc);
  }
}

template <WeightFormat kBlockFormat>
struct Int8Numbers {
  using Weights = WeightGroup<kBlockFormat>;
  using Tokens = TokenGroup;
  static constexpr WeightFormat kFormat = kBlockFormat;
  static constexpr int32_t kTokenBytes = kRecordBytes;

  // Copies the record of 8 tokens, which all exist in memory.
  __device__ __forceinline__ static void copy_tokens(
      std::byte* to, const TilesWork& work, int32_t token, int32_t, int32_t group) {
    const auto skipped = static_cast<int32_t>(work.segments.first_group(work.k));
    const std::byte* const from = work.x + token / kActivationRows * work.x_stride +
                                  (group - skipped) * int64_t{kRecordBytes};
    const int32_t i = lane_of_warp() * kPieceBytes;
    if (i < kRecordBytes) ptx::cp_async_16(to + i, from + i, kPieceBytes);
  }

  __device__ __forceinline__ static Weights load_weights(const std::byte* record) {
    return load_group<kFormat>(record);
  }

  __device__ __forceinline__ static Tokens load_tokens(const std::byte* record) {
    return cuda::load_tokens<kFormat>(record);
  }

  __device__ __forceinline__ static void add_group(const Weights& w, const Tokens& x, float* acc) {
    cuda::add_group<kFormat>(w, x, acc);
  }

  __device__ __forceinline__ static float segment_sum(float acc) { return acc; }
};

static_assert(kRecordBytes <= 32 * kPieceBytes);

}  // namespace

void launch_linear_blocks(Stream stream,
                          const LinearMatrixArgs& args,
                          const ExpertMatrices* experts) {
  CHECK(args.x.format == ActivationFormat::kInt8 && !has_rows(args.weight->format));
  if (args.x.num_rows == 0) return;
  TilesWork work = tiles_work(args, experts);
  work.x_stride = ceil_div(args.x.k, kQuantGroup) * int64_t{kRecordBytes};
  with_block_format(args.weight->format, [&]<WeightFormat kFormat>() {
    start_tiles<Int8Numbers<kFormat>>(stream, work);
  });
}

}  // namespace sluice::kernels::cuda
