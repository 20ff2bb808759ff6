// SPDX-License-Identifier: Apache-2.0
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

constexpr TokenId kPoison = 12345;

// Rows with their own room for other tokens' log-probabilities, and poison in every result.
struct Rows {
  explicit Rows(const std::vector<SampleRow>& asked) : rows(asked), scores(asked.size()) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].choose) rows[i].token = kPoison;
      rows[i].logprob = -123;
      scores[i].resize(static_cast<size_t>(std::max(rows[i].num_logprobs, 0)), {kPoison, -123});
      rows[i].top_logprobs = scores[i];
    }
  }

  std::vector<SampleRow> rows;
  std::vector<std::vector<TokenScore>> scores;
};

void expect_same(const Rows& got, const Rows& want) {
  for (size_t i = 0; i < want.rows.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    ASSERT_EQ(got.rows[i].token, want.rows[i].token);
    ASSERT_EQ(got.rows[i].finite, want.rows[i].finite);
    ASSERT_EQ(std::bit_cast<uint32_t>(got.rows[i].logprob),
              std::bit_cast<uint32_t>(want.rows[i].logprob));
    for (size_t j = 0; j < want.scores[i].size(); ++j) {
      ASSERT_EQ(got.scores[i][j].token, want.scores[i][j].token) << "place " << j;
      ASSERT_EQ(std::bit_cast<uint32_t>(got.scores[i][j].logprob),
                std::bit_cast<uint32_t>(want.scores[i][j].logprob))
          << "place " << j;
    }
  }
}

// Compares the rows' results on the CPU and under the shim.
void check(const std::vector<SampleRow>& asked,
           int32_t vocab_size,
           test::Seeds seeds = test::Seeds::kAll) {
  Rows want(asked);
  std::vector<std::byte> workspace(static_cast<size_t>(sampling_workspace_bytes(vocab_size, 1)));
  std::vector<TokenId> chosen(asked.size() + 1, kPoison);
  sample(test::make_device("scalar", 1)->context(),
         {.rows = want.rows,
          .vocab_size = vocab_size,
          .workspace = workspace,
          .chosen = chosen.data()});
  test::DeviceBytes room(
      cuda::sampling_workspace_bytes(vocab_size, static_cast<int64_t>(asked.size())));
  test::on_schedules(
      [&] {
        Rows got(asked);
        std::vector<TokenId> also(asked.size() + 1, kPoison);
        room.poison();
        cuda::launch_sample(nullptr,
                            {.rows = got.rows,
                             .vocab_size = vocab_size,
                             .workspace = {room.data(), room.size()},
                             .chosen = also.data()});
        expect_same(got, want);
        ASSERT_EQ(also, chosen);
      },
      seeds);
}

TEST(CudaSampling, ChoosesTheTokensOfTheCpu) {
  Random random(81);
  for (const int32_t n : {1, 15, 64, 333, 5000}) {
    SCOPED_TRACE(n);
    const std::vector<float> logits = random.normals(static_cast<size_t>(n), 4);
    std::vector<uint32_t> mask(static_cast<size_t>(ceil_div(n, 32)));
    for (uint32_t& word : mask) word = random.bits();
    mask[0] |= 3;
    if (n > 1) {  // the likeliest may not be chosen, and still counts for log-probabilities
      const auto best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
      mask[best / 32] &= ~(1U << best % 32);
    }
    std::vector<SampleRow> rows;
    for (const float temperature : {0.0F, 0.3F, 1.0F, 30.0F}) {
      for (const bool masked : {false, true}) {
        rows.push_back({.logits = logits.data(),
                        .allowed_mask = masked ? mask.data() : nullptr,
                        .temperature = temperature,
                        .seed = uint64_t{random.bits()} << 32 | random.bits(),
                        .position = int64_t{random.bits()} << 8,
                        .num_logprobs = masked ? 0 : -1});
      }
    }
    check(rows, n, test::Seeds::kOne);
    if (n == 333) check({rows[1], rows[2], rows[5]}, n);
  }
}

