// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

// One request's blocks: entry i of its table, of kPerEntry tokens, is blocks[i].
struct Blocks {
  static constexpr int32_t kPerEntry = 4;

  std::vector<int32_t> table;
  std::vector<float> states;
  int64_t block_floats;

  Blocks(std::vector<int32_t> blocks, int64_t floats)
      : table(std::move(blocks)), block_floats(floats) {
    const int32_t last = *std::ranges::max_element(table);
    states.assign(static_cast<size_t>((last + 1) * floats), std::nanf(""));
  }

  [[nodiscard]] std::vector<float> block(int32_t b) const {
    const auto begin = states.begin() + b * block_floats;
    return {begin, begin + block_floats};
  }
};

// The ends of the steps in which a request of kTokens tokens runs.
constexpr int32_t kTokens = 37;
const std::vector<std::vector<int32_t>> kChunks = {
    {37}, {1, 37}, {4, 37}, {5, 9, 16, 36, 37}, {3, 8, 12, 13, 14, 15, 16, 17, 37}};

// Calls run(begin, end, table) for each step of a request.
template <typename Run>
void for_steps(const std::vector<int32_t>& ends, Blocks& blocks, const Run& run) {
  int32_t begin = 0;
  for (const int32_t end : ends) {
    const std::vector<int32_t> starts = {0, end - begin};
    const std::vector<int32_t> lens = {end};
    run(begin,
        StateTable{.states = blocks.states.data(),
                   .block_floats = blocks.block_floats,
                   .query_start_loc = starts,
                   .seq_lens = lens,
                   .block_table = blocks.table.data(),
                   .block_table_stride = static_cast<int32_t>(blocks.table.size()),
                   .tokens_per_entry = Blocks::kPerEntry});
    begin = end;
  }
}

// --- Short convolution ---------------------------------------------------------------------------

constexpr int32_t kChannels = 48;

struct Conv {
  int32_t taps;
  bool silu;
  bool gated;
  std::vector<float> weight, bias, x, gate_in, gate_out;

  Conv(int32_t t, bool s, bool g, bool has_bias) : taps(t), silu(s), gated(g) {
    Random random(static_cast<uint64_t>(t));
    weight = random.normals(static_cast<size_t>(taps) * kChannels);
    if (has_bias) bias = random.normals(kChannels);
    for (auto* rows : {&x, &gate_in, &gate_out}) *rows = random.normals(kTokens * kChannels);
  }

  std::vector<float> run(const ExecContext& ctx,
                         const std::vector<int32_t>& ends,
                         Blocks& blocks) const {
    std::vector<float> out(x.size());
    for_steps(ends, blocks, [&](int32_t begin, const StateTable& state) {
      const int64_t at = int64_t{begin} * kChannels;
      short_conv(ctx,
                 {.x = x.data() + at,
                  .gate_in = gated ? gate_in.data() + at : nullptr,
                  .gate_out = gated ? gate_out.data() + at : nullptr,
                  .x_stride = kChannels,
                  .out = out.data() + at,
                  .out_stride = kChannels,
                  .n = kChannels,
                  .taps = taps,
                  .weight = weight.data(),
                  .bias = bias.empty() ? nullptr : bias.data(),
                  .silu = silu,
                  .state = state});
    });
    return out;
  }

  // The definition in double; silu by libm.
  [[nodiscard]] double exact(int32_t t, int32_t c) const {
    const auto in = [&](int32_t token) {
      const auto at = static_cast<size_t>(token * kChannels + c);
      return token < 0 ? 0.0 : double{x[at]} * (gated ? gate_in[at] : 1.0F);
    };
    double y = bias.empty() ? 0.0 : bias[static_cast<size_t>(c)];
    for (int32_t i = 0; i < taps; ++i) {
      y += double{weight[static_cast<size_t>(i * kChannels + c)]} * in(t - taps + 1 + i);
    }
    if (silu) y /= 1 + std::exp(-y);
    return gated ? y * gate_out[static_cast<size_t>(t * kChannels + c)] : y;
  }
};

TEST(ShortConv, IsTheSumOverTheLastTokens) {
  const auto device = test::make_device("scalar", 1);
  for (const Conv& conv : {Conv(4, true, false, false), Conv(3, false, true, true)}) {
    Blocks blocks(std::vector<int32_t>(10, 0), (conv.taps - 1) * kChannels);
    const std::vector<float> out = conv.run(device->context(), {kTokens}, blocks);
    for (int32_t t = 0; t < kTokens; ++t) {
      for (int32_t c = 0; c < kChannels; ++c) {
        ASSERT_NEAR(out[static_cast<size_t>(t * kChannels + c)], conv.exact(t, c), 1e-5);
      }
    }
  }
}

