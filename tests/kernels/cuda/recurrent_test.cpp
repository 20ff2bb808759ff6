// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A step of five requests: a prompt that leaves a snapshot, a token behind a running state, no row,
// drafts behind rows that are replayed, and a prompt behind a snapshot.
struct Step {
  static constexpr int32_t kBlocks = 7;
  static constexpr int32_t kStride = 6;
  std::vector<int32_t> starts = {0, 19, 20, 20, 25, 27};
  std::vector<int32_t> lens = {19, 10, 0, 13, 6};
  std::vector<int32_t> replays = {0, 0, 0, 0, 3, 3};
  std::vector<int32_t> drafts = {0, 0, 0, 2, 0};
  std::vector<int32_t> table = {5,  5,  0,  0,  0, -1, -1, -1, 1,  -1, -1, -1, -9, -9, -9,
                                -9, -9, -9, -1, 2, 2,  2,  -1, -1, 6,  3,  -1, -1, -1, -1};
  bool has_drafts = true;

  [[nodiscard]] int32_t num_rows() const { return starts.back() + (has_drafts ? 3 : 0); }

  [[nodiscard]] StateTable states(std::vector<float>& at) const {
    StateTable states{.states = at.data(),
                      .block_floats = static_cast<int64_t>(at.size()) / kBlocks,
                      .query_start_loc = starts,
                      .seq_lens = lens,
                      .block_table = table.data(),
                      .block_table_stride = kStride,
                      .tokens_per_entry = 4};
    if (has_drafts) {
      states.replay_start_loc = replays;
      states.num_drafts = drafts;
    }
    return states;
  }
};

// Runs an operator on both devices; both leave the same values in all buffers.
template <typename MakeArgs, typename OnCpu, typename OnCuda>
void expect_same_buffers(const std::vector<std::vector<float>>& buffers,
                         const MakeArgs& args,
                         OnCpu on_cpu,
                         OnCuda on_cuda,
                         test::Seeds seeds = test::Seeds::kAll) {
  std::vector<std::vector<float>> want = buffers;
  on_cpu(test::make_device("scalar", 1)->context(), args(want));
  test::on_schedules(
      [&] {
        std::vector<std::vector<float>> got = buffers;
        on_cuda(nullptr, args(got));
        for (size_t i = 0; i < got.size(); ++i) {
          SCOPED_TRACE("buffer " + std::to_string(i));
          test::expect_same_floats(got[i], want[i]);
        }
      },
      seeds);
}

void expect_convolved(int32_t taps, bool silu, bool gated, bool has_bias, bool has_drafts) {
  SCOPED_TRACE(std::to_string(taps) + " taps");
  constexpr int32_t kN = 144;  // a block of threads and a bit
  constexpr int64_t kWidth = 3 * kN + 5;
  Step step;
  step.has_drafts = has_drafts;
  Random random(static_cast<uint64_t>(taps));
  const std::vector<float> weight = random.normals(static_cast<size_t>(taps * kN));
  const std::vector<float> bias = random.normals(kN);
  std::vector<float> rows = random.normals(static_cast<size_t>(step.num_rows() * kWidth), 3);
  rows[static_cast<size_t>(20 * kWidth + 7)] = kNaN;
  rows[static_cast<size_t>(3 * kWidth + 11)] = std::numeric_limits<float>::infinity();
  const std::vector<float> states =
      random.normals(static_cast<size_t>(Step::kBlocks * (taps - 1) * kN));
  expect_same_buffers(
      {rows, states},
      [&](auto& buffers) {
        float* const x = buffers[0].data();
        return ShortConvArgs{.x = x,
                             .gate_in = gated ? x + kN : nullptr,
                             .gate_out = gated ? x + 2 * kN : nullptr,
                             .x_stride = kWidth,
                             .out = x,
                             .out_stride = kWidth,
                             .n = kN,
                             .taps = taps,
                             .weight = weight.data(),
                             .bias = has_bias ? bias.data() : nullptr,
                             .silu = silu,
                             .state = step.states(buffers[1])};
      },
      short_conv,
      cuda::launch_short_conv);
}

TEST(CudaRecurrent, ShortConvolutionsHaveTheBitsOfTheCpu) {
  expect_convolved(4, true, false, false, true);
  expect_convolved(3, false, true, true, true);
  expect_convolved(2, false, false, true, false);
  expect_convolved(8, true, true, false, false);
}

struct DeltaShape {
  int32_t key_dim;
  int32_t value_dim;
  std::vector<int32_t> key_heads;  // of two
  bool decays_channels;
  bool has_drafts;
};