TEST(CudaSampling, PendingTokensAreTakenFromWhatWasChosen) {
  constexpr int32_t kPending = 300;  // more than a block
  constexpr int32_t kVocab = 43;
  const std::vector<TokenId> chosen = {42, 43, -1};  // two ids that are no tokens
  std::vector<PendingToken> pending(kPending);
  std::vector<TokenId> want(2 * kPending, kPoison);
  for (int32_t i = 0; i < kPending; ++i) {
    pending[static_cast<size_t>(i)] = {.row = 2 * i + 1, .from = i % 3};
    const TokenId token = chosen[static_cast<size_t>(i % 3)];
    want[static_cast<size_t>(2 * i + 1)] = token >= 0 && token < kVocab ? token : 0;
  }
  test::on_schedules([&] {
    std::vector<TokenId> got(2 * kPending, kPoison);
    cuda::launch_take_tokens(nullptr,
                             {.pending = pending,
                              .chosen = chosen.data(),
                              .token_ids = got.data(),
                              .vocab_size = kVocab});
    EXPECT_EQ(got, want);
  });
}

// A thousand rows that follow drafts of the step before, none to four each, any number right: more
// than a block's threads.
class FollowingRows {
 public:
  static constexpr int32_t kRows = 1000;
  static constexpr int32_t kStride = 9;

  FollowingRows() {
    for (int32_t i = 0; i < kRows; ++i) {
      const int32_t num_drafts = i % 5;
      following_.push_back({.row = kRows - 1 - i,
                            .sample = i,
                            .request = i,
                            .length = i % 7 == 3 ? -1 : i,
                            .takes_token = i % 3 == 0 ? 0 : 1,
                            .from = static_cast<int32_t>(chosen_.size()),
                            .drafts = static_cast<int32_t>(drafts_.size()),
                            .num_drafts = num_drafts});
      for (int32_t d = 0; d < num_drafts; ++d) {
        drafts_.push_back(i + d);
        chosen_.push_back(d < i / 5 % 6 ? i + d : (i % 11 == 0 ? kInvalidToken : 1));
      }
      chosen_.push_back(i % 13 == 0 ? kInvalidToken : i % 17 == 0 ? 5000 : 3);
    }
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i] = static_cast<int32_t>(i * 7 % 4001);
  }

  struct Step {
    std::vector<TokenId> token_ids = std::vector<TokenId>(kRows, kPoison);
    std::vector<int32_t> positions = std::vector<int32_t>(kRows);
    std::vector<int32_t> lengths = std::vector<int32_t>(kRows);
    std::vector<SampleRow> samples = std::vector<SampleRow>(kRows);
    std::vector<int64_t> slots = std::vector<int64_t>(kRows, -7);
    std::vector<int64_t> long_slots = std::vector<int64_t>(kRows, -7);
  };

  [[nodiscard]] PlaceFollowingArgs args_of(Step& step) const {
    for (int32_t i = 0; i < kRows; ++i) {
      const auto at = static_cast<size_t>(i);
      step.positions[at] = 4 + i % 60;
      step.lengths[at] = 5 + i % 60;
      step.samples[at].position = 5 + i % 60;
    }
    PlaceFollowingArgs args = {.following = following_,
                               .drafts = drafts_.data(),
                               .chosen = chosen_.data(),
                               .vocab_size = 2000,
                               .token_ids = step.token_ids.data(),
                               .positions = step.positions.data(),
                               .seq_lens = step.lengths.data(),
                               .samples = step.samples.data(),
                               .groups = {},
                               .num_groups = 2};
    args.groups[0] = {.slot_mapping = step.slots.data(),
                      .block_table = tables_.data(),
                      .stride = kStride,
                      .tokens_per_entry = 8};
    args.groups[1] = {.slot_mapping = step.long_slots.data(),
                      .block_table = tables_.data(),
                      .stride = kStride,
                      .tokens_per_entry = 32};
    return args;
  }

 private:
  std::vector<FollowingRow> following_;
  std::vector<TokenId> drafts_;
  std::vector<TokenId> chosen_;
  std::vector<int32_t> tables_ = std::vector<int32_t>(size_t{kRows} * kStride);
};

TEST(CudaSampling, RowsThatFollowDraftsAreWhereTheCpuPutsThem) {
  const FollowingRows rows;
  FollowingRows::Step want;
  const auto device = test::make_device("scalar", 1);
  place_following(device->context(), rows.args_of(want));
  test::on_schedules([&] {
    FollowingRows::Step got;
    cuda::launch_place_following(nullptr, rows.args_of(got));
    EXPECT_EQ(got.token_ids, want.token_ids);
    EXPECT_EQ(got.positions, want.positions);
    EXPECT_EQ(got.lengths, want.lengths);
    EXPECT_EQ(got.slots, want.slots);
    EXPECT_EQ(got.long_slots, want.long_slots);
    for (size_t i = 0; i < want.samples.size(); ++i) {
      EXPECT_EQ(got.samples[i].position, want.samples[i].position) << i;
    }
  });
}

