// SPDX-License-Identifier: Apache-2.0
// The workspace in which attention runs partitions side by side: how large it is, and which
// requests are split in a smaller one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/attention_step.h"
#include "tests/kernels/cuda/rows_check.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

AttentionLimits limits_of(int32_t seq_len, int32_t num_heads, int32_t num_kv_heads, int32_t dim) {
  return {.num_tokens = 8192,
          .num_reqs = 256,
          .seq_len = seq_len,
          .num_heads = num_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim = dim,
          .num_threads = 1,
          .device = DeviceType::kCuda};
}

TEST(CudaAttentionWorkspace, IsBoundHoweverLongTheContext) {
  for (const int capability : {80, 90}) {
    const simt::GivenDevice device(capability);
    if (!device.is_here()) continue;
    for (const int32_t dim : {64, 128, 256, 512}) {
      SCOPED_TRACE(dim);
      const int64_t million = attention_workspace_bytes(limits_of(1 << 20, 32, 4, dim));
      EXPECT_GT(million, 0);
      EXPECT_LE(million, 512 * kMiB);
      EXPECT_LE(attention_workspace_bytes(limits_of(10 << 20, 64, 8, dim)), 512 * kMiB);
      EXPECT_LE(cuda::attention_workspace_bytes(limits_of(10 << 20, 64, 8, dim), 0), 512 * kMiB);
    }
  }
}

// Heads that no list takes need none of its partials, and steps that it does not take make do with
// what it has.
TEST(CudaAttentionWorkspace, CountsTheListWhereThereIsOne) {
  const simt::GivenDevice hopper(90);
  if (!hopper.is_here()) GTEST_SKIP() << "the GPU is another";
  for (const int32_t dim : {128, 256}) {
    const AttentionLimits limits = limits_of(8192, 32, 4, dim);
    EXPECT_GT(cuda::mixed_attention_workspace_bytes(limits), 0);
    EXPECT_EQ(attention_workspace_bytes(limits), cuda::mixed_attention_workspace_bytes(limits));
  }
  for (const int32_t dim : {264, 512}) {
    EXPECT_EQ(cuda::mixed_attention_workspace_bytes(limits_of(8192, 32, 4, dim)), 0);
    EXPECT_GT(attention_workspace_bytes(limits_of(8192, 32, 4, dim)), 0);
  }
}

// A step whose limits, as a recorded one has them, are far above its lengths: its requests have 3,
// 1 and 2 partitions.
class RecordedStep {
 public:
  explicit RecordedStep(const test::AttentionCase& c)
      : head_dim_(c.head_dim), step_(with_requests(c)), limits_(step_.limits()) {
    limits_.seq_len = 20'000;
  }

  // Returns a workspace of so many partials.
  [[nodiscard]] test::DeviceBytes workspace(int64_t slots) const {
    return test::DeviceBytes(slots * slot_bytes());
  }

  void check(const test::DeviceBytes& workspace) const {
    test::expect_same_floats(step_.launch_with(limits_, workspace), step_.want());
  }

  // Whether partials were written to that slot of the workspace.
  [[nodiscard]] bool has(const test::DeviceBytes& workspace, int64_t slot) const {
    const test::DeviceBytes untouched(slot_bytes());
    return !std::ranges::equal(
        std::span(workspace.data() + slot * slot_bytes(), untouched.size()),
        std::span(untouched.data(), untouched.size()));
  }

 private:
  static test::AttentionCase with_requests(test::AttentionCase c) {
    c.num_heads = 2;
    c.requests = {{1300, 1}, {9, 1}, {700, 1}};
    return c;
  }

  // Blocks have 4 rows.
  [[nodiscard]] int64_t slot_bytes() const {
    return 4 * (int64_t{head_dim_} + 2) * int64_t{sizeof(float)};
  }

  int32_t head_dim_;
  test::AttentionStep step_;
  AttentionLimits limits_;
};

// By fma, and by mma.sync as wide heads and small blocks take it on each device.
const test::AttentionCase kWithoutList[] = {
    {.dtype = DType::kF32}, {.head_dim = 264}, {.dtype = DType::kI8, .block_size = 8}};

TEST(CudaAttentionWorkspace, IsSharedOutByTheStepsLengths) {
  for (const test::AttentionCase& c : kWithoutList) {
    SCOPED_TRACE(to_string(c.dtype));
    const RecordedStep step(c);
    test::on_schedules([&] {
      const test::DeviceBytes workspace = step.workspace(6);
      step.check(workspace);
      for (int64_t slot = 0; slot < 6; ++slot) EXPECT_TRUE(step.has(workspace, slot)) << slot;
    });
  }
}

