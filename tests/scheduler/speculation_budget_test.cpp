// SPDX-License-Identifier: Apache-2.0
#include "scheduler/speculation_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr int32_t kMaxTokens = 12;

using Times = std::function<double(int64_t rows)>;

// Milliseconds of a step: SmolLM2-135M and a 1B model on a server CPU, an 8B model on a GPU.
double small_model(int64_t rows) {
  return rows <= 1 ? 2.38
                   : 2.38 + 0.39 * static_cast<double>(rows - 1) +
                         0.0013 * static_cast<double>(rows * rows);
}

double model_of_1b(int64_t rows) { return 27.2 + 1.43 * static_cast<double>(rows - 1); }

double on_a_gpu(int64_t rows) { return 8 + 0.04 * static_cast<double>(rows - 1); }

// Rows cost in tiles of 8.
double in_tiles(int64_t rows) { return 5 + 2 * static_cast<double>((rows + 7) / 8); }

struct Totals {
  double ms = 0;
  double tokens = 0;
  double off_ms = 0;  // time of the same tokens without drafts
  int64_t drafted = 0;
  int64_t steps = 0;

  [[nodiscard]] double gain() const { return off_ms / ms; }
};

// A decoding server: requests whose drafts are accepted with some probability, on a simulated
// clock.
class Server {
 public:
  explicit Server(Times times,
                  SpeculationBudget::Options options = {.max_tokens = kMaxTokens},
                  uint64_t seed = 1)
      : budget_(options), times_(std::move(times)), random_(seed) {}

  void set_acceptance(double acceptance) { acceptance_ = acceptance; }

  void set_noise(double noise) { noise_ = noise; }

  void set_offered(int32_t num_tokens) { offered_ = num_tokens; }

  void set_times(Times times) { times_ = std::move(times); }

  // Steps with drafts take so many times as long as their rows say.
  void set_hidden_cost(double factor) { hidden_cost_ = factor; }

  void step(int32_t num_decodes, Totals& totals) {
    requests_.resize(static_cast<size_t>(num_decodes));
    const std::vector<uint8_t> bins(static_cast<size_t>(offered_), 0);
    DraftedStep done;
    for (int32_t i = 0; i < num_decodes; ++i) done.plain.add(/*decode=*/true, 300, 1);
    done.shape = done.plain;
    done.num_decodes = num_decodes;
    std::vector<int32_t> granted(requests_.size(), 0);
    if (budget_.offers_wanted()) {
      std::vector<DraftOffer> offers;
      for (const RequestAcceptance& request : requests_) {
        offers.push_back({DraftSource::kNgram, bins, &request, 300});
      }
      const DraftLimits limits = {
          .shape = done.plain, .num_decodes = num_decodes, .max_draft_rows = 512 - num_decodes};
      done.num_draft_rows = budget_.choose(cost_, limits, offers, granted).num_rows;
      done.shape.add(/*decode=*/true, 300, done.num_draft_rows);
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      int32_t accepted = 0;
      while (accepted < granted[i] && chance() < acceptance_) ++accepted;
      done.num_committed += 1 + accepted;
      if (granted[i] == 0) {
        requests_[i].forget();
        continue;
      }
      budget_.observe_draft(DraftSource::kNgram,
                            std::span(bins).first(static_cast<size_t>(granted[i])),
                            accepted,
                            requests_[i]);
    }
    done.ms = times_(num_decodes + done.num_draft_rows) * (1 + noise_ * (chance() - 0.5));
    if (done.num_draft_rows > 0) done.ms *= hidden_cost_;
    if (noise_ > 0 && chance() < 0.005) done.ms *= 3;  // disturbance by other work
    cost_.observe(done.shape, done.ms);
    budget_.observe_step(cost_, done);
    totals.ms += done.ms;
    totals.tokens += done.num_committed;
    totals.off_ms +=
        times_(num_decodes) * done.num_committed / num_decodes * (noise_ > 0 ? 1.01 : 1.0);
    totals.drafted += done.num_draft_rows;
    ++totals.steps;
  }