TEST(ShortConv, ChunksThreadsAndInstructionSetsChangeNoBit) {
  const Conv conv(4, true, false, true);
  Blocks one(std::vector<int32_t>(10, 0), 3 * kChannels);
  const auto scalar = test::make_device("scalar", 1);
  const std::vector<float> expected = conv.run(scalar->context(), {kTokens}, one);
  for (const auto& device : test::devices({1, 2})) {
    for (const auto& ends : kChunks) {
      Blocks blocks({0, 0, 1, 1, 1, 2, 2, 3, 3, 3}, 3 * kChannels);
      const std::vector<float> out = conv.run(device.device->context(), ends, blocks);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0) << device.name;
      ASSERT_EQ(blocks.block(3), one.block(0)) << device.name;
    }
  }
}

// Behind 20, from where on torch's softplus(x) is x, and where exp(x) overflows.
constexpr float kLargeSteps[] = {-120, 15, 25, 95, 400};

// --- Delta rule ----------------------------------------------------------------------------------

constexpr int32_t kKeyHeads = 2;
constexpr int32_t kValueHeads = 6;
constexpr int32_t kKeyDim = 32;
constexpr int32_t kValueDim = 48;
constexpr int32_t kWidth = 2 * kKeyHeads * kKeyDim + kValueHeads * kValueDim;
constexpr int32_t kOutWidth = kValueHeads * kValueDim;
constexpr int64_t kStateFloats = int64_t{kValueHeads} * kKeyDim * kValueDim;
constexpr float kScale = 0.17677669F;

struct Delta {
  std::vector<float> qkv, b, a, rate, dt_bias;
  std::vector<int32_t> key_heads;
  bool decays_channels;
  int32_t num_gates;  // of a row of a; one of b is as wide
  float beta_scale;

  explicit Delta(std::vector<int32_t> heads, bool by_channel = false, float scale = 1)
      : key_heads(std::move(heads)),
        decays_channels(by_channel),
        num_gates(by_channel ? kValueHeads * kKeyDim : kValueHeads),
        beta_scale(scale) {
    Random random(11);
    qkv = random.normals(kTokens * kWidth);
    b = random.normals(static_cast<size_t>(kTokens * num_gates));
    a = random.normals(static_cast<size_t>(kTokens * num_gates));
    dt_bias = random.normals(static_cast<size_t>(num_gates));
    for (int32_t i = 0; i < kValueHeads; ++i) rate.push_back(-0.1F - random.uniform());
  }

  [[nodiscard]] Delta with_large_steps() const {
    Delta large = *this;
    for (size_t i = 0; i < a.size(); ++i) large.a[i] = kLargeSteps[i % 5];
    for (float& value : large.rate) value *= 0.01F;  // or nothing would be left
    return large;
  }

  std::vector<float> run(const ExecContext& ctx,
                         const std::vector<int32_t>& ends,
                         Blocks& blocks) const {
    std::vector<float> out(kTokens * kOutWidth);
    std::vector<float> rows = qkv;  // overwritten
    std::vector<float> beta = b;
    std::vector<float> decay = a;
    int32_t begun = 0;
    for_steps(ends, blocks, [&](int32_t begin, const StateTable& state) {
      float* const at = rows.data() + int64_t{begin} * kWidth;
      const int32_t num_rows = state.seq_lens[0] - begin;
      delta_rule(ctx,
                 {.q = at,
                  .k = at + kKeyHeads * kKeyDim,
                  .v = at + 2 * kKeyHeads * kKeyDim,
                  .qkv_stride = kWidth,
                  .b = beta.data() + begin * num_gates,
                  .a = decay.data() + begin * num_gates,
                  .gate_stride = num_gates,
                  .rate = rate.data(),
                  .dt_bias = dt_bias.data(),
                  .decays_channels = decays_channels,
                  .key_heads = key_heads,
                  .num_rows = num_rows,
                  .num_key_heads = kKeyHeads,
                  .key_dim = kKeyDim,
                  .value_dim = kValueDim,
                  .scale = kScale,
                  .beta_scale = beta_scale,
                  .out = out.data() + int64_t{begin} * kOutWidth,
                  .out_stride = kOutWidth,
                  .state = state});
      begun += num_rows;
    });
    EXPECT_EQ(begun, kTokens);
    return out;
  }