TEST(CudaAttentionWorkspace, RequestsWithoutRoomAreNotSplit) {
  for (const test::AttentionCase& c : kWithoutList) {
    SCOPED_TRACE(to_string(c.dtype));
    const RecordedStep step(c);
    test::on_schedules([&] {
      const test::DeviceBytes workspace = step.workspace(5);
      step.check(workspace);
      for (int64_t slot = 0; slot < 4; ++slot) EXPECT_TRUE(step.has(workspace, slot)) << slot;
      EXPECT_FALSE(step.has(workspace, 4));
    });
  }
}

// The shim's 5 blocks have 6 partitions: 2 of them one each for the merge.
TEST(CudaAttentionWorkspace, AListIsCutByTheStepsLengths) {
  const simt::GivenDevice hopper(90);
  if (!hopper.is_here()) GTEST_SKIP() << "the GPU is another";
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    SCOPED_TRACE(to_string(dtype));
    const RecordedStep step({.dtype = dtype});
    const auto num_written = [&](const test::DeviceBytes& workspace, int64_t slots) {
      int64_t count = 0;
      for (int64_t slot = 0; slot < slots; ++slot) count += step.has(workspace, slot) ? 1 : 0;
      return count;
    };
    test::on_schedules([&] {
      const test::DeviceBytes enough = step.workspace(10);
      step.check(enough);
      EXPECT_GT(num_written(enough, 10), 0);
      const test::DeviceBytes too_few = step.workspace(9);
      step.check(too_few);
      EXPECT_EQ(num_written(too_few, 9), 0);
    });
  }
}

TEST(CudaAttentionWorkspace, IsAskedForWhereItHelps) {
  const AttentionLimits decode{.num_tokens = 1,
                               .num_reqs = 1,
                               .seq_len = 4096,
                               .num_heads = 32,
                               .num_kv_heads = 8,
                               .head_dim = 128,
                               .num_threads = 0};
  EXPECT_GT(cuda::attention_workspace_bytes(decode, 0), 0);
  EXPECT_LT(cuda::attention_workspace_bytes(decode, 600),
            cuda::attention_workspace_bytes(decode, 0));
  AttentionLimits other = decode;
  other.seq_len = kAttentionPartition;
  EXPECT_EQ(cuda::attention_workspace_bytes(other, 0), 0);
  other = decode;
  other.num_tokens = 4096;
  EXPECT_EQ(cuda::attention_workspace_bytes(other, 0), 0);
}

TEST(CudaAttentionWorkspace, IsLeftAloneWhereItWasNotAskedFor) {
  const test::AttentionStep step({.requests = {{40, 1}}});
  test::DeviceBytes workspace(64);
  const std::vector<std::byte> before = workspace.copy();
  test::on_schedules([&] {
    test::expect_same_floats(step.launch_with(step.limits(), workspace), step.want());
    test::expect_same_bytes(workspace.data(), before.data(), before.size());
  });
}

TEST(CudaAttentionWorkspace, LimitsAboveTheCallChangeNothing) {
  const test::AttentionStep step({.num_heads = 2, .requests = {{700, 2}, {9, 1}}});
  AttentionLimits limits = step.limits();
  limits.num_tokens += 5;
  limits.seq_len = 5000;
  ASSERT_GT(cuda::attention_workspace_bytes(limits, 0),
            cuda::attention_workspace_bytes(step.limits(), 0));
  test::on_schedules([&] {
    test::expect_same_floats(step.launch(limits, false), step.want());
    test::expect_same_floats(step.launch(limits, true), step.want());
  });
}

#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
// The workspace that an engine has serves decodes beside a prompt, and several tokens a request.
TEST(CudaAttentionWorkspace, FewRowsOfMixedStepsAreSplitWithTheEnginesWorkspace) {
  struct Mixed {
    std::vector<test::AttentionRequest> requests;
    int32_t head_dim;
    int launches;
  };

  for (const Mixed& mixed : {Mixed{{{1300, 1}, {30, 30}, {700, 1}, {9, 1}}, 16, 3},
                             Mixed{{{1300, 5}, {30, 2}}, 16, 2},
                             Mixed{{{1030, 40}}, 144, 2}}) {
    SCOPED_TRACE(mixed.requests.size());
    const test::AttentionStep step(
        {.num_heads = 2, .head_dim = mixed.head_dim, .requests = mixed.requests});
    AttentionLimits limits = step.limits();
    limits.num_tokens += 10;
    limits.device = DeviceType::kCuda;
    const test::DeviceBytes workspace(attention_workspace_bytes(limits));
    simt::Run run(3);
    test::expect_same_floats(step.launch_with(step.limits(), workspace), step.want());
    EXPECT_EQ(run.num_launches(), mixed.launches);
    EXPECT_EQ(test::joined(run.take_reports()), "");
  }
}
#endif

}  // namespace
}  // namespace sluice::kernels