  Totals run(int32_t num_decodes, int num_steps) {
    Totals totals;
    for (int i = 0; i < num_steps; ++i) step(num_decodes, totals);
    return totals;
  }

  SpeculationBudget& budget() { return budget_; }

 private:
  double chance() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

  SpeculationBudget budget_;
  Times times_;
  std::mt19937_64 random_;
  CostModel cost_;
  std::vector<RequestAcceptance> requests_;
  double acceptance_ = 0;
  double noise_ = 0;
  double hidden_cost_ = 1;
  int32_t offered_ = kMaxTokens;
};

// The best gain of any common depth for all requests.
double best_gain(const Times& times, int32_t num_decodes, double acceptance) {
  double best = 1;
  double tokens = 1;
  double product = 1;
  for (int32_t k = 1; k <= kMaxTokens; ++k) {
    product *= acceptance;
    tokens += product;
    best = std::max(best, tokens * times(num_decodes) / times(num_decodes * (1 + k)));
  }
  return best;
}

const struct {
  const char* name;
  Times times;
} kMachines[] = {
    {"135M", small_model}, {"1B", model_of_1b}, {"GPU", on_a_gpu}, {"tiles", in_tiles}};

TEST(SpeculationBudget, GainsNearlyWhatTheBestDepthGains) {
  for (const auto& machine : kMachines) {
    for (const int32_t num_decodes : {1, 4, 16}) {
      for (const double acceptance : {0.5, 0.7, 0.9}) {
        for (const double noise : {0.0, 0.1}) {
          Server server(machine.times);
          server.set_acceptance(acceptance);
          server.set_noise(noise);
          server.run(num_decodes, 300);
          const double gain = server.run(num_decodes, 3000).gain();
          const double best = best_gain(machine.times, num_decodes, acceptance);
          EXPECT_GE(gain, 0.93 * best) << machine.name << " R " << num_decodes << " acceptance "
                                       << acceptance << " noise " << noise;
        }
      }
    }
  }
}

TEST(SpeculationBudget, FirstTokensOfACopyAlreadyGain) {
  Server server(small_model);
  server.set_offered(0);  // an answer that quotes nothing at first
  server.run(1, 20);
  server.set_offered(kMaxTokens);
  server.set_acceptance(0.9);
  EXPECT_GE(server.run(1, 60).gain(), 1.7);
}

