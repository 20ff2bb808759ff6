// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/cuda/planted_promotion.h"

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/ring.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using gpu::TensorMap;
namespace ptx = gpu::ptx;
using Shape = PromotionShape;

constexpr int kStages = 3;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr uint32_t kRowBytes = 128;
constexpr uint32_t kAtom = 8 * kRowBytes;
constexpr int kRunGroups = 4;

struct alignas(1024) Memory {
  std::byte w[kStages][Shape::kOutputs * kRowBytes];
  std::byte x[kStages][Shape::kTokens * kRowBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

struct Work {
  TensorMap x;
  TensorMap w;
  const float* w_scales;
  const float* x_scales;
  float* out;
};

using Cursor = cuda::Cursor<kStages>;

// Returns the end of the run that begins at `group`.
template <PromotionBug kBug>
__device__ __forceinline__ int run_end(int group, int end) {
  const bool counts_from_segment = kBug == PromotionBug::kRunPastItsBlock;
  const int last = counts_from_segment ? group + kRunGroups : (group / kRunGroups + 1) * kRunGroups;
  return last < end ? last : end;
}

template <PromotionBug kBug>
__device__ __forceinline__ int first_group(int segment) {
  const bool is_wrong = kBug == PromotionBug::kWrongSegment && segment == 3;
  return segment * Shape::kGroups / Shape::kSegments + (is_wrong ? 1 : 0);
}

// Calls f(segment, begin, end) for every run, and behind_segment(segment).
template <PromotionBug kBug, typename F, typename Behind>
__device__ __forceinline__ void for_runs(F f, Behind behind_segment) {
  for (int segment = 0; segment < Shape::kSegments; ++segment) {
    const int end = first_group<kBug>(segment + 1);
    for (int group = first_group<kBug>(segment); group < end;) {
      const int last = run_end<kBug>(group, end);
      f(segment, group, last);
      group = last;
    }
    behind_segment(segment);
  }
}

template <PromotionBug kBug>
__device__ __forceinline__ void copy(Memory& memory, const Work& work) {
  Cursor at;
  for_runs<kBug>(
      [&](int, int begin, int) {
        ptx::mbar_wait(&memory.empty[at.stage], at.parity ^ 1);
        ptx::Mbarrier* const full = &memory.full[at.stage];
        ptx::mbar_arrive_expect_tx(full, (Shape::kOutputs + Shape::kTokens) * kRowBytes);
        ptx::tma_load_2d(memory.w[at.stage], &work.w, 32 * begin, 0, full);
        ptx::tma_load_2d(memory.x[at.stage], &work.x, 32 * begin, 0, full);
        at.advance();
      },
      [](int) {});
}

// A thread's scales of a run.
struct Scales {
  float output[2];
  float token[2];
};

template <PromotionBug kBug>
__device__ __forceinline__ Scales scales_of(const Work& work, int segment, int group) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int from = kBug == PromotionBug::kBlockOfTheSegment ? first_group<kBug>(segment) : group;
  const auto block_of = [&](bool next) {
    const int block = from / kRunGroups + (next ? 1 : 0);
    return block < Shape::kBlocks ? block : Shape::kBlocks - 1;
  };
  Scales scales;
  for (int i = 0; i < 2; ++i) {
    constexpr bool kNextOutput = kBug == PromotionBug::kScaleOfTheNextOutput;
    constexpr bool kNextToken = kBug == PromotionBug::kXScaleOfTheNextToken;
    const int output = thread / 32 * 16 + thread % 32 / 4 + 8 * i;
    const int token = thread % 4 * 2 + i;
    scales.output[i] =
        work.w_scales[(output + (kNextOutput ? 1 : 0)) % Shape::kOutputs * Shape::kBlocks +
                      block_of(kBug == PromotionBug::kScaleOfTheNextBlock)];
    scales.token[i] =
        work.x_scales[block_of(kBug == PromotionBug::kXScaleOfTheNextBlock) * Shape::kTokens +
                      (token + (kNextToken ? 1 : 0)) % Shape::kTokens];
  }
  return scales;
}

template <PromotionBug kBug>
__device__ __forceinline__ void add(const float (&sums)[4], const Scales& scales, float (&d)[4]) {
  for (int i = 0; i < 4; ++i) {
    const float factor = __fmul_rn(scales.output[i / 2], scales.token[i % 2]);
    d[i] = kBug == PromotionBug::kProductThenSum ? __fadd_rn(__fmul_rn(sums[i], factor), d[i])
                                                 : __fmaf_rn(sums[i], factor, d[i]);
  }
}

__device__ __forceinline__ void issue(
    Memory& memory, int stage, int steps, bool accumulate, float (&sums)[4]) {
  ptx::fence_registers(sums);
  ptx::wgmma_fence();
  for (int step = 0; step < steps; ++step) {
    const auto offset = static_cast<uint32_t>(32 * step);
    const uint32_t w = ptx::shared_address(memory.w[stage]) + offset;
    const uint32_t x = ptx::shared_address(memory.x[stage]) + offset;
    ptx::wgmma_e4m3(sums,
                    ptx::matrix_descriptor(w, gpu::Swizzle::k128, kAtom),
                    ptx::matrix_descriptor(x, gpu::Swizzle::k128, kAtom),
                    accumulate || step > 0);
  }
  ptx::wgmma_commit();
}

template <PromotionBug kBug>
__device__ __forceinline__ void multiply(Memory& memory, const Work& work) {
  const auto thread = static_cast<int>(threadIdx.x);
  Cursor at;
  float s[Shape::kSegments][4] = {};
  float sums[4] = {};
  for_runs<kBug>(
      [&](int segment, int begin, int end) {
        const bool is_first = begin == first_group<kBug>(segment);
        const Scales scales = scales_of<kBug>(work, segment, begin);
        ptx::mbar_wait(&memory.full[at.stage], at.parity);
        const bool arrives = thread % 32 == 0;
        if (kBug == PromotionBug::kReleaseBeforeWait && arrives) {
          ptx::mbar_arrive(&memory.empty[at.stage]);
        }
        constexpr bool kGoesOn =
            kBug == PromotionBug::kNoPromotion || kBug == PromotionBug::kChainGoesOn;
        const bool long_chain = kBug == PromotionBug::kLongChain && segment == 5;
        issue(memory, at.stage, end - begin, (kGoesOn || long_chain) && !is_first, sums);
        if (kBug == PromotionBug::kAddBeforeWait) add<kBug>(sums, scales, s[segment]);
        ptx::wgmma_wait<0>();
        ptx::fence_registers(sums);
        if (kBug != PromotionBug::kReleaseBeforeWait && arrives) {
          ptx::mbar_arrive(&memory.empty[at.stage]);
        }
        const bool adds =
            kBug != PromotionBug::kNoPromotion || end == first_group<kBug>(segment + 1);
        if (kBug != PromotionBug::kAddBeforeWait && adds) add<kBug>(sums, scales, s[segment]);
        at.advance();
      },
      [](int) {});
  for (int i = 0; i < 4; ++i) {
    const int output = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2);
    const int token = thread % 4 * 2 + i % 2;
    if (kBug == PromotionBug::kFoldInAChain) {
      for (int segment = 1; segment < Shape::kSegments; ++segment) {
        s[0][i] = __fadd_rn(s[0][i], s[segment][i]);
      }
    } else {
      for (int width = 1; width < Shape::kSegments; width *= 2) {
        for (int from = 0; from < Shape::kSegments; from += 2 * width) {
          s[from][i] = __fadd_rn(s[from][i], s[from + width][i]);
        }
      }
    }
    work.out[token * Shape::kOutputs + output] = s[0][i];
  }
}

