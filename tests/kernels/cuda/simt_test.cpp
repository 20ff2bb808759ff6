// SPDX-License-Identifier: Apache-2.0
// The shim itself: schedules, named errors, and instructions against their descriptions.
#include "tests/support/simt/simt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/cuda/simt_reports.h"
#include "tests/support/simt/overlap.h"

namespace sluice::simt {
namespace {

namespace ptx = gpu::ptx;
using gpu::Swizzle;
using kernels::test::joined;
using kernels::test::on_schedules;

void note_order(std::vector<unsigned>* order) {
  order->push_back(threadIdx.x);
  __syncthreads();
  order->push_back(threadIdx.x);
}

std::vector<unsigned> order_of(uint64_t seed) {
  std::vector<unsigned> order;
  simt::Run run(seed);
  gpu::launch(nullptr, {.threads = 96}, note_order, &order);
  EXPECT_EQ(joined(run.take_reports()), "");
  return order;
}

TEST(SimtSchedule, ASeedGivesItsOrderAgainAndAnotherGivesAnother) {
  EXPECT_EQ(order_of(2), order_of(2));
  EXPECT_NE(order_of(2), order_of(3));
  EXPECT_NE(order_of(0), order_of(2));
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<unsigned> order = order_of(seed);
    ASSERT_EQ(order.size(), 192U);
    for (const auto begin : {order.begin(), order.begin() + 96}) {
      std::sort(begin, begin + 96);
      for (int i = 0; i < 96; ++i) ASSERT_EQ(begin[i], static_cast<unsigned>(i));
    }
  }
}

TEST(SimtSchedule, EveryFourthSeedStarvesOneWarp) {
  const std::vector<unsigned> order = order_of(5);
  const unsigned warp = order[95] / 32;
  for (int i = 64; i < 96; ++i) EXPECT_EQ(order[static_cast<size_t>(i)] / 32, warp);
  for (int i = 0; i < 64; ++i) EXPECT_NE(order[static_cast<size_t>(i)] / 32, warp);
}

void note_place(std::vector<int>* places) {
  GPU_SHARED(float, fresh, 2);
  (*places)[blockIdx.y * gridDim.x + blockIdx.x] += std::isnan(fresh[0]) ? 1 : 1000;
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) fresh[0] = 1;
}

TEST(SimtSchedule, EveryBlockRunsOnceWithMemoryOfItsOwn) {
  std::vector<int> places(15);
  simt::Run run(2);
  gpu::launch(nullptr, {.blocks_x = 5, .blocks_y = 3, .threads = 33}, note_place, &places);
  EXPECT_EQ(joined(run.take_reports()), "");
  EXPECT_EQ(places, std::vector<int>(15, 33));
}

void warp_functions(std::vector<float>* out) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  const float value = __shfl_xor_sync(0xFFFFFFFFU, static_cast<float>(lane), 5);
  const uint32_t largest = __reduce_max_sync(0xFFFFFFFFU, static_cast<uint32_t>(lane * 3));
  const int32_t sum = __reduce_add_sync(0xFFFFFFFFU, lane - 16);
  (*out)[threadIdx.x] =
      value + 1000.0F * static_cast<float>(largest) + 0.25F * static_cast<float>(sum);
}

TEST(SimtWarp, ShufflesAndReductionsGiveWhatCudaSays) {
  on_schedules([] {
    std::vector<float> out(32);
    gpu::launch(nullptr, {.threads = 32}, warp_functions, &out);
    for (int lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(out[static_cast<size_t>(lane)], static_cast<float>(lane ^ 5) + 93000 - 4);
    }
  });
}

TEST(SimtErrors, ADeadlockNamesWhoWaitsWhere) {
  const std::string report = report_of(
      [] {
        if (threadIdx.x != 7) __syncthreads();
      },
      64);
  expect_report(report, "deadlock: 63 threads wait in __syncthreads at simt_test.cpp:");
  expect_report(report, "1 threads left the kernel");
}

TEST(SimtErrors, ABarrierMetAtTwoPlacesIsNamed) {
  const std::string report = report_of(
      [] {
        if (threadIdx.x % 2 == 0) {
          __syncthreads();
        } else {
          __syncthreads();
        }
      },
      32);
  expect_report(report, "others wait in __syncthreads at simt_test.cpp:");
}

TEST(SimtErrors, TwoInstructionsAtOneMaskAreNamed) {
  const std::string report = report_of(
      [] {
        if (threadIdx.x < 16) {
          __syncwarp();
        } else {
          __reduce_add_sync(0xFFFFFFFFU, 1);
        }
      },
      32);
  expect_report(report, "other lanes wait in ");
}

