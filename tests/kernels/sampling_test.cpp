// SPDX-License-Identifier: Apache-2.0
// Sampling, compared with a full sort and a plain scalar reading of the header.
#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/isa/simd.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

std::array<uint32_t, 4> philox(std::array<uint32_t, 4> c, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key0,
         static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key1,
         static_cast<uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return c;
}

double gumbel(uint64_t seed, int64_t position, int32_t token) {
  const auto where = static_cast<uint64_t>(position);
  const auto counter = static_cast<uint32_t>(token / 64 * 16 + token % 16);
  const auto words =
      philox({counter, static_cast<uint32_t>(where), static_cast<uint32_t>(where >> 32), 0},
             static_cast<uint32_t>(seed),
             static_cast<uint32_t>(seed >> 32));
  const uint32_t n = words[static_cast<size_t>(token / 16 % 4)] >> 1 | 1;
  return -std::log(-std::log(static_cast<double>(n) / 2147483648.0));
}

struct Runner {
  explicit Runner(const std::string& isa = "auto", int32_t threads = 1)
      : device(test::make_device(isa, threads)) {}

  void run(std::vector<SampleRow>& rows, int32_t vocab) const {
    std::vector<float> workspace(
        static_cast<size_t>(sampling_workspace_bytes(vocab, device->num_threads())) / 4,
        std::nanf(""));
    sample(device->context(),
           {.rows = rows,
            .vocab_size = vocab,
            .workspace = std::as_writable_bytes(std::span(workspace))});
  }

  std::unique_ptr<Device> device;
};

bool allowed(const SampleRow& row, int32_t token) {
  return row.allowed_mask == nullptr || (row.allowed_mask[token / 32] >> (token % 32) & 1U) != 0;
}

std::vector<int32_t> full_order(const SampleRow& row, int32_t vocab, bool masked) {
  std::vector<int32_t> order;
  for (int32_t token = 0; token < vocab; ++token) {
    if (!masked || allowed(row, token)) order.push_back(token);
  }
  std::sort(order.begin(), order.end(), [&row](int32_t a, int32_t b) {
    return row.logits[a] > row.logits[b] || (row.logits[a] == row.logits[b] && a < b);
  });
  return order;
}

// Returns exp with the library's own bits, through the scalar table.
std::vector<float> own_exp(std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  std::vector<float> out(x.size());
  cpu::simd_table(Isa::kScalar)
      .map(cpu::MathFunction::kExp, x.data(), static_cast<int32_t>(x.size()), out.data());
  out.resize(n);
  return out;
}

// Returns the kept tokens in order, exactly by the header's definition.
std::vector<int32_t> kept_tokens(const SampleRow& row, int32_t vocab) {
  std::vector<int32_t> order = full_order(row, vocab, true);
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < order.size()) {
    order.resize(static_cast<size_t>(row.top_k));
  }
  std::vector<float> z(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    z[i] = (row.logits[order[i]] - row.logits[order[0]]) / row.temperature;
  }
  const std::vector<float> w = own_exp(z);
  std::vector<float> by_token(static_cast<size_t>(vocab), 0.0F);
  for (size_t i = 0; i < order.size(); ++i) by_token[static_cast<size_t>(order[i])] = w[i];
  float lanes[16] = {};
  for (size_t t = 0; t < by_token.size(); ++t) lanes[t % 16] += by_token[t];
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  size_t keep = 1;
  const double enough =
      std::ldexp(static_cast<double>(row.top_p) * static_cast<double>(lanes[0]), 40);
  double sum = std::floor(std::ldexp(static_cast<double>(w[0]), 40));
  while (keep < order.size()) {
    if (row.top_p < 1 && sum >= enough) break;
    if (w[keep] < row.min_p) break;
    sum += std::floor(std::ldexp(static_cast<double>(w[keep++]), 40));
  }
  order.resize(keep);
  return order;
}