void expect_delta(const DeltaShape& shape, test::Seeds seeds) {
  SCOPED_TRACE("keys of " + std::to_string(shape.key_dim));
  constexpr int32_t kKeyHeads = 2;
  const auto heads = static_cast<int32_t>(shape.key_heads.size());
  const int32_t keys = kKeyHeads * shape.key_dim;
  const int32_t values = heads * shape.value_dim;
  const int32_t gates = heads * (shape.decays_channels ? shape.key_dim : 1);
  const int64_t width = 2 * keys + 2 * values + heads + gates + 3;
  Step step;
  step.has_drafts = shape.has_drafts;
  Random random(static_cast<uint64_t>(shape.key_dim));
  std::vector<float> rows = random.normals(static_cast<size_t>(step.num_rows() * width), 2);
  const auto at = [&](int64_t row, int64_t column) -> float& {
    return rows[static_cast<size_t>(row * width + column)];
  };
  const int32_t first_gate = 2 * keys + values;
  for (int64_t i = 0; i < keys; ++i) at(2, i) = 0;  // queries without a direction
  at(26, 2 * keys + 1) = kNaN;
  at(4, first_gate) = 200;
  at(5, first_gate) = -200;
  at(6, first_gate + heads) = 200;
  at(7, first_gate + heads) = -200;
  const std::vector<float> dt_bias = random.normals(static_cast<size_t>(gates));
  std::vector<float> rate;
  for (int32_t i = 0; i < heads; ++i) rate.push_back(-0.1F - random.uniform());
  const std::vector<float> states =
      random.normals(static_cast<size_t>(Step::kBlocks * values * shape.key_dim));
  expect_same_buffers(
      {rows, states},
      [&](auto& buffers) {
        float* const q = buffers[0].data();
        return DeltaRuleArgs{.q = q,
                             .k = q + keys,
                             .v = q + 2 * keys,
                             .qkv_stride = width,
                             .b = q + first_gate,
                             .a = q + first_gate + heads,
                             .gate_stride = width,
                             .rate = rate.data(),
                             .dt_bias = dt_bias.data(),
                             .decays_channels = shape.decays_channels,
                             .key_heads = shape.key_heads,
                             .num_rows = step.num_rows(),
                             .num_key_heads = kKeyHeads,
                             .key_dim = shape.key_dim,
                             .value_dim = shape.value_dim,
                             .scale = 0.17F,
                             .beta_scale = 2,
                             .out = q + first_gate + heads + gates,
                             .out_stride = width,
                             .state = step.states(buffers[1])};
      },
      delta_rule,
      cuda::launch_delta_rule,
      seeds);
}

// Heads fill all of a thread's rows, or leave some empty.
TEST(CudaRecurrent, DeltaRulesHaveTheBitsOfTheCpu) {
  expect_delta({48, 32, {1, 0, 1}, false, true}, test::Seeds::kAll);
  expect_delta({32, 16, {0, 1}, true, false}, test::Seeds::kAll);
  expect_delta({128, 16, {1}, false, false}, test::Seeds::kOne);
  expect_delta({112, 16, {1}, true, true}, test::Seeds::kOne);
  expect_delta({144, 16, {0}, false, true}, test::Seeds::kOne);
  expect_delta({256, 16, {1}, true, false}, test::Seeds::kOne);
}

void expect_mamba(int32_t heads, int32_t groups, int32_t state_dim, int32_t head_dim, bool drafts) {
  SCOPED_TRACE("states of " + std::to_string(state_dim));
  const int32_t inner = heads * head_dim;
  const int64_t width = 2 * inner + 2 * groups * state_dim + 2 * heads + 3;
  Step step;
  step.has_drafts = drafts;
  Random random(static_cast<uint64_t>(state_dim));
  std::vector<float> rows = random.normals(static_cast<size_t>(step.num_rows() * width), 2);
  const int32_t dt = inner + 2 * groups * state_dim;
  rows[static_cast<size_t>(19 * width + 1)] = kNaN;
  rows[static_cast<size_t>(25 * width + dt)] = kNaN;
  rows[static_cast<size_t>(3 * width + dt)] = 300;
  rows[static_cast<size_t>(4 * width + dt)] = -300;
  const std::vector<float> dt_bias = random.normals(static_cast<size_t>(heads));
  const std::vector<float> skip = random.normals(static_cast<size_t>(heads));
  std::vector<float> rate;
  for (int32_t i = 0; i < heads; ++i) rate.push_back(-0.1F - random.uniform());
  const std::vector<float> states =
      random.normals(static_cast<size_t>(Step::kBlocks * inner * state_dim));
  expect_same_buffers(
      {rows, states},
      [&](auto& buffers) {
        float* const x = buffers[0].data();
        return Mamba2Args{.x = x,
                          .b = x + inner,
                          .c = x + inner + groups * state_dim,
                          .row_stride = width,
                          .dt = x + dt,
                          .decay = x + dt + heads,
                          .step_stride = width,
                          .rate = rate.data(),
                          .dt_bias = dt_bias.data(),
                          .skip = skip.data(),
                          .min_step = 0.3F,
                          .max_step = drafts ? 1.4F : std::numeric_limits<float>::infinity(),
                          .num_rows = step.num_rows(),
                          .num_heads = heads,
                          .num_groups = groups,
                          .state_dim = state_dim,
                          .head_dim = head_dim,
                          .out = x + dt + 2 * heads,
                          .out_stride = width,
                          .state = step.states(buffers[1])};
      },
      mamba2,
      cuda::launch_mamba2);
}