  // The definition in double, by libm.
  [[nodiscard]] std::vector<double> exact() const {
    std::vector<double> out(kTokens * kOutWidth);
    for (int32_t h = 0; h < kValueHeads; ++h) {
      std::vector<double> state(kKeyDim * kValueDim);
      for (int32_t t = 0; t < kTokens; ++t) step(t, h, state, out);
    }
    return out;
  }

  void step(int32_t t, int32_t h, std::vector<double>& state, std::vector<double>& out) const {
    const float* const row = qkv.data() + t * kWidth;
    const int32_t key = key_heads[static_cast<size_t>(h)] * kKeyDim;
    const auto unit = [](const float* x) {
      double sum = 1e-6;
      for (int32_t i = 0; i < kKeyDim; ++i) sum += double{x[i]} * x[i];
      std::vector<double> y(x, x + kKeyDim);
      for (double& value : y) value /= std::sqrt(sum);
      return y;
    };
    const std::vector<double> q = unit(row + key);
    const std::vector<double> k = unit(row + kKeyHeads * kKeyDim + key);
    const float* const v = row + 2 * kKeyHeads * kKeyDim + h * kValueDim;
    const double beta =
        beta_scale / (1 + std::exp(-double{b[static_cast<size_t>(t * num_gates + h)]}));
    std::vector<double> decay(kKeyDim);
    for (int32_t i = 0; i < kKeyDim; ++i) {
      const int32_t gate = decays_channels ? h * kKeyDim + i : h;
      const double x =
          double{a[static_cast<size_t>(t * num_gates + gate)]} + dt_bias[static_cast<size_t>(gate)];
      decay[static_cast<size_t>(i)] =
          std::exp(rate[static_cast<size_t>(h)] * std::log1p(std::exp(x)));
    }
    for (int32_t j = 0; j < kValueDim; ++j) {
      const auto at = [&](int32_t i) -> double& {
        return state[static_cast<size_t>(i * kValueDim + j)];
      };
      double m = 0;
      for (int32_t i = 0; i < kKeyDim; ++i) {
        const auto of_key = static_cast<size_t>(i);
        m += k[of_key] * (at(i) *= decay[of_key]);
      }
      const double d = beta * (v[j] - m);
      double o = 0;
      for (int32_t i = 0; i < kKeyDim; ++i) {
        at(i) += k[static_cast<size_t>(i)] * d;
        o += q[static_cast<size_t>(i)] * at(i);
      }
      out[static_cast<size_t>(t * kOutWidth + h * kValueDim + j)] = o * kScale;
    }
  }
};

const std::vector<int32_t> kGrouped = {0, 0, 0, 1, 1, 1};
const std::vector<int32_t> kTiled = {0, 1, 0, 1, 0, 1};

TEST(DeltaRule, IsTheRecurrenceInEitherOrderOfHeads) {
  const auto device = test::make_device("scalar", 1);
  for (const Delta& delta : {Delta(kGrouped),
                             Delta(kTiled),
                             Delta(kGrouped, false, 2),
                             Delta(kGrouped, true),
                             Delta(kTiled, true, 2),
                             Delta(kGrouped).with_large_steps(),
                             Delta(kGrouped, true).with_large_steps()}) {
    Blocks blocks(std::vector<int32_t>(10, 0), kStateFloats);
    const std::vector<float> out = delta.run(device->context(), {kTokens}, blocks);
    const std::vector<double> exact = delta.exact();
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], exact[i], 2e-6) << i;
  }
}

TEST(DeltaRule, ChunksThreadsAndInstructionSetsChangeNoBit) {
  const auto scalar = test::make_device("scalar", 1);
  for (const Delta& delta : {Delta(kGrouped, false, 2), Delta(kGrouped, true)}) {
    Blocks one(std::vector<int32_t>(10, 0), kStateFloats);
    const std::vector<float> expected = delta.run(scalar->context(), {kTokens}, one);
    for (const auto& device : test::devices({1, 2})) {
      for (const auto& ends : kChunks) {
        Blocks blocks({0, 0, 1, 1, 1, 2, 2, 3, 3, 3}, kStateFloats);
        const std::vector<float> out = delta.run(device.device->context(), ends, blocks);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0) << device.name;
        ASSERT_EQ(blocks.block(3), one.block(0)) << device.name;
      }
    }
  }
}