void expect_defined_token(const SampleRow& row, int32_t vocab) {
  const std::vector<int32_t> kept = kept_tokens(row, vocab);
  const double top = static_cast<double>(row.logits[kept[0]]);
  double best = -std::numeric_limits<double>::infinity();
  double own = best;
  for (const int32_t token : kept) {
    const double score =
        (static_cast<double>(row.logits[token]) - top) / static_cast<double>(row.temperature) +
        gumbel(row.seed, row.position, token);
    best = std::max(best, score);
    if (token == row.token) own = score;
  }
  // fp32 scores of order 20 carry 2e-6 each; a token outside the kept set leaves -infinity.
  EXPECT_NEAR(own, best, 1e-5) << "token " << row.token << " kept " << kept.size() << " top_k "
                               << row.top_k << " top_p " << row.top_p << " min_p " << row.min_p
                               << " temperature " << row.temperature;
}

TEST(Sampling, TheOracleGeneratorIsPhilox) {
  // Known answers published with the generator (Random123).
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Sampling, GreedyTakesTheLargestLogitAndTheLowestIdAmongEquals) {
  const Runner runner;
  Random random(21);
  for (const int32_t vocab : {1, 5, 16, 17, 64, 65, 1000}) {
    std::vector<float> logits = random.normals(static_cast<size_t>(vocab));
    for (int trial = 0; trial < 20; ++trial) {
      const int32_t a = random.below(vocab);
      const int32_t b = random.below(vocab);
      std::vector<float> tied = logits;
      tied[static_cast<size_t>(a)] = tied[static_cast<size_t>(b)] = 50;
      std::vector<SampleRow> rows = {{.logits = tied.data(), .temperature = 0}};
      runner.run(rows, vocab);
      EXPECT_EQ(rows[0].token, std::min(a, b));
    }
  }
  std::vector<float> zeros = {-1.0F, -0.0F, 0.0F};
  std::vector<SampleRow> rows = {{.logits = zeros.data(), .temperature = 0}};
  runner.run(rows, 3);
  EXPECT_EQ(rows[0].token, 1);
}

TEST(Sampling, EveryFilterKeepsExactlyTheSetAFullSortKeeps) {
  const Runner runner;
  Random random(22);
  for (int trial = 0; trial < 1500; ++trial) {
    const int32_t vocab = 1 + random.below(trial % 10 == 0 ? 3000 : 200);
    std::vector<float> logits = random.normals(static_cast<size_t>(vocab), 3);
    // Coarse logits tie often.
    if (trial % 3 == 0) {
      for (float& x : logits) x = std::round(x);
    }
    std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32);
    for (uint32_t& word : mask) word = random.bits() & random.bits();
    mask[0] |= 1;
    const float temperatures[] = {0.01F, 0.5F, 1.0F, 2.0F};
    const float top_ps[] = {1.0F, 0.0F, 0.1F, 0.5F, 0.9F, 0.999F};
    const float min_ps[] = {0.0F, 0.01F, 0.3F, 1.0F};
    const int32_t top_ks[] = {0, 1, 2, 7, 50, 5000};
    std::vector<SampleRow> rows(20);
    for (SampleRow& row : rows) {
      row = {.logits = logits.data(),
             .allowed_mask = trial % 4 == 0 ? mask.data() : nullptr,
             .temperature = temperatures[random.below(4)],
             .top_p = top_ps[random.below(6)],
             .min_p = min_ps[random.below(4)],
             .top_k = top_ks[random.below(6)],
             .seed = uint64_t{random.bits()} << 32 | random.bits(),
             .position = random.below(100000)};
    }
    runner.run(rows, vocab);
    for (const SampleRow& row : rows) {
      EXPECT_TRUE(row.finite);
      expect_defined_token(row, vocab);
    }
    if (HasFailure()) return;
  }
}