template <PromotionBug kBug>
__global__ void __launch_bounds__(kThreads, 1) promotion_kernel(const __grid_constant__ Work work) {
  GPU_DYN_SHARED(Memory, memory);
  ptx::start_next_launch();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbar_init(&memory.full[stage], 1);
      ptx::mbar_init(&memory.empty[stage], kConsumers / 32);
    }
    ptx::fence_mbar_init();
  }
  __syncthreads();
  constexpr bool kEarly =
      kBug == PromotionBug::kStoreBeforeWait || kBug == PromotionBug::kEndWithoutWait;
  if (kEarly && threadIdx.x < kConsumers) multiply<kBug>(memory, work);
  if (kEarly && threadIdx.x == kConsumers) copy<kBug>(memory, work);
  if (kBug == PromotionBug::kEndWithoutWait) return;
  ptx::wait_for_launches();
  if (!kEarly && threadIdx.x < kConsumers) multiply<kBug>(memory, work);
  if (!kEarly && threadIdx.x == kConsumers) copy<kBug>(memory, work);
}

TensorMap map_of(const std::vector<uint8_t>& codes, int rows) {
  return gpu::make_tensor_map({.data = codes.data(),
                               .element_bytes = 1,
                               .rank = 2,
                               .sizes = {Shape::kK, rows},
                               .strides = {0, Shape::kRow},
                               .box = {static_cast<int32_t>(kRowBytes), rows},
                               .swizzle = gpu::Swizzle::k128});
}

}  // namespace

std::vector<float> run_promotion(PromotionBug bug, const PromotionData& data) {
  std::vector<float> out(static_cast<size_t>(Shape::kTokens * Shape::kOutputs), -1.0F);
  const Work work{.x = map_of(data.x, Shape::kTokens),
                  .w = map_of(data.w, Shape::kOutputs),
                  .w_scales = data.w_scales.data(),
                  .x_scales = data.x_scales.data(),
                  .out = out.data()};
  with_bug<PromotionBug::kStoreBeforeWait>(bug, [&]<PromotionBug kBug>() {
    gpu::launch(nullptr,
                {.threads = kThreads, .shared_bytes = sizeof(Memory), .overlaps = true},
                promotion_kernel<kBug>,
                work);
  });
  return out;
}

}  // namespace sluice::kernels::test