// A block that the next entry does not name keeps the state at its end, and a request that begins
// there goes on as if it had computed what is before.
TEST(DeltaRule, ASnapshotHasTheBitsOfTheRunningState) {
  const Delta delta(kGrouped);
  const auto device = test::make_device("scalar", 1);
  Blocks blocks({0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, kStateFloats);
  const std::vector<float> whole = delta.run(device->context(), {kTokens}, blocks);
  Blocks short_run({0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, kStateFloats);
  std::vector<float> cut = delta.run(device->context(), {8, kTokens}, short_run);
  EXPECT_EQ(blocks.block(0), short_run.block(0));
  EXPECT_EQ(blocks.block(1), short_run.block(1));
  EXPECT_NE(blocks.block(0), blocks.block(1));
  EXPECT_EQ(whole, cut);
}

TEST(DeltaRule, RequestsOfAStepDoNotSeeEachOther) {
  const Delta delta(kGrouped);
  for (const auto& device : test::devices({2})) {
    Blocks alone(std::vector<int32_t>(10, 0), kStateFloats);
    const std::vector<float> expected = delta.run(device.device->context(), {20, kTokens}, alone);
    // The first 20 tokens twice and, between them, a request without rows in this step.
    Blocks blocks({0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1}, kStateFloats);
    const std::vector<int32_t> starts = {0, 20, 20, 40};
    const std::vector<int32_t> lens = {20, 0, 20};
    const auto twice = [](const std::vector<float>& rows, int32_t width) {
      std::vector<float> both(rows.begin(), rows.begin() + 20 * width);
      both.insert(both.end(), rows.begin(), rows.begin() + 20 * width);
      return both;
    };
    std::vector<float> qkv = twice(delta.qkv, kWidth);
    std::vector<float> b = twice(delta.b, kValueHeads);
    std::vector<float> a = twice(delta.a, kValueHeads);
    std::vector<float> out(40 * kOutWidth);
    delta_rule(device.device->context(),
               {.q = qkv.data(),
                .k = qkv.data() + kKeyHeads * kKeyDim,
                .v = qkv.data() + 2 * kKeyHeads * kKeyDim,
                .qkv_stride = kWidth,
                .b = b.data(),
                .a = a.data(),
                .gate_stride = kValueHeads,
                .rate = delta.rate.data(),
                .dt_bias = delta.dt_bias.data(),
                .key_heads = delta.key_heads,
                .num_rows = 40,
                .num_key_heads = kKeyHeads,
                .key_dim = kKeyDim,
                .value_dim = kValueDim,
                .scale = kScale,
                .out = out.data(),
                .out_stride = kOutWidth,
                .state = {.states = blocks.states.data(),
                          .block_floats = kStateFloats,
                          .query_start_loc = starts,
                          .seq_lens = lens,
                          .block_table = blocks.table.data(),
                          .block_table_stride = 5,
                          .tokens_per_entry = Blocks::kPerEntry}});
    const size_t half = 20 * kOutWidth * sizeof(float);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), half), 0) << device.name;
    EXPECT_EQ(std::memcmp(out.data() + 20 * kOutWidth, expected.data(), half), 0) << device.name;
    EXPECT_EQ(blocks.block(0), blocks.block(1));
    EXPECT_TRUE(std::isnan(blocks.block(2)[0]));
  }
}

// --- Drafts --------------------------------------------------------------------------------------

// A request whose steps after its prompt are a token and drafts, of which some are accepted.
struct Drafted {
  static constexpr int32_t kMostDrafts = 3;

  const Conv& conv;
  const ExecContext& ctx;
  Blocks states{{0, 0, 1, 1, 1, 2, 2, 3, 3, 3}, 3 * kChannels};
  Blocks kept{states.table, kMostDrafts* kChannels};
  int32_t num_replayed = 0;