TEST(Sampling, TiesAtTheCutKeepTheLowestIds) {
  const Runner runner;
  const std::vector<float> logits(100, 1.25F);
  std::vector<int32_t> seen;
  std::vector<SampleRow> rows(2000);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {.logits = logits.data(), .top_k = 5, .seed = 9, .position = static_cast<int64_t>(i)};
  }
  runner.run(rows, 100);
  for (const SampleRow& row : rows) seen.push_back(row.token);
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen, (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(Sampling, DrawsFollowTheSoftmax) {
  // chi-square of 1e5 draws; 99.9% quantiles: 63 degrees of freedom 103.4, 9: 27.9.
  const Runner runner;
  Random random(23);
  constexpr int32_t kVocab = 64;
  constexpr int kDraws = 100000;
  const std::vector<float> logits = random.normals(kVocab);

  const struct {
    int32_t top_k;
    float temperature;
    double bound;
  } cases[] = {{0, 1.0F, 103.4}, {0, 1.7F, 103.4}, {10, 0.8F, 27.9}};

  for (const auto& c : cases) {
    std::vector<SampleRow> rows(kDraws);
    for (int i = 0; i < kDraws; ++i) {
      rows[static_cast<size_t>(i)] = {.logits = logits.data(),
                                      .temperature = c.temperature,
                                      .top_k = c.top_k,
                                      .seed = static_cast<uint64_t>(i % 7),
                                      .position = i};
    }
    runner.run(rows, kVocab);
    std::vector<double> count(kVocab, 0);
    for (const SampleRow& row : rows) count[static_cast<size_t>(row.token)] += 1;
    const std::vector<int32_t> kept = kept_tokens(rows[0], kVocab);
    double total = 0;
    for (const int32_t token : kept) {
      total += std::exp(double{logits[static_cast<size_t>(token)]} / double{c.temperature});
    }
    double chi = 0;
    for (const int32_t token : kept) {
      const double expected =
          kDraws * std::exp(double{logits[static_cast<size_t>(token)]} / double{c.temperature}) /
          total;
      const double off = count[static_cast<size_t>(token)] - expected;
      chi += off * off / expected;
    }
    EXPECT_LT(chi, c.bound);
    EXPECT_GT(chi, c.bound / 10);  // nor suspiciously even
  }
}

TEST(Sampling, LogprobsAreOfTheWholeUnmodifiedRow) {
  const Runner runner;
  Random random(24);
  constexpr int32_t kVocab = 1003;
  std::vector<float> logits = random.normals(kVocab, 3);
  logits[700] = logits[20];
  std::vector<uint32_t> mask((kVocab + 31) / 32, 0);
  mask[1] = 1;  // token 32 only
  std::vector<TokenScore> top(20);
  std::vector<SampleRow> rows = {{.logits = logits.data(),
                                  .allowed_mask = mask.data(),
                                  .temperature = 0.3F,
                                  .num_logprobs = 20,
                                  .top_logprobs = top}};
  runner.run(rows, kVocab);
  double total = 0;
  for (const float x : logits) total += std::exp(static_cast<double>(x));
  EXPECT_EQ(rows[0].token, 32);
  EXPECT_NEAR(rows[0].logprob, static_cast<double>(logits[32]) - std::log(total), 3e-6);
  const std::vector<int32_t> order = full_order(rows[0], kVocab, false);
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(top[i].token, order[i]);
    EXPECT_NEAR(top[i].logprob,
                static_cast<double>(logits[static_cast<size_t>(order[i])]) - std::log(total),
                3e-6);
  }
}

TEST(Sampling, ANonFiniteLogitIsReportedAndGivesNoToken) {
  const Runner runner;
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::nanf("")}) {
    for (const int32_t at : {0, 15, 16, 40}) {
      std::vector<float> logits(41, 1.0F);
      logits[static_cast<size_t>(at)] = bad;
      std::vector<SampleRow> rows = {{.logits = logits.data(), .temperature = 0},
                                     {.logits = logits.data(), .num_logprobs = 0}};
      runner.run(rows, 41);
      for (const SampleRow& row : rows) {
        EXPECT_FALSE(row.finite);
        EXPECT_EQ(row.token, kInvalidToken);
      }
    }
  }
}

// Two rows of a request follow three drafts that the previous step judges. The number of right
// drafts decides their places and the first one's token.
struct FollowedStep {
  explicit FollowedStep(const std::vector<TokenId>& chosen) {
    const std::vector<TokenId> drafts = {9, 11, 12, 13};  // the first one is another request's
    const std::vector<FollowingRow> following = {{.row = 1,
                                                  .sample = 0,
                                                  .request = 1,
                                                  .length = 1,
                                                  .takes_token = 1,
                                                  .from = 1,
                                                  .drafts = 1,
                                                  .num_drafts = 3},
                                                 {.row = 2,
                                                  .sample = 1,
                                                  .request = 1,
                                                  .length = -1,
                                                  .takes_token = 0,
                                                  .from = 1,
                                                  .drafts = 1,
                                                  .num_drafts = 3}};
    samples[0].position = 10;
    samples[1].position = 11;
    PlaceFollowingArgs args = {.following = following,
                               .drafts = drafts.data(),
                               .chosen = chosen.data(),
                               .vocab_size = 100,
                               .token_ids = token_ids.data(),
                               .positions = positions.data(),
                               .seq_lens = lengths.data(),
                               .samples = samples.data(),
                               .groups = {},
                               .num_groups = 2};
    args.groups[0] = {.slot_mapping = slots.data(),
                      .block_table = blocks.data(),
                      .stride = 4,
                      .tokens_per_entry = 4};
    args.groups[1] = {.slot_mapping = wide_slots.data(),
                      .block_table = wide.data(),
                      .stride = 2,
                      .tokens_per_entry = 8};
    place_following(test::make_device("scalar", 1)->context(), args);
  }

