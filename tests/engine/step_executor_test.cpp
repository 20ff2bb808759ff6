// SPDX-License-Identifier: Apache-2.0
// Steps run from orders only, without a scheduler, KV manager or request table: hand-written
// orders, copied as on their way to another process, give the engine's results.
#include "engine/run/step_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/run/step_order.h"
#include "engine/run/step_queue.h"
#include "engine/sampling/grammar/grammar.h"
#include "engine/weights/gguf.h"
#include "tests/support/gguf_tensor.h"
#include "tests/support/golden_folder.h"
#include "tests/support/oracle_f64.h"
#include "tests/support/order_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::begun;
using testing::choice_of;
using testing::Collected;
using testing::embed;
using testing::kOrderSlot;
using testing::order_of;
using testing::OrderRig;

Config tiny_config(bool overlap) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.max_num_seqs = 4;
  config.max_model_len = 128;
  config.kv_cache_memory = int64_t{2} << 20;
  config.overlap = overlap;
  return config;
}

// The second request's choice reads earlier tokens.
std::vector<ValidRequest> two_requests() {
  std::vector<ValidRequest> requests = testing::seeded_requests(2);
  for (ValidRequest& request : requests) {
    request.prompt.resize(21, 7);
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 20;
    request.sampling.num_prompt_logprobs = -1;
  }
  requests[1].sampling.repetition_penalty = 1.4F;
  requests[1].sampling.frequency_penalty = 0.6F;
  requests[1].sampling.bad_words = {{7, 8}, {9}};
  return requests;
}

void expect_chosen(const StepWork& work, const Collected& expected, size_t first) {
  ASSERT_EQ(work.requests.size(), 1U);
  const SampledRequest& request = work.requests.front();
  for (size_t i = 0; i < request.num_tokens; ++i) {
    ASSERT_LT(first + i, expected.tokens.size());
    EXPECT_EQ(work.results[i].token, expected.tokens[first + i]) << first + i;
    EXPECT_EQ(std::memcmp(&work.results[i].logprob, &expected.logprobs[first + i], sizeof(float)),
              0)
        << first + i;
  }
}

class Orders : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    requests_ = two_requests();
    const auto engine = testing::start_engine(tiny_config(false));
    ASSERT_NE(engine, nullptr);
    expected_ = testing::run_alone(*engine, requests_);
  }

  // Runs the prompt in two pieces; the second one chooses the first token, without waiting for it.
  void begin(OrderRig& rig, size_t i, RequestId id, const std::vector<int32_t>& ended) {
    const std::vector<TokenId>& prompt = requests_[i].prompt;
    StepOrder first = order_of(id, 0, {prompt.begin(), prompt.begin() + 9});
    first.begun.push_back(begun(id, requests_[i]));
    first.ended_slots = ended;
    rig.submit(first);
    const StepWork& work = rig.executor().retire();
    EXPECT_TRUE(work.requests.empty());
    StepOrder second = order_of(id, 9, {prompt.begin() + 9, prompt.end()});
    const auto length = static_cast<int32_t>(prompt.size());
    second.decision.scheduled.front().chosen = {length - 1, length};
    rig.submit(second);
  }

  std::vector<ValidRequest> requests_;
  std::vector<Collected> expected_;
};

INSTANTIATE_TEST_SUITE_P(Overlap, Orders, ::testing::Bool());

// One request after the other in the same slot; the previous step's token may still be open.
TEST_P(Orders, GiveWhatTheEngineGives) {
  OrderRig rig(tiny_config(GetParam()));
  StepExecutor& executor = rig.executor();
  EXPECT_EQ(executor.depth(), GetParam() ? 1 : 0);
  for (size_t i = 0; i < requests_.size(); ++i) {
    const RequestId id(i + 1);
    begin(rig, i, id, i == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{kOrderSlot});
    const std::vector<TokenId>& all = expected_[i].tokens;
    const auto length = static_cast<int32_t>(requests_[i].prompt.size());
    for (size_t n = 0; n + 1 < all.size(); ++n) {
      if (executor.depth() == 0) expect_chosen(executor.retire(), expected_[i], n);
      const TokenId last = executor.depth() == 0 ? all[n] : kInvalidToken;
      rig.submit(choice_of(id, length + static_cast<int32_t>(n), {last}));
      if (executor.depth() == 1) expect_chosen(executor.retire(), expected_[i], n);
      if (HasFatalFailure()) return;
    }
    const StepWork& work = executor.retire();
    expect_chosen(work, expected_[i], all.size() - 1);
    EXPECT_EQ(work.results.front().finish_reason, FinishReason::kLength);
    EXPECT_EQ(executor.num_in_flight(), 0);
  }
}

// Two right drafts and a wrong one in each step: three tokens per step, and the next step's history
// has the accepted ones.
TEST_P(Orders, TakeDraftsAsFarAsTheyAreRight) {
  OrderRig rig(tiny_config(GetParam()));
  StepExecutor& executor = rig.executor();
  for (size_t i = 0; i < requests_.size(); ++i) {
    const RequestId id(i + 1);
    begin(rig, i, id, {});
    expect_chosen(executor.retire(), expected_[i], 0);
    const std::vector<TokenId>& all = expected_[i].tokens;
    const auto length = static_cast<int32_t>(requests_[i].prompt.size());
    for (size_t n = 0; n + 4 < all.size(); n += 3) {
      const TokenId wrong = all[n + 3] == 5 ? 6 : 5;
      rig.submit(
          choice_of(id, length + static_cast<int32_t>(n), {all[n], all[n + 1], all[n + 2], wrong}));
      const StepWork& work = executor.retire();
      ASSERT_EQ(work.requests.front().num_tokens, 3U);
      expect_chosen(work, expected_[i], n + 1);
      if (HasFatalFailure()) return;
    }
  }
}