TEST(CudaRecurrent, Mamba2HasTheBitsOfTheCpu) {
  expect_mamba(6, 2, 48, 16, true);
  expect_mamba(2, 1, 128, 32, false);
  expect_mamba(1, 1, 208, 16, true);
}

TEST(CudaRecurrent, ReplayedRowsAndKeptDraftsHaveTheBytesOfTheCpu) {
  constexpr int32_t kMostDrafts = 3;
  constexpr int64_t kWidth = 301;
  constexpr std::array<ReplayRowsArgs::Columns, 2> kColumns = {{{2, 140}, {150, 51}}};
  const Step step;
  Random random(5);
  const std::vector<float> rows = random.normals(static_cast<size_t>(step.num_rows() * kWidth));
  const std::vector<float> kept = random.normals(Step::kBlocks * kMostDrafts * 191);
  expect_same_buffers(
      {rows, kept},
      [&](auto& buffers) {
        return ReplayRowsArgs{.rows = buffers[0].data(),
                              .row_stride = kWidth,
                              .columns = {kColumns[0], kColumns[1]},
                              .kept = step.states(buffers[1])};
      },
      replay_rows,
      cuda::launch_replay_rows);
}

// A rank's heads are some of one group and all of another.
TEST(CudaRecurrent, GatedNormsOfGroupsHaveTheBitsOfTheCpu) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 5;
  constexpr int32_t kFirst = 3;
  constexpr int32_t kWhole = 12;
  constexpr int32_t kGroups = 3;
  for (const int32_t n : {40, 16}) {
    SCOPED_TRACE("heads of " + std::to_string(n));
    const int64_t stride = align_up(kHeads * n, kQuantGroup) + 4;
    Random random(static_cast<uint64_t>(n));
    std::vector<float> x = random.normals(static_cast<size_t>(kRows * stride), 2);
    x[static_cast<size_t>(stride + 1)] = kNaN;
    const std::vector<float> gate = random.normals(static_cast<size_t>(kRows * stride), 3);
    const std::vector<float> weight = random.normals(static_cast<size_t>(kHeads * n));
    std::vector<float> others = random.normals(kRows * kWhole, 100);
    for (float& value : others) value = std::fabs(value);
    const auto run = [&](auto& buffers, const auto& squares, const auto& norm) {
      squares({.x = buffers[0].data(),
               .x_stride = stride,
               .gate = gate.data(),
               .gate_stride = stride,
               .num_rows = kRows,
               .num_heads = kHeads,
               .n = n,
               .sums = buffers[1].data(),
               .first = kFirst,
               .whole = kWhole});
      norm({.x = buffers[0].data(),
            .x_stride = stride,
            .num_rows = kRows,
            .num_heads = kHeads,
            .n = n,
            .parts = {buffers[1].data(), others.data()},
            .num_parts = 2,
            .first = kFirst,
            .whole = kWhole,
            .num_groups = kGroups,
            .weight = weight.data(),
            .eps = 1e-5F});
      // What is beyond a row's width is nobody's.
      for (int64_t row = 0; row < kRows; ++row) {
        const auto begin = buffers[0].begin() + row * stride;
        std::fill(begin + kHeads * n, begin + stride, 0.0F);
      }
    };
    const auto cpu = test::make_device("scalar", 1);
    std::vector<std::vector<float>> want = {x, std::vector<float>(kRows * kWhole, -1)};
    run(
        want,
        [&](const GatedSquaresArgs& args) { gated_squares(cpu->context(), args); },
        [&](const GroupNormArgs& args) { group_norm(cpu->context(), args); });
    test::on_schedules([&] {
      std::vector<std::vector<float>> got = {x, std::vector<float>(kRows * kWhole, -1)};
      run(
          got,
          [](const GatedSquaresArgs& args) { cuda::launch_gated_squares(nullptr, args); },
          [](const GroupNormArgs& args) { cuda::launch_group_norm(nullptr, args); });
      test::expect_same_floats(got[0], want[0]);
      test::expect_same_floats(got[1], want[1]);
    });
  }
}

}  // namespace
}  // namespace sluice::kernels