  const std::vector<int32_t> blocks = {50, 51, 52, 53, 70, 71, 72, 73};  // two requests'
  const std::vector<int32_t> wide = {5, 6, 7, 8};
  std::vector<TokenId> token_ids = {20, 21, 22};
  std::vector<int32_t> positions = {3, 9, 10};
  std::vector<int32_t> lengths = {4, 11};
  std::vector<SampleRow> samples = std::vector<SampleRow>(2);
  std::vector<int64_t> slots = std::vector<int64_t>(3, 1000);
  std::vector<int64_t> wide_slots = std::vector<int64_t>(3, 1000);
};

TEST(Sampling, RowsBehindDraftsMoveBackByThoseThatAreWrong) {
  struct Case {
    std::vector<TokenId> chosen;  // from the second on
    int32_t back;
    TokenId first;
  };

  const Case cases[] = {{{1, 11, 12, 13, 14}, 0, 14},
                        {{1, 11, 12, 8, 14}, 1, 8},
                        {{1, 11, 7, 13, 14}, 2, 7},
                        {{1, 6, 12, 13, 14}, 3, 6},
                        {{1, 11, 12, 13, -1}, 1, 13},  // the last row has no token
                        {{1, 11, -1, 13, 14}, 3, 11},
                        {{1, -1, 12, 13, 14}, 3, 0}};
  for (const Case& test : cases) {
    const FollowedStep step(test.chosen);
    EXPECT_EQ(step.token_ids, (std::vector<TokenId>{20, test.first, 22}));
    EXPECT_EQ(step.positions, (std::vector<int32_t>{3, 9 - test.back, 10 - test.back}));
    EXPECT_EQ(step.lengths, (std::vector<int32_t>{4, 11 - test.back}));
    EXPECT_EQ(step.samples[0].position, 10 - test.back);
    EXPECT_EQ(step.samples[1].position, 11 - test.back);
    const auto slot =
        [](const std::vector<int32_t>& table, size_t begin, int32_t size, int32_t position) {
          const auto block = static_cast<size_t>(position / size);
          return int64_t{table[begin + block]} * size + position % size;
        };
    EXPECT_EQ(step.slots,
              (std::vector<int64_t>{1000,
                                    slot(step.blocks, 4, 4, 9 - test.back),
                                    slot(step.blocks, 4, 4, 10 - test.back)}));
    EXPECT_EQ(
        step.wide_slots,
        (std::vector<int64_t>{
            1000, slot(step.wide, 2, 8, 9 - test.back), slot(step.wide, 2, 8, 10 - test.back)}));
  }
}

TEST(Sampling, WhatWasChosenIsWhereTheNextStepTakesItFrom) {
  const std::vector<float> logits = {0, 3, 1};
  const std::vector<float> broken = {0, std::nanf(""), 1};
  std::vector<SampleRow> rows = {{.logits = logits.data(), .temperature = 0},
                                 {.logits = broken.data(), .temperature = 0}};
  const auto device = test::make_device("scalar", 1);
  std::vector<std::byte> workspace(static_cast<size_t>(sampling_workspace_bytes(3, 1)));
  std::vector<TokenId> chosen = {7, 7, 7};
  sample(device->context(),
         {.rows = rows, .vocab_size = 3, .workspace = workspace, .chosen = chosen.data()});
  EXPECT_EQ(chosen, (std::vector<TokenId>{1, kInvalidToken, 7}));
  const std::vector<PendingToken> pending = {{.row = 3, .from = 0}, {.row = 0, .from = 2}};
  std::vector<TokenId> token_ids = {5, 5, 5, 5};
  const auto take = [&](int32_t vocab_size) {
    take_tokens(device->context(),
                {.pending = pending,
                 .chosen = chosen.data(),
                 .token_ids = token_ids.data(),
                 .vocab_size = vocab_size});
    return token_ids;
  };
  EXPECT_EQ(take(8), (std::vector<TokenId>{7, 5, 5, 1}));
  EXPECT_EQ(take(7), (std::vector<TokenId>{0, 5, 5, 1}));  // ids that are no tokens
  chosen[2] = -1;
  EXPECT_EQ(take(8), (std::vector<TokenId>{0, 5, 5, 1}));
}