  // Runs the rows in front of `end` and behind `begin`, the last `drafts` of which are drafts that
  // are right up to `accepted`. Returns the outputs of this step's rows.
  std::vector<float> run(int32_t begin, int32_t end, int32_t drafts, int32_t accepted) {
    const int32_t num_rows = end - begin;
    const auto first = conv.x.begin() + begin * kChannels;
    std::vector<float> rows(first, first + num_rows * kChannels);
    std::fill_n(
        rows.end() - (drafts - accepted) * kChannels, (drafts - accepted) * kChannels, 9.0F);
    rows.resize(static_cast<size_t>(num_rows + num_replayed) * kChannels, std::nanf(""));
    const std::vector<int32_t> starts = {0, num_rows};
    const std::vector<int32_t> lens = {end};
    const std::vector<int32_t> replays = {0, num_replayed};
    const std::vector<int32_t> num_drafts = {drafts};
    const auto table = [&](Blocks& blocks) {
      return StateTable{.states = blocks.states.data(),
                        .block_floats = blocks.block_floats,
                        .query_start_loc = starts,
                        .seq_lens = lens,
                        .block_table = blocks.table.data(),
                        .block_table_stride = static_cast<int32_t>(blocks.table.size()),
                        .tokens_per_entry = Blocks::kPerEntry,
                        .replay_start_loc = replays,
                        .num_drafts = num_drafts};
    };
    replay_rows(ctx,
                {.rows = rows.data(),
                 .row_stride = kChannels,
                 .columns = {{0, 16}, {16, kChannels - 16}},
                 .kept = table(kept)});
    short_conv(ctx,
               {.x = rows.data(),
                .x_stride = kChannels,
                .out = rows.data(),
                .out_stride = kChannels,
                .n = kChannels,
                .taps = conv.taps,
                .weight = conv.weight.data(),
                .bias = conv.bias.data(),
                .silu = conv.silu,
                .state = table(states)});
    num_replayed = accepted;
    rows.resize(static_cast<size_t>(num_rows) * kChannels);
    return rows;
  }
};

TEST(ReplayRows, DraftsLeaveTheBitsOfWhatWasAccepted) {
  const Conv conv(4, true, false, true);
  const auto scalar = test::make_device("scalar", 1);
  Blocks one({0, 0, 1, 1, 1, 2, 2, 3, 3, 3}, 3 * kChannels);
  const std::vector<float> expected = conv.run(scalar->context(), {kTokens}, one);
  for (const auto& device : test::devices({1})) {
    for (int32_t seed = 0; seed < 8; ++seed) {
      Random random(static_cast<uint64_t>(seed));
      Drafted drafted{.conv = conv, .ctx = device.device->context()};
      int32_t begin = 6;
      drafted.run(0, begin, 0, 0);
      while (begin < kTokens) {
        const int32_t sure = begin + 1;
        const int32_t in_entry = Blocks::kPerEntry - sure % Blocks::kPerEntry - 1;
        const int32_t drafts = std::min(in_entry, kTokens - sure);
        const auto accepted = std::min(
            drafts, static_cast<int32_t>(random.uniform() * static_cast<float>(drafts + 1)));
        const std::vector<float> out = drafted.run(begin, sure + drafts, drafts, accepted);
        const size_t right = static_cast<size_t>(1 + accepted) * kChannels * sizeof(float);
        ASSERT_EQ(std::memcmp(out.data(), expected.data() + begin * kChannels, right), 0)
            << device.name << " at " << begin;
        begin = sure + accepted;
      }
      for (const int32_t snapshot : {0, 1, 2}) {
        ASSERT_EQ(drafted.states.block(snapshot), one.block(snapshot)) << device.name;
      }
    }
  }
}

// --- Mamba-2 -------------------------------------------------------------------------------------

constexpr int32_t kHeads = 18;  // more than 16, in pairs by group
constexpr int32_t kGroups = 9;
constexpr int32_t kStateDim = 48;
constexpr int32_t kHeadDim = 32;
constexpr int32_t kInner = kHeads * kHeadDim;
constexpr int32_t kMambaWidth = kInner + 2 * kGroups * kStateDim;
constexpr int64_t kMambaFloats = int64_t{kHeads} * kStateDim * kHeadDim;

struct Mamba {
  std::vector<float> xbc, dt, rate, dt_bias, skip;
  float min_step = 0.3F;  // both limits are met
  float max_step = 1.4F;

  Mamba() {
    Random random(12);
    xbc = random.normals(kTokens * kMambaWidth);
    dt = random.normals(kTokens * kHeads);
    dt_bias = random.normals(kHeads);
    skip = random.normals(kHeads);
    for (int32_t i = 0; i < kHeads; ++i) rate.push_back(-0.1F - random.uniform());
  }

