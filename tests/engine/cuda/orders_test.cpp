// SPDX-License-Identifier: Apache-2.0
// Hand-written orders on a device with its own queue: rows that it chooses, whose tokens are open
// in the next order, rows that the host chooses, and embedded states.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/run/step_executor.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/order_rig.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::kOrderSlot;
using testing::TinyModel;
using testing::TinyWeights;

// Two requests: the device chooses rows of one, the host those of the other.
std::vector<ValidRequest> requests_of_both_kinds() {
  const std::vector<ValidRequest> all = testing::tiny_requests();
  return {all[1], all[4]};
}

// An order is queued before the previous one has been retired.
TEST(CudaOrders, GiveWhatTheEngineGives) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const std::vector<ValidRequest> requests = requests_of_both_kinds();
  std::unique_ptr<Engine> engine = testing::start_engine(model.config("cuda"));
  ASSERT_NE(engine, nullptr);
  const std::vector<Collected> expected = testing::run_alone(*engine, requests);
  engine.reset();
  testing::OrderRig rig(model.config("cuda"));
  StepExecutor& executor = rig.executor();
  EXPECT_EQ(executor.depth(), 1);
  EXPECT_FALSE(executor.is_threaded());
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    const std::vector<TokenId>& prompt = requests[i].prompt;
    const auto length = static_cast<int32_t>(prompt.size());
    StepOrder order = testing::order_of(id, 0, prompt);
    order.decision.scheduled.front().chosen = {length - 1, length};
    order.begun.push_back(testing::begun(id, requests[i]));
    if (i > 0) order.ended_slots = {kOrderSlot};
    rig.submit(order);
    for (size_t n = 0; n < expected[i].tokens.size(); ++n) {
      // A step with work for the host is finished when it is submitted.
      EXPECT_EQ(executor.is_oldest_done(), i == 1);
      if (n + 1 < expected[i].tokens.size()) {
        rig.submit(testing::choice_of(id, length + static_cast<int32_t>(n), {kInvalidToken}));
      }
      const StepWork& work = executor.retire();
      ASSERT_EQ(work.tokens.size(), 1U);
      EXPECT_EQ(work.tokens.front(), expected[i].tokens[n]) << i << " " << n;
      EXPECT_EQ(work.results.front().logprob, expected[i].logprobs[n]) << i << " " << n;
      EXPECT_EQ(work.follows, i == 0 && n > 0);
    }
  }
}

// A step with partly right drafts, and behind it one whose rows assume that all are right,
// submitted before the first has been seen; recorded or not. A draft of the second step is right if
// it comes behind what was guessed.
TEST(CudaOrders, RowsBehindDraftsAreWhereTheStepBeforeLetsThemBe) {
  constexpr int32_t kDrafts = 3;
  const TinyModel model(TinyWeights::kInt8, "float32");
  ValidRequest request = testing::tiny_requests()[1];
  request.sampling.max_tokens = kDrafts + 4;
  Config config = model.config("cuda");
  std::unique_ptr<Engine> engine = testing::start_engine(config);
  ASSERT_NE(engine, nullptr);
  const Collected expected = testing::run_alone(*engine, {request})[0];
  engine.reset();
  ASSERT_EQ(expected.tokens.size(), size_t{kDrafts + 4});
  config.cuda_graph_sizes = {2};  // the second step is replayed, the first is not
  testing::OrderRig rig(config);
  StepExecutor& executor = rig.executor();
  const auto length = static_cast<int32_t>(request.prompt.size());
  for (int32_t right = 0; right <= kDrafts; ++right) {
    const RequestId id(static_cast<uint64_t>(right) + 1);
    StepOrder order = testing::order_of(id, 0, request.prompt);
    order.decision.scheduled.front().chosen = {length - 1, length};
    order.begun.push_back(testing::begun(id, request));
    if (right > 0) order.ended_slots = {kOrderSlot};
    rig.submit(order);
    ASSERT_EQ(executor.retire().tokens.front(), expected.tokens[0]);
    std::vector<TokenId> tokens(expected.tokens.begin(), expected.tokens.begin() + kDrafts + 1);
    if (right < kDrafts) tokens[static_cast<size_t>(right) + 1] ^= 1;
    rig.submit(testing::choice_of(id, length, tokens));
    StepOrder behind =
        testing::choice_of(id, length + kDrafts + 1, {kInvalidToken, expected.tokens[kDrafts + 2]});
    behind.decision.scheduled.front().num_unsure = kDrafts;
    rig.submit(behind);
    const auto at = static_cast<size_t>(right);
    EXPECT_EQ(executor.retire().requests.front().num_tokens, at + 1);
    const StepWork& work = executor.retire();
    EXPECT_TRUE(work.follows);
    EXPECT_EQ(work.tokens.front(), expected.tokens[at + 2]) << right;
    EXPECT_EQ(work.results.front().logprob, expected.logprobs[at + 2]) << right;
    EXPECT_EQ(work.requests.front().num_tokens_before, length + right + 2);
    if (right < kDrafts) continue;
    EXPECT_EQ(work.requests.front().num_tokens, 2U);
    EXPECT_EQ(work.tokens[1], expected.tokens[kDrafts + 3]);
  }
}

TEST(CudaOrders, StatesAreTheCpus) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const std::vector<TokenId> tokens = testing::tiny_prompt(21, 3);
  const std::vector<std::vector<float>> states = testing::embed(model.config("cuda"), tokens, 21);
  ASSERT_EQ(states.size(), tokens.size());
  EXPECT_EQ(states, testing::embed(model.config("cuda"), tokens, 4));
  EXPECT_EQ(states, testing::embed(model.config("cpu"), tokens, 21));
}

}  // namespace
}  // namespace sluice