TEST(SimtErrors, ALaneThatNeverWasIsNamed) {
  expect_report(report_of([] { __syncwarp(); }, 40), "names lane 8");
}

TEST(SimtErrors, SharedMemoryHasTheLimitOfTheDevice) {
  struct Limit {
    int capability;
    int64_t kilobytes;
  };

  for (const Limit& limit :
       {Limit{80, 163}, {86, 99}, {87, 163}, {89, 99}, {90, 227}, {100, 227}, {120, 99}}) {
    SCOPED_TRACE(limit.capability);
    const simt::GivenDevice device(limit.capability);
    const int64_t most = limit.kilobytes * 1024;
    EXPECT_EQ(report_of([] {}, 32, most), "");
    expect_report(report_of([] {}, 32, most + 16), "bytes of shared memory a block");
    // The dynamic part begins behind what a kernel declares, at a multiple of 1024.
    const auto declares = [] {
      GPU_SHARED(int, one, 1);
      one[0] = 0;
    };
    EXPECT_EQ(report_of(declares, 1, most - 1024), "");
    expect_report(report_of(declares, 1, most - 1008), "bytes of shared memory in a block");
  }
}

TEST(SimtErrors, SharedMemoryHasALimit) {
  expect_report(report_of([] {}, 32, 300 * 1024), "bytes of shared memory a block");
  expect_report(report_of(
                    [] {
                      GPU_SHARED(float, large, 12 * 1024);
                      large[0] = 0;
                    },
                    32,
                    180 * 1024),
                "bytes of shared memory in a block");
  expect_report(report_of(
                    [] {
                      GPU_SHARED(float, half, 6 * 1024 + 1);
                      GPU_SHARED(float, other, 6 * 1024);
                      half[0] = other[0] = 0;
                    },
                    32),
                "other: a kernel declares 49156 bytes");
}

TEST(SimtErrors, AGridHasALimit) {
  simt::Run run(3);
  gpu::launch(
      nullptr, {.blocks_y = 65536, .threads = 32}, +[] {});
  expect_report(joined(run.take_reports()), "a grid of 1 by 65536 blocks");
}

TEST(SimtErrors, AProductOfBf16PairsThatIsRoundedIsNamed) {
  const std::string report = report_of(
      [] {
        ptx::fma_bf16x2(0x3F803F80U, 0x40004000U, 0x40404040U);  // 1 * 2 + 3
        ptx::fma_bf16x2(0x3F803F80U, 0x3F803F80U, 0x3F803580U);  // 1 * 1 + 2^-20
      },
      1);
  expect_report(report, "fma_bf16x2 at simt_test.cpp:");
  expect_report(report, "a result that is not exact");
}

TEST(SimtErrors, AnMbarrierThatNobodyInitializedIsNamed) {
  simt::Run run(3, Mode::kRace);
  gpu::launch(
      nullptr, {.threads = 32}, +[] {
        GPU_SHARED(ptx::Mbarrier, barrier, 1);
        ptx::mbar_wait(barrier, 0);
      });
  const std::string report = joined(run.take_reports());
  expect_report(report, "race: a read of what nobody wrote");
  expect_report(report, "mbar_wait at simt_test.cpp:");
  expect_report(report, "an mbarrier that is not initialized");
}

TEST(SimtErrors, WgmmaAndTheCopyEngineAreHoppers) {
  const GivenDevice ampere(80);
  expect_report(report_of(
                    [] {
                      float d[4] = {};
                      ptx::wgmma_fence();
                      ptx::wgmma_bf16(d, 0, 0, false);
                    },
                    128),
                "not on a device of 80");
}

TEST(SimtCopies, AThreadsCopyIsThereAfterItsWaitAndZeroPastItsBytes) {
  alignas(16) uint8_t data[32 * 16];
  for (int i = 0; i < 32 * 16; ++i) data[i] = static_cast<uint8_t>(i % 255 + 1);
  on_schedules([&] {
    std::vector<uint8_t> got(32 * 16);
    gpu::launch(
        nullptr,
        {.threads = 32, .shared_bytes = 32 * 16},
        +[](const uint8_t* from, uint8_t* out) {
          GPU_DYN_SHARED_ARRAY(uint8_t, copied);
          const auto thread = static_cast<int>(threadIdx.x);
          ptx::cp_async_16(copied + thread * 16, from + thread * 16, thread % 17);
          ptx::cp_async_commit();
          ptx::cp_async_wait<0>();
          for (int i = 0; i < 16; ++i) out[thread * 16 + i] = copied[thread * 16 + i];
        },
        static_cast<const uint8_t*>(data),
        got.data());
    for (int i = 0; i < 32 * 16; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], i % 16 < i / 16 % 17 ? data[i] : 0) << i;
    }
  });
}