// 1 % of all tokens, plus 16 for each decode.
TEST(SpeculationBudget, DraftsThatAreNeverRightCostAtMostTheBound) {
  for (const auto& machine : kMachines) {
    for (const int32_t num_decodes : {1, 8, 32, 64}) {
      Server server(machine.times);
      server.set_acceptance(0);
      const Totals totals = server.run(num_decodes, 20'000);
      const double off_tokens = totals.ms / machine.times(num_decodes) * num_decodes;
      EXPECT_LE(off_tokens - totals.tokens, 0.01 * off_tokens + 16 * num_decodes)
          << machine.name << " R " << num_decodes;
    }
  }
}

TEST(SpeculationBudget, NoiseAndChanceNeverMakeItSlowerThanTheBound) {
  for (const auto& machine : kMachines) {
    for (const int32_t num_decodes : {1, 8, 32, 64}) {
      for (const double acceptance : {0.1, 0.3, 0.5}) {
        Server server(machine.times);
        server.set_acceptance(acceptance);
        server.set_noise(0.2);
        EXPECT_GE(server.run(num_decodes, 10'000).gain(), 0.97)
            << machine.name << " R " << num_decodes << " acceptance " << acceptance;
      }
    }
  }
}

// The counters trust a proposer that turns bad for single steps in a way they cannot see: earlier
// gains buy nothing.
TEST(SpeculationBudget, PastGainsAreNotSavedUp) {
  Server server(small_model);
  server.set_acceptance(0.95);
  server.run(4, 5000);
  server.set_acceptance(0);
  Totals bad = server.run(4, 2000);
  const double off_tokens = bad.ms / small_model(4) * 4;
  EXPECT_LE(off_tokens - bad.tokens, 0.01 * off_tokens + 20 * 4);
}

// No prediction shows the loss: steps with drafts take longer than others with as many rows, and
// those are measured too.
TEST(SpeculationBudget, MeasuredLossTurnsDraftsOffUntilAProbeGains) {
  Server server(on_a_gpu);
  server.set_acceptance(0.4);
  server.run(4, 500);
  EXPECT_FALSE(server.budget().has_lost());
  server.set_hidden_cost(3);
  int steps = 0;
  for (; !server.budget().has_lost(); ++steps) server.run(4, 1);
  EXPECT_LE(steps, 40);
  std::vector<int> gaps;
  for (int gap = 1; gaps.size() < 12; ++gap) {
    const bool is_probe = server.budget().offers_wanted();
    EXPECT_EQ(server.run(4, 1).drafted > 0, is_probe);
    if (is_probe) gaps.push_back(std::exchange(gap, 0));
  }
  EXPECT_EQ(gaps, (std::vector<int>{1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256}));
  server.set_hidden_cost(1);
  server.run(4, 4000);
  EXPECT_FALSE(server.budget().has_lost());
  EXPECT_GE(server.run(4, 500).gain(), 1.1);
}

TEST(SpeculationBudget, UndraftedStepsComeFirstAndOneInADoublingPeriodAfterwards) {
  Server server(small_model);
  server.set_acceptance(0.9);
  EXPECT_EQ(server.run(1, 3).drafted, 0);
  EXPECT_GT(server.run(1, 3).drafted, 0);
  std::vector<int> unwanted;
  for (int i = 6; unwanted.size() < 9; ++i) {
    if (!server.budget().offers_wanted()) unwanted.push_back(i);
    server.run(1, 1);
  }
  EXPECT_EQ(unwanted, (std::vector<int>{256, 258, 262, 270, 286, 318, 382, 510, 766}));
}

TEST(SpeculationBudget, OneDisturbedStepTurnsDraftsOffForAFewSteps) {
  Server server(small_model);
  server.set_acceptance(0.8);
  server.run(1, 500);
  server.set_times([](int64_t rows) { return 1000 * small_model(rows); });
  server.run(1, 1);
  server.set_times(small_model);
  EXPECT_GE(server.run(1, 100).gain(), 1.6);
}

TEST(SpeculationBudget, ProposerThatTurnsGoodIsFoundOut) {
  Server server(model_of_1b);
  server.set_acceptance(0);
  server.run(4, 4000);
  server.set_acceptance(0.9);
  // A probe that gains is followed by others at once.
  server.run(4, 800);
  EXPECT_GE(server.run(4, 1000).gain(), 0.9 * best_gain(model_of_1b, 4, 0.9));
}

TEST(SpeculationBudget, LoadThatShiftsIsFollowed) {
  Server server(small_model);
  server.set_acceptance(0.8);
  server.set_noise(0.1);
  server.run(1, 500);
  const double alone = server.run(1, 1000).gain();
  server.run(64, 200);
  const Totals crowded = server.run(64, 2000);
  server.run(1, 100);
  const double alone_again = server.run(1, 1000).gain();
  EXPECT_GE(crowded.gain(), 0.98);
  EXPECT_GE(alone, 1.7);
  EXPECT_GE(alone_again, 0.95 * alone);
}

TEST(SpeculationBudget, MachineThatSlowsDownIsNoFaultOfDrafts) {
  Server server(small_model);
  server.set_acceptance(0.8);
  server.run(1, 1000);
  server.set_times([](int64_t rows) { return 2 * small_model(rows); });
  server.run(1, 1000);
  EXPECT_GE(server.run(1, 1000).gain(), 1.7);
}

// Requests of different acceptance share the step: more rows go to higher acceptance.
TEST(SpeculationBudget, RowsGoToRequestsWhoseDraftsAreRight) {
  CostModel cost;
  SpeculationBudget budget({.max_tokens = 8});
  StepShape plain;
  for (int i = 0; i < 4; ++i) plain.add(true, 100, 1);
  std::vector<RequestAcceptance> requests(4);
  const std::vector<uint8_t> good(8, 3);
  const std::vector<uint8_t> bad(8, 5);
  for (int i = 0; i < 200; ++i) {
    RequestAcceptance other;
    budget.observe_draft(DraftSource::kSuffix, good, 8, other);
    budget.observe_draft(DraftSource::kSuffix, bad, 0, other);
  }
  for (int64_t rows = 4; rows <= 40; ++rows) {
    StepShape shape = plain;
    shape.add(true, 100, rows - 4);
    for (int i = 0; i < 3; ++i) {
      budget.observe_step(
          cost, {.shape = shape, .plain = shape, .num_decodes = 4, .ms = small_model(rows)});
    }
  }
  std::vector<DraftOffer> offers;
  for (size_t i = 0; i < 4; ++i) {
    offers.push_back({DraftSource::kSuffix, i % 2 == 0 ? good : bad, &requests[i], 100});
  }
  std::vector<int32_t> granted(4);
  const DraftLimits limits = {.shape = plain, .num_decodes = 4, .max_draft_rows = 100};
  const DraftDecision decision = budget.choose(cost, limits, offers, granted);
  // The step may take a quarter longer while not every request drafts.
  EXPECT_GT(decision.predicted_gain, 1.03);
  EXPECT_EQ(granted[1], 0);
  EXPECT_EQ(granted[3], 0);
  EXPECT_GE(decision.num_rows, 2);
  EXPECT_LE(std::abs(granted[0] - granted[2]), 1);
  EXPECT_LE(small_model(4 + decision.num_rows), 1.26 * small_model(4));
}

TEST(SpeculationBudget, LimitsOfRowsAndTimeHold) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    CostModel cost;
    SpeculationBudget budget(
        {.max_tokens = static_cast<int32_t>(1 + random() % 10), .is_fixed = random() % 4 == 0});
    const auto num_decodes = static_cast<int32_t>(1 + random() % 20);
    StepShape plain;
    for (int i = 0; i < num_decodes; ++i) plain.add(true, 100, 1);
    for (int i = 0; i < 3; ++i) {
      budget.observe_step(cost,
                          {.shape = plain,
                           .plain = plain,
                           .num_decodes = num_decodes,
                           .num_committed = num_decodes,
                           .ms = on_a_gpu(num_decodes)});
    }
    std::vector<RequestAcceptance> requests(static_cast<size_t>(num_decodes));
    std::vector<std::vector<uint8_t>> bins(requests.size());
    std::vector<DraftOffer> offers;
    for (size_t i = 0; i < requests.size(); ++i) {
      bins[i].assign(random() % 12, static_cast<uint8_t>(random() % kNumConfidenceBins));
      offers.push_back({DraftSource::kNgram, bins[i], &requests[i], 100});
    }
    const DraftLimits limits = {.shape = plain,
                                .num_decodes = num_decodes,
                                .max_draft_rows = static_cast<int32_t>(random() % 30)};
    std::vector<int32_t> granted(offers.size(), -1);
    const DraftDecision decision = budget.choose(cost, limits, offers, granted);
    int32_t sum = 0;
    for (size_t i = 0; i < offers.size(); ++i) {
      ASSERT_GE(granted[i], 0);
      ASSERT_LE(granted[i], static_cast<int32_t>(bins[i].size()));
      sum += granted[i];
    }
    ASSERT_EQ(sum, decision.num_rows);
    ASSERT_LE(sum, limits.max_draft_rows);
  }
}

TEST(SpeculationBudget, StepDoesNotGrowBeyondItsTarget) {
  Server server(model_of_1b);
  server.set_acceptance(0.95);
  server.run(1, 500);
  CostModel cost;
  StepShape plain;
  plain.add(true, 300, 1);
  const RequestAcceptance request;
  const std::vector<uint8_t> bins(kMaxTokens, 0);
  const std::vector<DraftOffer> offers = {{DraftSource::kNgram, bins, &request, 300}};
  std::vector<int32_t> granted(1);
  const auto rows = [&](double target_ms) {
    const DraftLimits limits = {
        .shape = plain, .num_decodes = 1, .max_draft_rows = 100, .target_ms = target_ms};
    return server.budget().choose(cost, limits, offers, granted).num_rows;
  };
  const int32_t free = rows(0);
  EXPECT_GT(free, 6);
  const int32_t bounded = rows(33);
  EXPECT_GT(bounded, 0);
  EXPECT_LT(bounded, free);
  EXPECT_EQ(rows(20), 0);
}

TEST(SpeculationBudget, FixedTakesEveryOfferAtAnyCost) {
  Server server(small_model, {.max_tokens = 3, .is_fixed = true});
  server.set_acceptance(0);
  EXPECT_EQ(server.run(4, 500).drafted, 500 * 4 * 3);
}

TEST(SpeculationBudget, SameCallsGiveTheSameDecisions) {
  const auto drafted = [] {
    Server server(small_model);
    server.set_acceptance(0.6);
    server.set_noise(0.2);
    std::vector<int64_t> all;
    for (int i = 0; i < 300; ++i) all.push_back(server.run(1 + i % 7, 1).drafted);
    return all;
  };
  EXPECT_EQ(drafted(), drafted());
}

TEST(SpeculationBudget, AProposerWhoseDraftsFindNoRoomIsAskedLessOften) {
  SpeculationBudget budget({.max_tokens = kMaxTokens});
  CostModel cost;
  const RequestAcceptance request;
  const std::vector<uint8_t> bins(4, 0);
  const std::vector<DraftOffer> offers = {{DraftSource::kNgram, bins, &request, 300}};
  std::vector<int32_t> granted(1);
  int num_asked = 0;
  for (int i = 0; i < 2000; ++i) {
    DraftedStep done;
    done.plain.add(/*decode=*/true, 300, 1);
    done.shape = done.plain;
    done.num_decodes = done.num_committed = 1;
    done.ms = model_of_1b(1);
    if (budget.offers_wanted()) {
      ++num_asked;
      done.draft_ms = 5;
      const DraftLimits limits = {.shape = done.plain, .num_decodes = 1, .max_draft_rows = 0};
      EXPECT_EQ(budget.choose(cost, limits, offers, granted).num_rows, 0);
    }
    cost.observe(done.shape, done.ms);
    budget.observe_step(cost, done);
  }
  EXPECT_LT(num_asked, 200);
}

TEST(SpeculationBudget, StepsThatTakeProposingTooLongDraftNothing) {
  Server server(small_model);
  server.set_acceptance(0.6);
  server.run(1, 500);
  StepShape plain;
  plain.add(true, 300, 1);
  const RequestAcceptance request;
  const std::vector<uint8_t> bins(4, 0);
  const std::vector<DraftOffer> offers = {{DraftSource::kNgram, bins, &request, 300}};
  std::vector<int32_t> granted(1);
  DraftLimits limits = {.shape = plain, .num_decodes = 1, .max_draft_rows = 100};
  const CostModel cost;
  EXPECT_GT(server.budget().choose(cost, limits, offers, granted).num_rows, 0);
  limits.draft_ms = 10;
  const DraftDecision decision = server.budget().choose(cost, limits, offers, granted);
  EXPECT_EQ(decision.num_rows, 0);
  EXPECT_TRUE(decision.off.has_value());
}

}  // namespace
}  // namespace sluice