TEST(Sampling, AFilterThatKeepsOneTokenChoosesAsTemperatureZeroDoes) {
  const Runner runner;
  Random random(26);
  for (int trial = 0; trial < 200; ++trial) {
    const int32_t vocab = 1 + random.below(900);
    std::vector<float> logits = random.normals(static_cast<size_t>(vocab), 2);
    // Among equals at the top the lowest id wins.
    if (trial % 2 == 0) {
      for (float& x : logits) x = std::round(x);
    }
    SampleRow row = {.logits = logits.data(),
                     .temperature = 2.0F,
                     .seed = random.bits(),
                     .position = random.below(1000),
                     .num_logprobs = 0};
    std::vector<SampleRow> rows(4, row);
    rows[0].temperature = 0;
    rows[1].top_p = 0;
    rows[2].top_p = 1e-30F;
    rows[3].top_k = 1;
    runner.run(rows, vocab);
    for (const SampleRow& chosen : rows) {
      ASSERT_EQ(chosen.token, rows[0].token) << "trial " << trial << " top_p " << chosen.top_p;
      ASSERT_EQ(chosen.logprob, rows[0].logprob);
    }
  }
}

TEST(Sampling, ExtremeLogitsAndTemperaturesStillGiveACandidate) {
  const Runner runner;
  std::vector<float> logits = {-3e38F, 3e38F, 0.0F, 3e38F, -3e38F};
  for (const float temperature : {1e-38F, 1e-3F, 1.0F, 2.0F}) {
    std::vector<SampleRow> rows = {
        {.logits = logits.data(), .temperature = temperature},
        {.logits = logits.data(), .temperature = temperature, .top_p = 0.9F, .min_p = 0.1F},
        {.logits = logits.data(), .temperature = temperature, .top_k = 3}};
    runner.run(rows, 5);
    for (const SampleRow& row : rows) EXPECT_TRUE(row.token == 1 || row.token == 3) << row.token;
  }
}

TEST(Sampling, EveryInstructionSetAndThreadCountGivesTheSameBits) {
  Random random(25);
  constexpr int32_t kVocab = 5001;
  constexpr size_t kRows = 12;
  std::vector<std::vector<float>> logits;
  for (size_t i = 0; i < kRows; ++i) {
    logits.push_back(random.normals(kVocab, 0.5F + static_cast<float>(i)));
  }
  std::vector<int32_t> tokens;
  std::vector<TokenScore> scores;
  for (const auto& device : test::devices({1, 2, 3})) {
    std::vector<int32_t> got;
    std::vector<std::vector<TokenScore>> top(kRows, std::vector<TokenScore>(5));
    for (int64_t position = 0; position < 30; ++position) {
      std::vector<SampleRow> rows(kRows);
      for (size_t i = 0; i < kRows; ++i) {
        rows[i] = {.logits = logits[i].data(),
                   .temperature = 0.7F,
                   .top_p = i % 3 == 0 ? 0.95F : 1.0F,
                   .min_p = i % 4 == 1 ? 0.02F : 0.0F,
                   .top_k = i % 2 == 0 ? 40 : 0,
                   .seed = i,
                   .position = position,
                   .num_logprobs = 5,
                   .top_logprobs = top[i]};
      }
      const Runner runner(to_string(device.isa), device.threads);
      runner.run(rows, kVocab);
      for (const SampleRow& row : rows) got.push_back(row.token);
    }
    std::vector<TokenScore> all;
    for (const auto& row : top) all.insert(all.end(), row.begin(), row.end());
    if (tokens.empty()) {
      tokens = got;
      scores = all;
    }
    EXPECT_EQ(got, tokens) << device.name;
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].token, scores[i].token) << device.name;
      EXPECT_EQ(all[i].logprob, scores[i].logprob) << device.name;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