struct Large {
  float values[100];
};

TEST(SimtErrors, ALaunchWithTooLittleDynamicMemoryIsNamed) {
  const auto kernel = [] {
    GPU_DYN_SHARED(Large, large);
    large.values[0] = 0;
  };
  expect_report(report_of(kernel, 32, 396),
                "400 bytes of dynamic shared memory, 396 at the launch");
  EXPECT_EQ(report_of(kernel, 32, 400), "");
}

TEST(SimtErrorsDeathTest, ALaunchNeedsARunAndReportsMustBeTaken) {
  EXPECT_DEATH(gpu::launch(
                   nullptr, {.threads = 1}, +[] {}),
               "a launch outside of any Run");
  EXPECT_DEATH(
      {
        simt::Run run(0);
        gpu::launch(
            nullptr, {.threads = 64}, +[] {
              if (threadIdx.x == 0) __syncthreads();
            });
      },
      "reports that nobody took");
}

#ifndef SLUICE_SIMT_RACE
TEST(SimtErrorsDeathTest, TheAddressSanitizerSeesTheEndsOfSharedMemory) {
  const auto past = [](int64_t shared_bytes, void (*kernel)()) {
    simt::Run run(0);
    gpu::launch(nullptr, {.threads = 1, .shared_bytes = shared_bytes}, kernel);
  };
  EXPECT_DEATH(past(
                   404,
                   +[] {
                     GPU_DYN_SHARED_ARRAY(float, values);
                     values[404 / 4] = 1;
                   }),
               "use-after-poison");
  EXPECT_DEATH(past(
                   0,
                   +[] {
                     GPU_SHARED(float, values, 8);
                     float* const end = values + 8;
                     *end = 1;
                   }),
               "use-after-poison");
}
#endif

struct Box {
  alignas(1024) uint8_t bytes[16 * 128];
  ptx::Mbarrier full;
};

void copy_kernel(
    const gpu::TensorMap map, int32_t column, int32_t row, int32_t bytes, uint8_t* out) {
  GPU_DYN_SHARED(Box, box);
  if (threadIdx.x == 0) {
    ptx::mbar_init(&box.full, 1);
    ptx::fence_mbar_init();
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    ptx::mbar_wait(&box.full, 1);  // the phase before the first is complete
    ptx::mbar_arrive_expect_tx(&box.full, static_cast<uint32_t>(bytes));
    ptx::tma_load_2d(box.bytes, &map, column, row, &box.full);
  }
  ptx::mbar_wait(&box.full, 0);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < bytes; i += 64) out[i] = box.bytes[i];
}

