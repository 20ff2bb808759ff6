// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/attention_step.h"
#include "tests/kernels/cuda/rows_check.h"

namespace sluice::kernels {
namespace {

using Case = test::AttentionCase;
using Request = test::AttentionRequest;
using Step = test::AttentionStep;

// Checks one block walking the partitions, and blocks for each of them.
void check(const Case& c) {
  const Step step(c);
  test::on_schedules([&] {
    test::expect_same_floats(step.launch(step.limits(), false), step.want());
    if (cuda::attention_workspace_bytes(step.limits(), c.window) == 0) return;
    SCOPED_TRACE("split");
    test::expect_same_floats(step.launch(step.limits(), true), step.want());
  });
}

constexpr DType kCacheTypes[] = {
    DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3};

TEST(CudaAttention, DecodesAndPromptsOverEveryCacheType) {
  for (const DType dtype : kCacheTypes) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_dim = 24,  // padded in the cache
           .requests = {{1, 1}, {77, 1}, {200, 1}}});
    check({.dtype = dtype, .num_heads = 4, .head_dim = 24, .requests = {{150, 20}}});
  }
  check({.dtype = DType::kF32, .num_heads = 2, .requests = {{600, 1}, {530, 11}}});
}

TEST(CudaAttention, GroupsAndHeadsOfEverySize) {
  check({.num_heads = 3, .num_kv_heads = 3, .requests = {{70, 1}, {5, 1}}});
  check({.num_heads = 6, .num_kv_heads = 2, .head_dim = 70, .requests = {{100, 1}}});
  check({.num_heads = 8, .num_kv_heads = 1, .head_dim = 128, .requests = {{130, 1}}});
  check({.num_heads = 20, .num_kv_heads = 1, .requests = {{30, 1}, {65, 1}}});
  for (const int32_t head_dim : {64, 80, 96, 256}) {
    SCOPED_TRACE(head_dim);
    check({.num_heads = 2, .head_dim = head_dim, .requests = {{140, 1}}});
    check({.num_heads = 1, .head_dim = head_dim, .requests = {{70, 17}}});
  }
  check({.dtype = DType::kI8, .num_heads = 1, .head_dim = 112, .requests = {{70, 17}}});
  check({.dtype = DType::kF8E4M3, .num_heads = 1, .head_dim = 240, .requests = {{100, 1}}});
}

TEST(CudaAttention, WideHeadsNarrowValuesAndSlopes) {
  for (const DType dtype : kCacheTypes) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .num_heads = 2, .head_dim = 512, .requests = {{70, 1}, {3, 2}}});
    check({dtype, 4, 2, 40, 16, 0, false, 0, false, {{75, 2}}, 24});
    check({dtype, 6, 2, 16, 16, 0, false, 0, false, {{530, 1}, {75, 4}}, 0, true});
  }
  check({.num_heads = 2, .head_dim = 264, .requests = {{600, 1}}});
  check({.num_heads = 1, .head_dim = 320, .window = 60, .requests = {{150, 17}}});
  check({.num_heads = 2, .head_dim = 192, .requests = {{520, 1}, {70, 9}}, .value_dim = 128});
  check({.num_heads = 1, .head_dim = 96, .requests = {{90, 40}, {3, 1}}, .value_dim = 48});
  check({.num_heads = 2, .soft_cap = 3, .requests = {{90, 40}}, .slopes = true});
}

TEST(CudaAttention, BlocksOfEverySize) {
  for (const int32_t block_size : {1, 4, 8, 32, 64}) {
    SCOPED_TRACE(block_size);
    for (const DType dtype : {DType::kF16, DType::kI8}) {
      check({.dtype = dtype, .block_size = block_size, .requests = {{90, 1}, {3, 2}}});
    }
  }
}

TEST(CudaAttention, PrefillsAndMixesThemWithDecodes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .requests = {{23, 23}, {40, 0}, {66, 1}, {130, 7}}});
    check({.dtype = dtype, .num_heads = 3, .requests = {{519, 12}, {2, 2}}});
  }
}

TEST(CudaAttention, AWindowStartsAtTheSameKeyAsOnTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    for (const int32_t window : {1, 64, 513}) {
      SCOPED_TRACE(window);
      check({.dtype = dtype,
             .num_heads = 2,
             .window = window,
             .requests = {{window, 1}, {window + 1, 1}, {1025, 1}}});
    }
    check({.dtype = dtype, .num_heads = 2, .window = 9, .requests = {{516, 11}, {30, 30}}});
  }
}

// One token, prompts over the border of two chunks, and chunks beyond a partition.
TEST(CudaAttention, AChunkStartsAtTheSameKeyAsOnTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const int32_t window : {48, 520}) {
      SCOPED_TRACE(window);
      check({.dtype = dtype,
             .num_heads = 2,
             .window = window,
             .is_chunked = true,
             .requests = {{window, 1}, {window + 1, 1}, {2 * window + 7, 20}, {30, 30}}});
    }
  }
}

TEST(CudaAttention, SoftCapAndSinks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .soft_cap = 2, .sinks = true, .requests = {{530, 1}, {20, 5}}});
    // A block starts inside a token.
    check({.dtype = dtype, .num_heads = 3, .sinks = true, .requests = {{40, 25}}});
    check({.dtype = dtype,
           .num_heads = 8,
           .num_kv_heads = 2,
           .window = 40,
           .sinks = true,
           .requests = {{560, 3}}});
  }
}

TEST(CudaAttention, PartitionsAndTilesEndWhereTheirLastKeyIs) {
  check({.num_heads = 2,
         .requests = {{63, 1}, {64, 1}, {65, 1}, {511, 1}, {512, 1}, {513, 1}, {1025, 1}}});
}