TEST(CudaSampling, NoiseOfManyPositionsPicksTheSameTokens) {
  constexpr int32_t kVocab = 130;
  const std::vector<float> logits = Random(82).normals(kVocab, 0.5F);
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 60; ++position) {
    rows.push_back({.logits = logits.data(), .seed = 9, .position = position});
  }
  check(rows, kVocab, test::Seeds::kOne);
}

TEST(CudaSampling, TheLowestIdWinsAmongEqualsAndZerosAreEqual) {
  constexpr int32_t kVocab = 700;
  std::vector<float> logits(kVocab, -1.0F);
  logits[299] = -0.0F;
  logits[300] = 0.0F;
  logits[650] = 0.0F;
  const std::vector<float> flat(kVocab, -3.0F);
  check({{.logits = logits.data(), .temperature = 0},
         {.logits = flat.data(), .temperature = 0, .num_logprobs = 0},
         {.logits = flat.data(), .seed = 5},
         {.logits = flat.data(), .temperature = 0.7F, .top_k = 1}},
        kVocab);
}

TEST(CudaSampling, ScoresAGivenToken) {
  constexpr int32_t kVocab = 2100;  // more than one tile of the sum
  const std::vector<float> logits = Random(83).normals(kVocab, 3);
  check({{.logits = logits.data(), .num_logprobs = 0, .choose = false, .token = 2099},
         {.logits = logits.data(), .choose = false, .token = 0}},
        kVocab);
}

TEST(CudaSampling, ALogitThatIsNotFiniteIsReported) {
  constexpr int32_t kVocab = 300;
  std::vector<float> nan(kVocab, 1.0F);
  nan[257] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> infinite(kVocab, 1.0F);
  infinite[3] = -std::numeric_limits<float>::infinity();
  check({{.logits = nan.data()},
         {.logits = infinite.data(), .temperature = 0, .num_logprobs = 0},
         {.logits = nan.data(), .num_logprobs = 0, .choose = false, .token = 4}},
        kVocab);
}

std::vector<uint32_t> random_mask(Random& random, int32_t vocab_size) {
  std::vector<uint32_t> mask(static_cast<size_t>(ceil_div(vocab_size, 32)));
  for (uint32_t& word : mask) word = random.bits();
  mask[0] |= 1;
  return mask;
}

// Returns a function that adds a row with these filters, every third one with `mask`.
auto adder_of_rows(Random& random,
                   const std::vector<float>& logits,
                   const std::vector<uint32_t>& mask,
                   std::vector<SampleRow>& rows) {
  return [&](float temperature, int32_t top_k, float top_p, float min_p) {
    rows.push_back({.logits = logits.data(),
                    .allowed_mask = rows.size() % 3 == 2 ? mask.data() : nullptr,
                    .temperature = temperature,
                    .top_p = top_p,
                    .min_p = min_p,
                    .top_k = top_k,
                    .seed = random.bits(),
                    .position = random.below(1000)});
  };
}

// Each filter alone and all of them, keeping one token, some and all.
TEST(CudaSampling, FiltersKeepTheTokensOfTheCpu) {
  Random random(84);
  for (const int32_t n : {1, 40, 2500}) {
    SCOPED_TRACE(n);
    const std::vector<float> logits = random.normals(static_cast<size_t>(n), 3);
    const std::vector<uint32_t> mask = random_mask(random, n);
    std::vector<SampleRow> rows;
    const auto add = adder_of_rows(random, logits, mask, rows);
    for (const int32_t k : {2, 17, 600, 2000}) add(2.0F, k, 1.0F, 0.0F);
    for (const float p : {0.0F, 0.3F, 0.9F, 0.9999999F}) add(1.5F, 0, p, 0.0F);
    for (const float p : {1e-4F, 0.2F, 1.0F, 2.0F}) add(1.5F, 0, 1.0F, p);
    add(3.0F, 20, 0.9F, 0.05F);
    add(3.0F, 50, 0.5F, 0.001F);
    check(rows, n, test::Seeds::kOne);
    if (n == 2500) check({rows[0], rows[2], rows[8]}, n);
  }
}