// Requests a box before the wait for the launches in front; it comes at any time.
void early_copy_kernel(const gpu::TensorMap map) {
  GPU_DYN_SHARED(Box, box);
  if (threadIdx.x == 0) {
    ptx::mbar_init(&box.full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_arrive_expect_tx(&box.full, 16 * 128);
    ptx::tma_load_2d(box.bytes, &map, 0, 0, &box.full);
  }
  ptx::wait_for_launches();
  __syncthreads();
  ptx::mbar_wait(&box.full, 0);
}

void empty_kernel() {}

TEST(SimtCopies, ABoxOfWhatAnUploadWritesMayNotBeAskedForBeforeTheWait) {
  std::vector<uint8_t> tensor(16 * 128 + 16);
  auto* const data = tensor.data() + (16 - reinterpret_cast<uintptr_t>(tensor.data()) % 16) % 16;
  const gpu::TensorMap map = gpu::make_tensor_map({.data = data,
                                                   .element_bytes = 1,
                                                   .rank = 2,
                                                   .sizes = {128, 16},
                                                   .strides = {0, 128},
                                                   .box = {128, 16},
                                                   .swizzle = Swizzle::k128});
  const gpu::LaunchShape shape{.threads = 32, .shared_bytes = sizeof(Box), .overlaps = true};
  for (uint64_t seed = 0; seed < 4; ++seed) {
    simt::Run run(seed);
    gpu::launch(nullptr, shape, early_copy_kernel, map);
    EXPECT_EQ(joined(run.take_reports()), "");
    note_copied(data + 77, 1);
    gpu::launch(nullptr, shape, early_copy_kernel, map);
    expect_report(joined(run.take_reports()), "overlap: a read before wait_for_launches");
    gpu::launch(nullptr, {.threads = 32}, empty_kernel);  // begins behind the upload
    gpu::launch(nullptr, shape, early_copy_kernel, map);
    EXPECT_EQ(joined(run.take_reports()), "");
  }
}

// The permutation by the text of kernels/cuda/tensor_map.h: rows of 128 bytes by the row modulo 8,
// of 64 by every second row modulo 4, of 32 by every fourth modulo 2.
TEST(SimtCopies, ABoxIsSwizzledAndZeroOutsideOfTheTensor) {
  struct Kind {
    Swizzle swizzle;
    int32_t row_bytes;
    int32_t every;
    int32_t pieces;
  };

  constexpr int32_t kRows = 20;
  constexpr int32_t kColumns = 176;
  std::vector<uint8_t> tensor(kRows * kColumns + 16);
  auto* const data = tensor.data() + (16 - reinterpret_cast<uintptr_t>(tensor.data()) % 16) % 16;
  for (int32_t i = 0; i < kRows * kColumns; ++i) data[i] = static_cast<uint8_t>(1 + i % 251);
  for (const Kind& kind : {Kind{Swizzle::k128, 128, 1, 8},
                           Kind{Swizzle::k64, 64, 2, 4},
                           Kind{Swizzle::k32, 32, 4, 2},
                           Kind{Swizzle::kNone, 64, 1, 1}}) {
    const gpu::TensorMap map = gpu::make_tensor_map({.data = data,
                                                     .element_bytes = 1,
                                                     .rank = 2,
                                                     .sizes = {kColumns, kRows},
                                                     .strides = {0, kColumns},
                                                     .box = {kind.row_bytes, 16},
                                                     .swizzle = kind.swizzle});
    constexpr int32_t kRow = 7;  // the last 3 rows of the box and some of its columns are outside
    const int32_t column = kColumns - kind.row_bytes + 16;
    std::vector<uint8_t> want;
    for (int32_t i = 0; i < 16 * kind.row_bytes; ++i) {
      const int32_t row = i / kind.row_bytes;
      const int32_t piece = i % kind.row_bytes / 16 ^ row / kind.every % kind.pieces;
      const int32_t x = column + piece * 16 + i % 16;
      const bool inside = row + kRow < kRows && x < kColumns;
      want.push_back(inside ? data[(row + kRow) * kColumns + x] : uint8_t{0});
    }
    on_schedules([&] {
      std::vector<uint8_t> got(want.size(), 0xEE);
      gpu::launch(nullptr,
                  {.threads = 64, .shared_bytes = sizeof(Box)},
                  copy_kernel,
                  map,
                  column,
                  kRow,
                  static_cast<int32_t>(want.size()),
                  got.data());
      EXPECT_EQ(got, want);
    });
  }
}

TEST(SimtCopies, ATensorThatTheEngineRefusesIsReported) {
  simt::Run run(0);
  alignas(16) const uint8_t data[64] = {};
  gpu::TensorMapShape shape{.data = data, .sizes = {8, 4}, .strides = {0, 16}, .box = {16, 4}};
  gpu::make_tensor_map(shape);
  EXPECT_EQ(joined(run.take_reports()), "");
  shape.strides[1] = 8;
  gpu::make_tensor_map(shape);
  shape.strides[1] = 16;
  shape.data = data + 1;
  gpu::make_tensor_map(shape);
  EXPECT_EQ(run.take_reports().size(), 2U);
}

// On a GPU such a box would not have the swizzle's layout.
TEST(SimtCopies, ABoxNarrowerThanItsSwizzleIsReported) {
  simt::Run run(0);
  alignas(16) const uint8_t data[1024] = {};
  for (const auto& [swizzle, bytes] :
       {std::pair{Swizzle::k32, 32}, {Swizzle::k64, 64}, {Swizzle::k128, 128}}) {
    for (const int32_t inner : {bytes, bytes / 2, 2 * bytes}) {
      gpu::make_tensor_map({.data = data,
                            .sizes = {256, 4},
                            .strides = {0, 256},
                            .box = {inner, 4},
                            .swizzle = swizzle});
      const std::string report = joined(run.take_reports());
      EXPECT_EQ(report.empty(), inner == bytes) << inner << " of " << bytes << ": " << report;
    }
  }
}

TEST(SimtFloats, ConversionToIntRoundsTiesToEven) {
  EXPECT_EQ(__float2int_rn(2.5F), 2);
  EXPECT_EQ(__float2int_rn(-3.5F), -4);
}

TEST(SimtBytes, AreSelectedByNibblesAndTheirSignsByTheFourthBit) {
  constexpr uint32_t kA = 0x83828180U;
  constexpr uint32_t kB = 0x07060584U;
  EXPECT_EQ(gpu::ptx::select_bytes(kA, kB, 0x7340U), 0x07838480U);
  EXPECT_EQ(gpu::ptx::select_bytes(kA, kB, 0xFFFFFDC8U), 0x0000FFFFU);
}

}  // namespace
}  // namespace sluice::simt
