// SPDX-License-Identifier: Apache-2.0
// Weights in tiles times rows of BF16, by the definition in launch.h: codes become BF16 in
// registers, exactly, and a group of 32 is two instructions of tensor cores. gemm_tiles.h and
// gemm_tiles_wide.h copy and fold.
#include "kernels/cuda/gemm_tiles_wide.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int32_t kGroupRowBytes = kQuantGroup * 2;                // bytes of one token
constexpr int32_t kHalfGroupBytes = kActivationRows * kStepBytes;  // bytes of 8 tokens
constexpr int32_t kRowPieces = kGroupRowBytes / kPieceBytes;
static_assert(kActivationRows * kRowPieces == 32);  // a piece a lane

// A lane has chunks `lane % 4` and `lane % 4 + 4` of 4 codes of a group, one for each of its two
// steps. An instruction's sum is of 16 products in any order, so numbers 0 and 2 of a chunk may
// take the place of the first 16 bytes of K, and 1 and 3 that of the others.
template <WeightFormat kFormat>
struct WeightHalves {
  uint32_t a[2][4];       // by step, in the layout of ptx::mma_bf16
  GroupScales scales[2];  // outputs `lane / 4` and 8 further on
};

// Divides products of the weights, so that a scale of e4m3 times 2^127 is finite.
template <WeightFormat kFormat>
inline constexpr float kLess = kLayoutOf<kFormat>.scales == ScaleLayout::kSub16E4M3 ? 256.0F : 1.0F;

// Scales weights of E2M1: they are their small codes times 2^127 and the scale.
template <WeightFormat kFormat>
__device__ __forceinline__ uint32_t scaled(uint32_t small, float scale) {
  if constexpr (kLess<kFormat> != 1.0F) {
    const float large = __fmul_rn(scale, 0x1p127F / kLess<kFormat>);
    return ptx::fma_bf16x2(small, bf16_pair(large), kBf16MinusZeros);
  } else {
    const uint32_t codes = ptx::fma_bf16x2(small, bf16_pair(0x1p127F), kBf16MinusZeros);
    return ptx::fma_bf16x2(codes, bf16_pair(scale), kBf16MinusZeros);
  }
}

template <WeightFormat kFormat, int kHalf, typename Load>
__device__ __forceinline__ void load_step(WeightHalves<kFormat>& w, int h, Load load) {
  Bf16Chunk chunk = bf16_chunk_of<kFormat, kHalf>(lane_of_warp() % 4, load);
  if constexpr (kIsE2M1<kFormat>) {
    const float scale = w.scales[h].scale[kHalves<kFormat> ? kHalf : 0];
    chunk = {scaled<kFormat>(chunk.even, scale), scaled<kFormat>(chunk.odd, scale)};
  } else if constexpr (kHasZeros<kFormat>) {
    const uint32_t less = bf16_pair(__int2float_rn(-w.scales[h].zero));
    chunk = {ptx::fma_bf16x2(chunk.even, kBf16Ones, less),
             ptx::fma_bf16x2(chunk.odd, kBf16Ones, less)};
  }
  w.a[kHalf][h] = chunk.even;
  w.a[kHalf][2 + h] = chunk.odd;
}

// A lane's part of a group of 8 tokens: numbers in mma_bf16's layout, by step, and terms of the two
// tokens whose sums it has.
struct TokenHalves {
  uint32_t b[2][2];
  float term[2][2];  // t_a by token and half; [0] of the whole group
};

template <WeightFormat kFormat>
__device__ __forceinline__ void add_terms(TokenHalves& x) {
  constexpr uint32_t kOnes[4] = {kBf16Ones, kBf16Ones, kBf16Ones, kBf16Ones};
#pragma unroll
  for (int half = 0; half < (kHalves<kFormat> ? 2 : 1); ++half) {
    float sums[4] = {};
    ptx::mma_bf16(sums, kOnes, x.b[half][0], x.b[half][1]);
    if constexpr (!kHalves<kFormat>) ptx::mma_bf16(sums, kOnes, x.b[1][0], x.b[1][1]);
    x.term[0][half] = sums[0];
    x.term[1][half] = sums[1];
  }
}

