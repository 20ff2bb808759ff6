// SPDX-License-Identifier: Apache-2.0
// A kernel test that passes host memory fails without a GPU as it would on one: kernels can access
// the tests' heap, but neither stacks nor variables.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/support/simt/simt.h"

namespace sluice::kernels {
namespace {

constexpr int32_t kWidth = 64;

struct Buffer {
  float x[kWidth] = {};
};

Buffer variable;

// Returns the report of a launch that copies a row, by the schedule of every test here.
std::string report_of(const float* from, float* to, const int32_t* index, simt::Mode mode) {
  simt::Run run(3, mode);
  cuda::launch_gather_rows(nullptr,
                           {.x = from,
                            .x_stride = kWidth,
                            .n = kWidth,
                            .indices = {index, 1},
                            .out = to,
                            .out_stride = kWidth});
  return test::joined(run.take_reports());
}

void expect_named(const std::string& report, const std::string& words) {
  EXPECT_NE(report.find(words), std::string::npos) << "'" << report << "' lacks " << words;
}

TEST(CudaTestsHeap, IsWithinReachOfKernelsInEverySchedule) {
  const std::vector<float> from(kWidth, 2.0F);
  const auto index = std::make_unique<int32_t>(0);
  test::on_schedules([&] {
    std::vector<float> to(kWidth);
    cuda::launch_gather_rows(nullptr,
                             {.x = from.data(),
                              .x_stride = kWidth,
                              .n = kWidth,
                              .indices = {index.get(), 1},
                              .out = to.data(),
                              .out_stride = kWidth});
    EXPECT_EQ(to, from);
  });
}

TEST(CudaTestsHeap, StacksAndVariablesOfATestAreNot) {
  const auto on_heap = std::make_unique<Buffer>();
  const auto heap_index = std::make_unique<int32_t>(0);
  Buffer on_stack;
  const int32_t stack_index = 0;
  for (const simt::Mode mode : {simt::Mode::kPlain, simt::Mode::kRace}) {
    expect_named(report_of(on_stack.x, on_heap->x, heap_index.get(), mode),
                 "a kernel reads: 4 bytes of host memory");
    expect_named(report_of(on_heap->x, on_stack.x, heap_index.get(), mode),
                 "a kernel writes: 4 bytes of host memory");
    expect_named(report_of(on_heap->x, on_heap->x, &stack_index, mode),
                 "a kernel reads: 4 bytes of host memory");
    expect_named(report_of(variable.x, on_heap->x, heap_index.get(), mode),
                 "a kernel reads: 4 bytes of host memory");
  }
}

}  // namespace
}  // namespace sluice::kernels