// Rows have several pieces; filters end among a row's likeliest tokens and after them, and most of
// the likeliest are in one piece.
TEST(CudaSampling, FiltersOfLongRowsKeepTheTokensOfTheCpu) {
  constexpr int32_t kVocab = 9001;
  Random random(86);
  std::vector<float> logits = random.normals(kVocab, 3);
  for (size_t i = 4200; i < 4600; ++i) logits[i] = 8.0F + static_cast<float>(i % 7);
  const std::vector<uint32_t> mask = random_mask(random, kVocab);
  std::vector<SampleRow> rows;
  const auto add = adder_of_rows(random, logits, mask, rows);
  for (const int32_t k : {2, 50, 256, 257, 3000}) add(4.0F, k, 1.0F, 0.0F);
  for (const float p : {0.0F, 0.5F, 0.95F, 0.9999999F}) add(2.0F, 0, p, 0.0F);
  for (const float p : {1e-4F, 0.5F, 1.0F}) add(3.0F, 0, 1.0F, p);
  add(0.01F, 40, 0.9F, 0.05F);
  add(3.0F, 0, 0.999F, 0.3F);
  add(1.0F, 0, 1.0F, 0.0F);
  check(rows, kVocab, test::Seeds::kOne);
  check({rows[1], rows[5], rows[10]}, kVocab);
}

// Equal logits lie on both sides of a cut between pieces, and a filter keeps the first ones: at a
// high temperature noise chooses among all that are kept.
TEST(CudaSampling, EqualsOfTwoPiecesAreInTheOrderOfTheirIds) {
  constexpr int32_t kVocab = 4196;
  std::vector<float> logits(kVocab, -5.0F);
  for (size_t i = 4090; i < 4102; ++i) logits[i] = 1.0F;
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 24; ++position) {
    rows.push_back({.logits = logits.data(), .temperature = 50, .top_k = 8, .position = position});
  }
  rows.push_back({.logits = logits.data(), .temperature = 0});
  check(rows, kVocab, test::Seeds::kOne);
}

// There are more rows than pieces make terms for; the last ones make their own, over two tiles.
TEST(CudaSampling, SumsHaveTheirBitsWhoeverMakesTheTerms) {
  constexpr int32_t kVocab = 6001;
  const std::vector<float> logits = Random(87).normals(kVocab, 2);
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 10; ++position) {
    rows.push_back({.logits = logits.data(),
                    .temperature = position % 2 == 0 ? 0.7F : 1.0F,
                    .top_p = 0.6F,
                    .position = position,
                    .num_logprobs = 0});
  }
  check(rows, kVocab, test::Seeds::kOne);
}

// A filter's last token shows in noise's choice at a high temperature; equal logits order by id.
TEST(CudaSampling, FiltersEndAmongEqualsAtTheSameToken) {
  constexpr int32_t kVocab = 300;
  std::vector<float> logits(kVocab, 1.0F);
  logits[250] = 2.0F;
  for (size_t i = 0; i < 100; ++i) logits[i] = i % 2 == 0 ? 0.0F : -0.0F;
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 12; ++position) {
    rows.push_back({.logits = logits.data(), .temperature = 50, .top_k = 3, .position = position});
    rows.push_back({.logits = logits.data(),
                    .temperature = 50,
                    .top_p = position % 2 == 0 ? 0.01F : 0.9F,
                    .position = position});
  }
  check(rows, kVocab, test::Seeds::kOne);
}

// Four weights of 1: the second reaches half of their sum exactly.
TEST(CudaSampling, TopPEndsWithTheTokenThatReachesItExactly) {
  const std::vector<float> flat(4, 1.0F);
  std::vector<SampleRow> rows;
  for (int64_t position = 0; position < 20; ++position) {
    rows.push_back({.logits = flat.data(), .top_p = 0.5F, .position = position});
  }
  check(rows, 4, test::Seeds::kOne);
}

TEST(CudaSampling, TheLikeliestTokensComeInOrder) {
  constexpr int32_t kVocab = 601;
  Random random(85);
  std::vector<float> logits = random.normals(kVocab, 2);
  logits[7] = logits[8] = logits[600];
  const std::vector<float> flat(kVocab, 0.5F);
  const std::vector<uint32_t> mask = random_mask(random, kVocab);
  check({{.logits = logits.data(), .temperature = 0, .num_logprobs = 1},
         {.logits = logits.data(), .allowed_mask = mask.data(), .num_logprobs = 20},
         {.logits = flat.data(), .top_p = 0.5F, .num_logprobs = 5},
         {.logits = logits.data(), .num_logprobs = 257, .choose = false, .token = 3},
         {.logits = logits.data(), .num_logprobs = kVocab},
         {.logits = logits.data(), .num_logprobs = kVocab + 3}},
        kVocab);
}

}  // namespace
}  // namespace sluice::kernels