template <WeightFormat kFormat>
__device__ __forceinline__ void promote(const WeightHalves<kFormat>& w,
                                        const TokenHalves& x,
                                        const float (&sums)[4],
                                        int half,
                                        float* acc) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const GroupScales& scales = w.scales[i / 2];
    acc[i] = __fmaf_rn(sums[i], scales.scale[half], acc[i]);
    if constexpr (kHasMin<kFormat>) {
      acc[i] = __fmaf_rn(scales.minimum[half], x.term[i % 2][half], acc[i]);
    }
  }
}

template <WeightFormat kTileFormat>
struct HalfNumbers {
  using Weights = WeightHalves<kTileFormat>;
  using Tokens = TokenHalves;
  static constexpr WeightFormat kFormat = kTileFormat;
  static constexpr int32_t kTokenBytes = 2 * kHalfGroupBytes;

  // Copies [step][token]; tokens past the last are zeros.
  __device__ __forceinline__ static void copy_tokens(
      std::byte* to, const TilesWork& work, int32_t token, int32_t token_end, int32_t group) {
    const auto skipped = static_cast<int32_t>(work.segments.first_group(work.k));
    const int32_t row = lane_of_warp() / kRowPieces;
    const int32_t i = lane_of_warp() % kRowPieces * kPieceBytes;
    const bool exists = token + row < token_end;
    const std::byte* const from =
        exists ? work.x + (token + row) * work.x_stride + (group - skipped) * kGroupRowBytes + i
               : work.x;
    std::byte* const at = to + i / kStepBytes * kHalfGroupBytes + row * kStepBytes + i % kStepBytes;
    ptx::cp_async_16(at, from, exists ? kPieceBytes : 0);
  }

  __device__ __forceinline__ static Weights load_weights(const std::byte* record) {
    const GroupAt at = GroupRecord<kFormat>::at(record);
    const auto* const registers = reinterpret_cast<const uint32_t*>(at.codes);
    Weights w;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t output = lane_of_warp() / 4 + 8 * h;
      const auto load = [&](int32_t r) { return registers[r * kRowTile + output]; };
      w.scales[h] = load_scales<kFormat>(at, output);
      load_step<kFormat, 0>(w, h, load);
      load_step<kFormat, 1>(w, h, load);
    }
    return w;
  }

  __device__ __forceinline__ static Tokens load_tokens(const std::byte* tokens) {
    const int32_t lane = lane_of_warp();
    Tokens x{};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint64_t four = *reinterpret_cast<const uint64_t*>(
          tokens + step * kHalfGroupBytes + lane / 4 * kStepBytes + lane % 4 * 8);
      const auto low = static_cast<uint32_t>(four);
      const auto high = static_cast<uint32_t>(four >> 32);
      x.b[step][0] = (low & 0xFFFFU) | high << 16;
      x.b[step][1] = low >> 16 | (high & 0xFFFF0000U);
    }
    if constexpr (kHasMin<kFormat>) add_terms<kFormat>(x);
    return x;
  }

  __device__ __forceinline__ static void add_group(const Weights& w, const Tokens& x, float* acc) {
    if constexpr (kIsE2M1<kFormat>) {
      ptx::mma_bf16(acc, w.a[0], x.b[0][0], x.b[0][1]);
      ptx::mma_bf16(acc, w.a[1], x.b[1][0], x.b[1][1]);
    } else {
#pragma unroll
      for (int half = 0; half < (kHalves<kFormat> ? 2 : 1); ++half) {
        float sums[4] = {};
        ptx::mma_bf16(sums, w.a[half], x.b[half][0], x.b[half][1]);
        if constexpr (!kHalves<kFormat>) ptx::mma_bf16(sums, w.a[1], x.b[1][0], x.b[1][1]);
        promote<kFormat>(w, x, sums, half, acc);
      }
    }
  }

  __device__ __forceinline__ static float segment_sum(float acc) {
    return kLess<kFormat> == 1 ? acc : __fmul_rn(acc, kLess<kFormat>);
  }
};

}  // namespace

void launch_linear_blocks_half(Stream stream,
                               const LinearMatrixArgs& args,
                               const ExpertMatrices* experts) {
  CHECK(args.x.format == ActivationFormat::kBF16 && !has_rows(args.weight->format));
  if (args.x.num_rows == 0) return;
  TilesWork work = tiles_work(args, experts);
  work.x_stride = align_up(args.x.k, kQuantGroup) * 2;
  with_block_format(args.weight->format, [&]<WeightFormat kFormat>() {
    start_tiles<HalfNumbers<kFormat>>(stream, work);
  });
}

}  // namespace sluice::kernels::cuda