// Rings have as many stages as a partition has tiles, or fewer; several blocks share rows.
TEST(CudaAttention, WholePartitionsOfWideHeads) {
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_dim = 128,
           .requests = {{1100, 1}, {600, 2}}});
    check({.dtype = dtype, .num_heads = 2, .head_dim = 256, .requests = {{1030, 1}}});
  }
}

// A request's window moves over more partitions than one of its row blocks sees.
TEST(CudaAttention, RowBlocksOfALongPromptHavePartitionsOfTheirOwn) {
  std::vector<Request> requests(168, {1, 0});  // lets blocks of few rows take all of it
  requests[5] = {2340, 1340};
  const Step step({.num_heads = 2, .window = 500, .requests = requests});
  const auto split = [&] {
    test::expect_same_floats(step.launch(step.limits(), true), step.want());
  };
  test::on_schedules(split, test::Seeds::kOne);
}

// Like in a recorded step, most of the thousands of blocks have nothing to do.
TEST(CudaAttention, BlocksTakeSeveralPartitionsWhereThereAreMany) {
  std::vector<Request> requests(250, {1, 0});
  requests[77] = {3100, 1};
  requests[78] = {1500, 1};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(to_string(dtype));
    const Step step({.dtype = dtype, .num_heads = 2, .num_kv_heads = 2, .requests = requests});
    const auto split = [&] {
      test::expect_same_floats(step.launch(step.limits(), true), step.want());
    };
    test::on_schedules(split, test::Seeds::kOne);
  }
}

TEST(CudaAttention, EveryChunkingGivesTheSameRows) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    const Step step({.dtype = dtype, .num_heads = 2, .window = 520, .requests = {{535, 30}}});
    test::on_schedules([&] {
      for (const int32_t chunk : {1, 7, 30}) {
        SCOPED_TRACE(chunk);
        for (int32_t first = chunk == 1 ? 26 : 0; first < 30; first += chunk) {
          const int32_t count = std::min(chunk, 30 - first);
          const auto begin = step.want().begin() + first * step.width();
          test::expect_same_floats(step.launch_part(0, first, count),
                                   {begin, begin + count * step.width()});
        }
      }
    });
  }
}

// The definition's bits come from the copy engine and wgmma, and from mma.sync on a device without
// them. Cases: more rows than a warpgroup's 64 and a block's 128, partitions, rings that go round
// with heads of up to 64 and up to 128, whole and cut blocks at both ends of the visible keys.
TEST(CudaAttention, PromptsHaveTheSameBitsWithAndWithoutWgmma) {
  for (const Case& c : {Case{.num_heads = 2, .head_dim = 64, .requests = {{530, 70}}},
                        Case{.dtype = DType::kF16,
                        .num_heads = 2,
                        .num_kv_heads = 2,
                        .head_dim = 128,
                        .block_size = 32,
                        .requests = {{530, 66}, {20, 1}}},
                        Case{.num_heads = 2,
                        .head_dim = 80,
                        .block_size = 64,
                        .window = 40,
                        .sinks = true,
                        .requests = {{230, 30}}},
                        Case{.dtype = DType::kF16,
                        .num_heads = 3,
                        .head_dim = 24,
                        .window = 70,
                        .soft_cap = 3,
                        .requests = {{600, 9}, {9, 1}, {30, 30}}}}) {
    SCOPED_TRACE(c.head_dim);
    check(c);
    const simt::GivenDevice blackwell(100);
    if (!blackwell.is_here()) continue;
    const Step step(c);
    simt::Run run(1);
    test::expect_same_floats(step.launch(step.limits(), false), step.want());
    EXPECT_EQ(test::joined(run.take_reports()), "");
  }
}

// sm_80's tensor cores take 8 products at a time.
TEST(CudaAttention, Sm80HasBitsOfItsOwnThatNothingElseChanges) {
  for (const Case& c : {Case{.num_heads = 2, .requests = {{530, 1}}},
                        Case{.dtype = DType::kF16, .num_heads = 2, .requests = {{70, 9}}}}) {
    const Step step(c, simt::kAmpereCore);
    EXPECT_NE(step.want(), Step(c).want());
    const simt::GivenDevice device(80);
    if (!device.is_here()) GTEST_SKIP() << "the GPU is another";
    test::on_schedules([&] {
      test::expect_same_floats(step.launch(step.limits(), false), step.want());
      test::expect_same_floats(step.launch(step.limits(), true), step.want());
    });
  }
}

TEST(CudaAttention, HeadsThatDoNotFitAreRefused) {
  EXPECT_TRUE(check_attention(DeviceType::kCuda, 256, 256).has_value());
  EXPECT_TRUE(check_attention(DeviceType::kCpu, 512, 256).has_value());
  EXPECT_TRUE(check_attention(DeviceType::kCuda, 192, 128).has_value());
  EXPECT_FALSE(check_attention(DeviceType::kCuda, 128, 192).has_value());
  const Expected<void> refused = check_attention(DeviceType::kCuda, 520, 520);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("heads of 520, expected at most 512"), std::string::npos);
  const simt::GivenDevice small(89);
  EXPECT_EQ(check_attention(DeviceType::kCuda, 264, 264).has_value(), !small.is_here());
}

#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
TEST(CudaAttention, NothingIsLaunchedForNoTokens) {
  const Step step({.requests = {{40, 0}}});
  simt::Run run(0);
  test::expect_same_floats(step.launch(step.limits(), true), step.want());
  EXPECT_EQ(run.num_launches(), 0);
}
#endif

}  // namespace
}  // namespace sluice::kernels