  std::vector<float> run(const ExecContext& ctx,
                         const std::vector<int32_t>& ends,
                         Blocks& blocks) const {
    std::vector<float> out(kTokens * kInner);
    std::vector<float> steps = dt;  // overwritten
    std::vector<float> decay(dt.size());
    for_steps(ends, blocks, [&](int32_t begin, const StateTable& state) {
      const float* const at = xbc.data() + int64_t{begin} * kMambaWidth;
      mamba2(ctx,
             {.x = at,
              .b = at + kInner,
              .c = at + kInner + kGroups * kStateDim,
              .row_stride = kMambaWidth,
              .dt = steps.data() + begin * kHeads,
              .decay = decay.data() + begin * kHeads,
              .step_stride = kHeads,
              .rate = rate.data(),
              .dt_bias = dt_bias.data(),
              .skip = skip.data(),
              .min_step = min_step,
              .max_step = max_step,
              .num_rows = state.seq_lens[0] - begin,
              .num_heads = kHeads,
              .num_groups = kGroups,
              .state_dim = kStateDim,
              .head_dim = kHeadDim,
              .out = out.data() + int64_t{begin} * kInner,
              .out_stride = kInner,
              .state = state});
    });
    return out;
  }

  // The definition in double, by libm.
  [[nodiscard]] std::vector<double> exact() const {
    std::vector<double> out(kTokens * kInner);
    for (int32_t h = 0; h < kHeads; ++h) {
      std::vector<double> state(kStateDim * kHeadDim);
      for (int32_t t = 0; t < kTokens; ++t) advance(t, h, state, out);
    }
    return out;
  }

  void advance(int32_t t, int32_t h, std::vector<double>& state, std::vector<double>& out) const {
    const auto head = static_cast<size_t>(h);
    const float* const x = xbc.data() + t * kMambaWidth + h * kHeadDim;
    const int32_t group = h / (kHeads / kGroups);
    const float* const b = xbc.data() + t * kMambaWidth + kInner + group * kStateDim;
    const float* const c = b + kGroups * kStateDim;
    const double raw = double{dt[static_cast<size_t>(t * kHeads + h)]} + dt_bias[head];
    const double step = std::clamp(std::log1p(std::exp(raw)), double{min_step}, double{max_step});
    const double decay = std::exp(rate[head] * step);
    for (int32_t p = 0; p < kHeadDim; ++p) {
      double y = double{skip[head]} * x[p];
      for (int32_t n = 0; n < kStateDim; ++n) {
        double& s = state[static_cast<size_t>(n * kHeadDim + p)];
        s = decay * s + step * x[p] * b[n];
        y += c[n] * s;
      }
      out[static_cast<size_t>(t * kInner + h * kHeadDim + p)] = y;
    }
  }
};

TEST(Mamba2, IsTheRecurrenceOfEachHeadWithItsGroup) {
  const auto device = test::make_device("scalar", 1);
  Mamba large;
  large.max_step = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < large.dt.size(); ++i) large.dt[i] = kLargeSteps[i % 5];
  // Large steps make large states, whose differences are rounded more coarsely.
  for (const auto& [mamba, most] : {std::pair(Mamba(), 2e-5), std::pair(large, 1e-4)}) {
    Blocks blocks(std::vector<int32_t>(10, 0), kMambaFloats);
    const std::vector<float> out = mamba.run(device->context(), {kTokens}, blocks);
    const std::vector<double> exact = mamba.exact();
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], exact[i], most * (1 + std::abs(exact[i]))) << i;
    }
  }
}

TEST(Mamba2, ChunksThreadsAndInstructionSetsChangeNoBit) {
  const Mamba mamba;
  Blocks one(std::vector<int32_t>(10, 0), kMambaFloats);
  const auto scalar = test::make_device("scalar", 1);
  const std::vector<float> expected = mamba.run(scalar->context(), {kTokens}, one);
  for (const auto& device : test::devices({1, 2})) {
    for (const auto& ends : kChunks) {
      Blocks blocks({0, 0, 1, 1, 1, 2, 2, 3, 3, 3}, kMambaFloats);
      const std::vector<float> out = mamba.run(device.device->context(), ends, blocks);
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * 4), 0) << device.name;
      ASSERT_EQ(blocks.block(3), one.block(0)) << device.name;
    }
  }
}

TEST(Mamba2, ASnapshotHasTheBitsOfTheRunningState) {
  const Mamba mamba;
  const auto device = test::make_device("scalar", 1);
  const std::vector<int32_t> table = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  Blocks blocks(table, kMambaFloats);
  const std::vector<float> whole = mamba.run(device->context(), {kTokens}, blocks);
  Blocks cut(table, kMambaFloats);
  EXPECT_EQ(mamba.run(device->context(), {8, kTokens}, cut), whole);
  EXPECT_EQ(blocks.block(0), cut.block(0));
  EXPECT_EQ(blocks.block(1), cut.block(1));
  EXPECT_NE(blocks.block(0), blocks.block(1));
}

}  // namespace
}  // namespace sluice::kernels
