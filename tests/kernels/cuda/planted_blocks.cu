// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/planted_products.h"

namespace sluice::kernels::test {
namespace {

namespace ptx = gpu::ptx;
using Shape = BlocksShape;

struct Sums {
  float of[Shape::kWarps][Shape::kTokens][Shape::kTile];
};

struct Rows {
  int32_t expert;
  int32_t token;  // the tile's first
  int32_t end;    // one past the expert's last
};

template <BlocksBug kBug>
__device__ __forceinline__ void add_group(const BlocksInput& input,
                                          const Rows& rows,
                                          int32_t group,
                                          int32_t first_group,
                                          float (&acc)[4]) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t of_tokens = rows.token / Shape::kTokens;
  uint32_t a[4];
  for (int h = 0; h < 2; ++h) {
    const int32_t chunk = kBug == BlocksBug::kChunkOfTheNeighbour ? (lane + 1) % 4 : lane % 4;
    const uint32_t codes = input.codes[rows.expert][group][chunk][lane / 4 + 8 * h];
    const uint32_t low = codes & 0x0F0F0F0FU;
    const uint32_t high = codes >> 4 & 0x0F0F0F0FU;
    a[h] = kBug == BlocksBug::kHighCodesFirst ? high : low;
    a[2 + h] = kBug == BlocksBug::kHighCodesFirst ? low : high;
  }
  const auto* const b =
      reinterpret_cast<const uint32_t*>(input.x[of_tokens][group][lane / 4]) + lane % 4;
  int32_t sums[4] = {};
  if (kBug == BlocksBug::kPartOfAWarp && lane >= 16) return;
  ptx::mma_s8(sums, a, b[0], b[4]);
  for (int i = 0; i < 4; ++i) {
    const int32_t output = lane / 4 + (kBug == BlocksBug::kScaleOfTheFirstHalf ? 0 : i / 2 * 8);
    const int32_t token = kBug == BlocksBug::kTokenScaleOfTheLane ? lane / 4 : lane % 4 * 2 + i % 2;
    const int32_t of = kBug == BlocksBug::kScaleOfTheSegment ? group - first_group : group;
    const float scale =
        __fmul_rn(input.scale[rows.expert][of][output], input.x_scale[of_tokens][group][token]);
    acc[i] = __fmaf_rn(__int2float_rn(sums[i]), scale, acc[i]);
    if (kBug == BlocksBug::kNoMinimum) continue;
    acc[i] = __fmaf_rn(
        input.minimum[rows.expert][group][output], input.x_sum[of_tokens][group][token], acc[i]);
  }
}

template <BlocksBug kBug>
__device__ __forceinline__ void multiply_segment(const BlocksInput& input,
                                                 const Rows& rows,
                                                 Sums& shared) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto segment = static_cast<int32_t>(threadIdx.x / 32);
  int32_t begin = segment * Shape::kGroups / Shape::kWarps;
  int32_t end = (segment + 1) * Shape::kGroups / Shape::kWarps;
  if (kBug == BlocksBug::kSegmentOneShort) --end;
  if (kBug == BlocksBug::kSegmentOverlaps && begin > 0) --begin;
  float acc[4] = {};
  for (int32_t group = begin; group < end; ++group) {
    add_group<kBug>(input, rows, group, begin, acc);
  }
  const int32_t place = kBug == BlocksBug::kSegmentsShareAPlace ? segment / 2 : segment;
  for (int i = 0; i < 4; ++i) {
    const int32_t output = lane / 4 + i / 2 * 8;
    const int32_t token = lane % 4 * 2 + i % 2;
    if (kBug == BlocksBug::kSumsTransposed) {
      shared.of[place][lane / 4][token + i / 2 * 8] = acc[i];
    } else {
      shared.of[place][token][output] = acc[i];
    }
  }
}

template <BlocksBug kBug>
__device__ __forceinline__ void store(const BlocksInput& input,
                                      const Rows& rows,
                                      const Sums& shared,
                                      float* out) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t output = thread % Shape::kTile;
  const int32_t at = thread / Shape::kTile;
  const bool has_output = output < Shape::kOutputs || kBug == BlocksBug::kUnmaskedOutputs;
  const bool has_token = rows.token + at < rows.end || kBug == BlocksBug::kUnmaskedTokens;
  if (!has_output || !has_token) return;
  float s[Shape::kWarps];
  for (int i = 0; i < Shape::kWarps; ++i) s[i] = shared.of[i][at][output];
  const float low = __fadd_rn(s[0], s[1]);
  const float sum = kBug == BlocksBug::kFoldInOrder ? __fadd_rn(__fadd_rn(low, s[2]), s[3])
                                                    : __fadd_rn(low, __fadd_rn(s[2], s[3]));
  const int32_t expert = kBug == BlocksBug::kBiasOfTheFirstExpert ? 0 : rows.expert;
  out[(rows.token + at) * Shape::kTile + output] = __fadd_rn(sum, input.bias[expert][output]);
}

template <BlocksBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    blocks_kernel(const BlocksInput* input, float* out) {
  GPU_DYN_SHARED(Sums, shared);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t num_chosen = input->num_chosen + (kBug == BlocksBug::kOneExpertMore ? 1 : 0);
  if (block >= num_chosen) return;
  const int32_t expert = kBug == BlocksBug::kExpertOfTheBlock ? block : input->chosen[block];
  const int32_t first = Shape::kFirst[static_cast<size_t>(expert)];
  const int32_t end = first + Shape::kCount[static_cast<size_t>(expert)];
  for (int32_t token = first; token < end; token += Shape::kTokens) {
    const Rows rows{expert, token, end};
    multiply_segment<kBug>(*input, rows, shared);
    if (kBug != BlocksBug::kNoBarrierBeforeFold) __syncthreads();
    store<kBug>(*input, rows, shared, out);
    if (kBug != BlocksBug::kNoBarrierBeforeReuse) __syncthreads();
    if (kBug == BlocksBug::kOneTileOnly) break;
  }
}

}  // namespace

std::vector<float> run_blocks(BlocksBug bug, const BlocksInput& input) {
  std::vector<float> out(Shape::kRows * Shape::kTile, -1.0F);
  with_bug<BlocksBug::kPartOfAWarp>(bug, [&]<BlocksBug kBug>() {
    gpu::launch(
        nullptr,
        {.blocks_x = Shape::kExperts, .threads = Shape::kThreads, .shared_bytes = sizeof(Sums)},
        blocks_kernel<kBug>,
        &input,
        out.data());
  });
  return out;
}

}  // namespace sluice::kernels::test