// A grammar without constraints, to observe how long it is held.
class FreeGrammar final : public Grammar {
 public:
  [[nodiscard]] std::unique_ptr<GrammarMatcher> match() const override {
    class Matcher final : public GrammarMatcher {
      bool accept(TokenId) override { return true; }

      void rollback(int32_t) override {}

      Allowed fill(std::span<uint32_t> row) override {
        std::ranges::fill(row, ~uint32_t{0});
        return Allowed::kAll;
      }

      [[nodiscard]] bool is_completed() const override { return true; }
    };

    return std::make_unique<Matcher>();
  }

  [[nodiscard]] int64_t bytes() const override { return 0; }
};

TEST_P(Orders, AreLetGoOfWhereNoneFollows) {
  OrderRig rig(tiny_config(GetParam()));
  StepExecutor& executor = rig.executor();
  std::weak_ptr<const Grammar> grammar;
  std::weak_ptr<const RequestRecord> record;
  {
    StepOrder order = order_of(RequestId(1), 0, requests_[0].prompt);
    const int32_t end = order.decision.scheduled.front().end();
    order.decision.scheduled.front().chosen = {end - 1, end};
    RequestRecord constrained = *begun(RequestId(1), requests_[0]);
    constrained.grammar = std::make_shared<const BoundGrammar>(
        BoundGrammar{.grammar = std::make_shared<FreeGrammar>()});
    grammar = constrained.grammar->grammar;
    order.begun.push_back(std::make_shared<const RequestRecord>(std::move(constrained)));
    record = order.begun.front();
    rig.submit(order);
  }
  EXPECT_EQ(executor.retire().requests.front().num_tokens, 1U);
  EXPECT_FALSE(grammar.expired());
  const std::vector<int32_t> ended = {kOrderSlot};
  executor.release(ended);
  EXPECT_TRUE(grammar.expired());
  EXPECT_TRUE(record.expired());
}

// A step that names a slot without its request is a bug in the order.
TEST(OrdersDeath, NameRequestsThatHaveBegun) {
  EXPECT_DEATH(
      {
        OrderRig rig(tiny_config(false));
        rig.submit(choice_of(RequestId(1), 0, {5}));
      },
      "request.id");
}

// --- Embedded rows ---------------------------------------------------------------------------

class RandomModel {
 public:
  RandomModel() {
    const std::vector<WeightFormat> formats = {WeightFormat::kF32};
    EXPECT_TRUE(testing::write_random_model(
        golden_folder() + "/tiny/tiny-llama.gguf", path_, formats, WeightFormat::kF32));
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.at("random.gguf");
};

// The head turns a state into the logits of double arithmetic, so it is the state behind the last
// norm; its bits do not depend on the step. A step has more such rows than it may choose.
TEST(EmbeddedRows, AreTheStatesBehindTheLastNorm) {
  const RandomModel model;
  Config config = tiny_config(false);
  config.model = model.path();
  config.activation_bits = 32;
  config.kv_cache_dtype = "float32";
  const auto file = GgufFile::open(model.path());
  ASSERT_TRUE(file.has_value()) << file.error().message;
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < 37; ++i) tokens.push_back((i * 89 + 11) % 487);
  const testing::OracleF64 oracle(**file);
  const std::vector<double> expected = oracle.forward(tokens);
  const auto vocab = static_cast<size_t>(oracle.vocab_size());
  const GgufTensor* head = find_tensor(**file, "output.weight");
  if (head == nullptr) head = find_tensor(**file, "token_embd.weight");
  ASSERT_NE(head, nullptr);
  const auto* const weights = reinterpret_cast<const float*>(head->data.data());

  const std::vector<std::vector<float>> states = embed(config, tokens, 37);
  ASSERT_EQ(states.size(), tokens.size());
  const size_t hidden = states.front().size();
  ASSERT_EQ(hidden * vocab * sizeof(float), head->data.size());
  const auto [low, high] = std::ranges::minmax_element(expected);
  double worst = 0;
  for (size_t row = 0; row < states.size(); ++row) {
    for (size_t token = 0; token < vocab; ++token) {
      double logit = 0;
      for (size_t i = 0; i < hidden; ++i) {
        logit +=
            static_cast<double>(states[row][i]) * static_cast<double>(weights[token * hidden + i]);
      }
      worst = std::max(worst, std::abs(logit - expected[row * vocab + token]));
    }
  }
  EXPECT_LE(worst / (*high - *low), 1e-5);

  config.overlap = true;
  EXPECT_EQ(embed(config, tokens, 5), states);
}

// --- The queue -------------------------------------------------------------------------------

TEST(StepQueue, RunsStepsInOrderOnItsThreadOrAtOnce) {
  const auto device = kernels::Device::create({.threads = 1});
  ASSERT_TRUE(device.has_value());
  for (const bool has_thread : {false, true}) {
    std::vector<uint64_t> ran;
    std::atomic<bool> may_run = !has_thread;
    {
      StepQueue queue(
          [&](uint64_t number) {
            may_run.wait(false);
            ran.push_back(number);
          },
          has_thread,
          **device);
      EXPECT_EQ(queue.has_thread(), has_thread);
      for (int i = 0; i < 3; ++i) queue.push();  // with a thread, none has run
      may_run = true;
      may_run.notify_all();
      queue.wait(2);
      EXPECT_EQ(ran, (std::vector<uint64_t>{0, 1, 2}));
      for (int i = 0; i < 100; ++i) queue.push();
    }
    ASSERT_EQ(ran.size(), 103U);
    EXPECT_TRUE(std::ranges::is_sorted(ran));
  }
}

}  // namespace
}  // namespace sluice
