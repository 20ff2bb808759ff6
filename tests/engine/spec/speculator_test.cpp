// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/speculator.h"
#include "tests/support/tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace sluice {
namespace {

using Tokens = std::vector<TokenId>;

SpecConfig all_methods() {
  SpecConfig config;
  config.ngram = true;
  config.suffix = true;
  config.prompt_lookup_min = 2;
  config.prompt_lookup_max = 4;
  return config;
}

// Has room for every answer of these tests.
TokenLog log_of(Tokens tokens) { return {std::move(tokens), 40'000}; }

Tokens guess_of(const Draft& draft) { return {draft.guessed().begin(), draft.guessed().end()}; }

// Always makes the same guess, and records its calls.
class ScriptedProposer : public Proposer {
 public:
  ScriptedProposer(DraftSource source, Tokens guess, std::vector<Tokens>* seen = nullptr)
      : source_(source), guess_(std::move(guess)), seen_(seen) {}

  std::string_view name() const override { return "scripted"; }

  void begin(int32_t, const RequestRecord&) override {}

  void propose(int32_t, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(source_);
    if (seen_ != nullptr) seen_->emplace_back(known.begin(), known.end());
    for (size_t j = 0; j < guess_.size() && j < static_cast<size_t>(max); ++j) {
      draft.push(guess_[j], 0);
    }
  }

  void end(int32_t, std::span<const TokenId>) override {}

  int64_t memory_bytes() const override { return 0; }

 private:
  DraftSource source_;
  Tokens guess_;
  std::vector<Tokens>* seen_;
};

template <typename... Proposers>
Speculator speculator_of(int32_t vocab_size, Proposers... proposers) {
  std::vector<std::unique_ptr<Proposer>> all;
  (all.push_back(std::make_unique<ScriptedProposer>(std::move(proposers))), ...);
  return Speculator(std::move(all), vocab_size);
}

TEST(Speculator, ProposersSeeThePromptAndWhatWasCommitted) {
  std::vector<Tokens> seen;
  auto speculator = speculator_of(100, ScriptedProposer(DraftSource::kNgram, {5}, &seen));
  const DraftSurvival survival;
  Draft draft;
  TokenLog log = log_of({1, 2});
  speculator.begin({.id = RequestId{9}, .log = log, .num_prompt_tokens = 2});
  speculator.propose(RequestId{9}, 4, survival, draft);
  log.append(Tokens{3, 4});
  log.append(Tokens{5});
  speculator.propose(RequestId{9}, 4, survival, draft);
  EXPECT_EQ(seen, (std::vector<Tokens>{{1, 2}, {1, 2, 3, 4, 5}}));
}

TEST(Speculator, SourceOfWhichMoreIsAcceptedIsTaken) {
  auto speculator = speculator_of(100,
                                  ScriptedProposer(DraftSource::kSuffix, {1, 2, 3}),
                                  ScriptedProposer(DraftSource::kNgram, {4, 5, 6}));
  DraftSurvival survival;
  Draft draft;
  speculator.begin({.id = RequestId{1}, .log = log_of({1}), .num_prompt_tokens = 1});
  speculator.propose(RequestId{1}, 8, survival, draft);
  EXPECT_EQ(draft.source, DraftSource::kSuffix);  // the first among equals
  const std::vector<uint8_t> bins(3, 0);
  for (int i = 0; i < 50; ++i) {
    RequestAcceptance request;
    survival.observe(DraftSource::kSuffix, bins, 0, request);
    survival.observe(DraftSource::kNgram, bins, 3, request);
  }
  speculator.propose(RequestId{1}, 8, survival, draft);
  EXPECT_EQ(draft.source, DraftSource::kNgram);
  EXPECT_EQ(guess_of(draft), (Tokens{4, 5, 6}));
}

TEST(Speculator, TokensOutsideTheVocabularyEndADraft) {
  auto speculator = speculator_of(100, ScriptedProposer(DraftSource::kReplay, {1, 99, 100, 2}));
  auto negative = speculator_of(100, ScriptedProposer(DraftSource::kReplay, {kInvalidToken, 2}));
  const DraftSurvival survival;
  Draft draft;
  for (Speculator* one : {&speculator, &negative}) {
    one->begin({.id = RequestId{1}, .log = log_of({1}), .num_prompt_tokens = 1});
  }
  speculator.propose(RequestId{1}, 8, survival, draft);
  EXPECT_EQ(guess_of(draft), (Tokens{1, 99}));
  negative.propose(RequestId{1}, 8, survival, draft);
  EXPECT_EQ(draft.size, 0);
}

TEST(Speculator, PredictionIsFollowedWhateverIsConfigured) {
  for (const SpecConfig& config : {SpecConfig{}, all_methods()}) {
    Speculator speculator(config, 1000);
    const Tokens prediction = {10, 11, 12, 13};
    const DraftSurvival survival;
    Draft draft;
    speculator.begin({.id = RequestId{1},
                      .log = log_of({1, 2, 3}),
                      .num_prompt_tokens = 3,
                      .prediction = prediction});
    speculator.propose(RequestId{1}, 3, survival, draft);
    EXPECT_EQ(draft.source, DraftSource::kPrediction);
    EXPECT_EQ(guess_of(draft), (Tokens{10, 11, 12}));
  }
}

TEST(Speculator, RequestThatEndedOrNeverBeganIsNoError) {
  Speculator speculator(all_methods(), 100);
  const DraftSurvival survival;
  Draft draft;
  draft.push(1, 0);
  speculator.propose(RequestId{3}, 4, survival, draft);
  EXPECT_EQ(draft.size, 0);
  speculator.end(RequestId{3});
}

TEST(Speculator, MemoryNeverExceedsWhatIsPlanned) {
  std::mt19937_64 random(2);
  SpecConfig replay;
  replay.replay = true;
  for (const SpecConfig& config : {SpecConfig{}, all_methods(), replay}) {
    constexpr int32_t kRequests = 6;
    constexpr int64_t kLength = 3000;
    Speculator speculator(config, 300);
    const int64_t planned = Speculator::max_memory_bytes(config, kRequests, kLength);
    const DraftSurvival survival;
    uint64_t next_id = 1;
    for (int round = 0; round < 4; ++round) {
      const uint64_t first = next_id;
      std::vector<TokenLog> logs;
      for (int32_t i = 0; i < kRequests; ++i) {
        Tokens known(kLength - 500);
        for (TokenId& token : known) token = static_cast<TokenId>(random() % 300);
        logs.push_back(log_of(known));
        speculator.begin({.id = RequestId{next_id++},
                          .log = logs.back(),
                          .num_prompt_tokens = static_cast<int32_t>(random() % 2500),
                          .prediction = known,
                          .tenant_salt = random()});
      }
      Draft draft;
      for (int step = 0; step < 500; ++step) {
        for (uint64_t id = first; id < next_id; ++id) {
          speculator.propose(RequestId{id}, 8, survival, draft);
          logs[id - first].append(Tokens{static_cast<TokenId>(random() % 300)});
        }
        if (step % 50 != 0) continue;
        ASSERT_LE(speculator.memory_bytes(), planned);
      }
      for (uint64_t id = first; id < next_id; ++id) speculator.end(RequestId{id});
      ASSERT_LE(speculator.memory_bytes(), planned);
    }
  }
}

// Requests in any order with repeating texts: no proposer guesses too much or outside the
// vocabulary, requests do not mix, and memory does not grow with their number.
TEST(Speculator, RandomOrdersOfCallsKeepTheContract) {
  std::mt19937_64 random(1);
  Speculator speculator(all_methods(), 20);
  DraftSurvival survival;
  std::map<uint64_t, TokenLog> running;
  uint64_t next_id = 1;
  int64_t memory_halfway = 0;
  const int num_calls = testing::sample_of(20'000, 60'000);
  for (int call = 0; call < num_calls; ++call) {
    if (call == num_calls / 2) memory_halfway = speculator.memory_bytes();
    const bool begins = running.size() < 8 && random() % 8 == 0;
    if (begins || running.empty()) {
      Tokens prompt(1 + random() % 50);
      for (TokenId& token : prompt) token = static_cast<TokenId>(random() % 20);
      Tokens prediction(random() % 3 == 0 ? random() % 40 : 0);
      for (TokenId& token : prediction) token = static_cast<TokenId>(random() % 20);
      const auto num_prompt_tokens = static_cast<int32_t>(1 + random() % prompt.size());
      running[next_id] = log_of(prompt);
      speculator.begin({.id = RequestId{next_id},
                        .log = running[next_id],
                        .num_prompt_tokens = num_prompt_tokens,
                        .prediction = prediction,
                        .tenant_salt = random() % 3});
      ++next_id;
      continue;
    }
    auto one = running.begin();
    std::advance(one, static_cast<std::ptrdiff_t>(random() % running.size()));
    const RequestId id{one->first};
    if (random() % 40 == 0) {
      speculator.end(id);
      running.erase(one);
      continue;
    }
    const auto max = static_cast<int32_t>(random() % 80);
    Draft draft;
    speculator.propose(id, max, survival, draft);
    ASSERT_LE(draft.size, std::min(max, kMaxDraftTokens));
    for (const TokenId token : draft.guessed()) ASSERT_TRUE(token >= 0 && token < 20);
    for (const uint8_t bin : draft.confidence()) ASSERT_LT(bin, kNumConfidenceBins);
    RequestAcceptance request;
    const auto accepted =
        static_cast<int32_t>(draft.size > 0 ? random() % static_cast<uint64_t>(draft.size + 1) : 0);
    survival.observe(draft.source, draft.confidence(), accepted, request);
    Tokens committed = guess_of(draft);
    committed.resize(static_cast<size_t>(accepted));
    committed.push_back(static_cast<TokenId>(random() % 20));
    one->second.append(committed);
  }
  EXPECT_LE(speculator.memory_bytes(), memory_halfway + (int64_t{8} << 20));
}

}  // namespace
}  // namespace sluice
