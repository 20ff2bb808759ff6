// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine of one process: what the second answers is what one engine alone
// does, bit for bit, whether or not blocks have come.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/handoff_engine_rig.h"
#include "tests/support/shared_model.h"

namespace sluice {
namespace {

TEST_P(HandoffEngineTest, AFetchedPromptGetsTheBitsOfOneEngine) {
  std::vector<ValidRequest> whole;
  for (int i = 0; i < 6; ++i) whole.push_back(request(i));
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ASSERT_TRUE(p->model().handoff.has_value());
  expect_fetched(whole, expected, *p, *d);
  EXPECT_EQ(peers_.sent["Release"], 6);
  d->stop();
  p->stop();
}

TEST_P(HandoffEngineTest, RequestsThatRoutersSendAtOnceGetTheBitsOfOneEngine) {
  std::vector<ValidRequest> whole;
  std::vector<ValidRequest> offers;
  std::vector<ValidRequest> fetches;
  for (int i = 0; i < 6; ++i) {
    whole.push_back(request(i));
    offers.push_back(prefill(i, HandoffMode::kConcurrent));
    fetches.push_back(request(i));
    fetches.back().handoff = fetch(transfer(i));
  }
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  std::thread prefills([&] { testing::run_together(*p, offers); });
  const std::vector<Collected> actual = testing::run_together(*d, fetches);
  prefills.join();
  testing::expect_same(expected, actual, "fetched");
  EXPECT_GE(peers_.sent["Release"], 1);
  d->stop();
  p->stop();
}

// Groups of windows and states keep the first prompt's end alone, so that the second cannot go on
// from the beginning that they share, though other groups have it.
TEST_P(HandoffEngineTest, APromptThatBeginsLikeAnotherComesAsWhole) {
  std::vector<ValidRequest> whole = {request(1), request(2)};
  std::copy_n(whole[0].prompt.begin(), 64, whole[1].prompt.begin());
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::vector<Collected> actual = testing::run_together(*d, {fetched(*p, whole[i])});
    testing::expect_same({expected[i]}, actual, "fetched");
    const auto num_tokens = static_cast<int32_t>(whole[i].prompt.size());
    EXPECT_EQ(actual[0].num_cached_tokens, (num_tokens - 1) / 16 * 16) << i;
  }
  EXPECT_EQ(d->stats().handoff->num_in, 2U);
  expect_free(*d);
  d->stop();
  p->stop();
}

// A long prompt travels as far as possible before the last of it is computed.
TEST_P(HandoffEngineTest, ALongPromptEndsWithAShortChunkAndTheBitsOfOneEngine) {
  constexpr int kNumber = 22;
  const ValidRequest whole = request(kNumber);
  const auto num_tokens = static_cast<int32_t>(whole.prompt.size());
  config_.step_target_ms = 10'000;
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, {whole});
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ValidRequest fetched = whole;
  fetched.handoff = fetch(transfer(kNumber));
  std::thread prefills([&] {
    testing::run_together(*p, {prefill(kNumber, HandoffMode::kConcurrent)});
  });
  const std::vector<Collected> actual = testing::run_together(*d, {fetched});
  prefills.join();
  testing::expect_same(expected, actual, "fetched");
  EXPECT_EQ(d->stats().handoff->num_in, 1U);
  std::promise<EngineState> state;
  p->report_state(10, [&](EngineState reported) { state.set_value(std::move(reported)); });
  const std::vector<StepRecord> steps = state.get_future().get().steps;
  ASSERT_GE(steps.size(), 2U);
  EXPECT_EQ(steps.back().num_prefill_tokens, num_tokens - (num_tokens - 256 + 15) / 16 * 16);
  d->stop();
  p->stop();
}

// Aborted at any moment, by either client, and with a worker that goes away: no block stays taken.
TEST_P(HandoffEngineTest, NothingStaysTakenWhateverEnds) {
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_NE(d, nullptr);
  for (int round = 0; round < 6; ++round) {
    std::unique_ptr<Engine> p = start("p");
    ASSERT_NE(p, nullptr);
    testing::CollectingSink sink;
    testing::CollectingSink sink_of_p;
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i) {
      const auto offer = prefill(4 * round + i, HandoffMode::kConcurrent);
      const auto at_p = p->submit(offer, sink_of_p);
      ASSERT_TRUE(at_p);
      ValidRequest fetched = request(4 * round + i);
      fetched.handoff = fetch(transfer(4 * round + i));
      const auto at_d = d->submit(fetched, sink);
      ASSERT_TRUE(at_d);
      ids.push_back(*at_d);
      if (i == 1) p->abort(*at_p);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    d->abort(ids[0]);
    peers_.cut();
    p->stop();
    p.reset();
    for (const RequestId id : ids) {
      const Collected ended = sink.wait(id);
      EXPECT_NE(ended.finish_reason, FinishReason::kError) << ended.error;
    }
  }
  expect_free(*d);
  d->stop();
}

// Blocks that are not what they should be: the row of logits behind the prompt says so, and the
// request begins again, whatever else reads its tokens.
TEST_P(HandoffEngineTest, AnotherRowOfLogitsMeansThatThePromptIsComputedAgain) {
  for (const bool overlap : {false, true}) {
    config_.overlap = overlap;
    std::vector<ValidRequest> offers;
    std::vector<ValidRequest> fetches;
    split(6, offers, fetches);
    for (size_t i = 0; i < fetches.size(); ++i) {
      fetches[i].sampling.repetition_penalty = i % 2 == 0 ? 1.0F : 1.3F;
      fetches[i].sampling.max_tokens = i < 2 ? 1 : 20;
    }
    std::vector<ValidRequest> whole = fetches;
    for (ValidRequest& one : whole) one.handoff.reset();
    const std::unique_ptr<Engine> alone = testing::start_engine(config_);
    const std::vector<Collected> expected = testing::run_together(*alone, whole);
    peers_.change = [](KvMessage& message) {
      if (auto* final = std::get_if<KvFinal>(&message)) final->check ^= 4;
    };
    const std::unique_ptr<Engine> p = start("p");
    const std::unique_ptr<Engine> d = start("d");
    ASSERT_TRUE(p != nullptr && d != nullptr);
    std::thread prefills([&] { testing::run_together(*p, offers); });
    const std::vector<Collected> actual = testing::run_together(*d, fetches);
    prefills.join();
    testing::expect_same(expected, actual, "computed again");
    EXPECT_EQ(num_fallbacks(*d, HandoffFallback::kFirstToken), d->stats().handoff->num_in);
    EXPECT_GE(d->stats().handoff->num_in, 1U);
    // What is cached now is right.
    const std::vector<Collected> again = testing::run_together(*d, whole);
    testing::expect_same(expected, again, "once more");
    expect_free(*d);
    d->stop();
    p->stop();
  }
}

TEST_P(HandoffEngineTest, RequestsThatWaitForBlocksDoNotKeepOthersFromRunning) {
  config_.max_num_seqs = 1;
  std::vector<ValidRequest> offers;
  std::vector<ValidRequest> fetches;
  split(4, offers, fetches);
  peers_.drop = [](const KvMessage& message) { return std::holds_alternative<KvFinal>(message); };
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  testing::CollectingSink sink;
  std::vector<RequestId> ids;
  for (const ValidRequest& one : fetches) {
    const auto id = d->submit(one, sink);
    ASSERT_TRUE(id);
    ids.push_back(*id);
  }
  testing::run_together(*p, offers);
  for (int i = 0; i < 500 && d->stats().handoff->num_receiving == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(d->stats().handoff->num_receiving, 1);  // as many as may run
  EXPECT_GT(d->stats().handoff->num_reserved_blocks, 0);
  const std::vector<Collected> ran = testing::run_together(*d, {request(7), request(8)});
  for (const Collected& one : ran) EXPECT_EQ(one.finish_reason, FinishReason::kLength) << one.error;
  for (const RequestId id : ids) d->abort(id);
  for (const RequestId id : ids) sink.wait(id);
  expect_free(*d);
  d->stop();
  p->stop();
}

TEST_P(HandoffEngineTest, AWorkerThatEndsComputesWhatItHasAcceptedAndServesWhatItHasPromised) {
  std::vector<ValidRequest> whole;
  for (int i = 0; i < 6; ++i) whole.push_back(request(i));
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  for (const bool is_prefill : {false, true}) {
    std::vector<ValidRequest> offers;
    std::vector<ValidRequest> fetches;
    split(6, offers, fetches);
    const std::unique_ptr<Engine> p = start("p");
    const std::unique_ptr<Engine> d = start("d");
    ASSERT_TRUE(p != nullptr && d != nullptr);
    testing::CollectingSink sink_of_p;
    testing::CollectingSink sink;
    std::vector<RequestId> ids;
    for (size_t i = 0; i < fetches.size(); ++i) {
      ASSERT_TRUE(p->submit(offers[i], sink_of_p));
      const auto id = d->submit(fetches[i], sink);
      ASSERT_TRUE(id);
      ids.push_back(*id);
    }
    (is_prefill ? *p : *d).drain();
    std::vector<Collected> actual;
    for (const RequestId id : ids) actual.push_back(sink.wait(id));
    testing::expect_same(expected, actual, is_prefill ? "P ends" : "D ends");
    expect_free(*d);
    d->stop();
    p->stop();
  }
}

TEST_P(HandoffEngineTest, APolicyMayEndRequestsWhoseBlocksDoNotCome) {
  config_.kv_transfer_config =
      R"({"kv_connector":"NixlConnector","kv_role":"kv_both","kv_load_failure_policy":"fail"})";
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_NE(d, nullptr);
  ValidRequest fetched = request(1);
  fetched.handoff = fetch(transfer(1));
  const std::vector<Collected> nobody = testing::run_together(*d, {fetched, request(2)});
  EXPECT_EQ(nobody[0].finish_reason, FinishReason::kError);
  EXPECT_EQ(nobody[0].error_code, ErrorCode::kUnavailable);
  EXPECT_EQ(nobody[0].retry_after_s, 1);
  EXPECT_NE(nobody[0].error.find("peer_gone"), std::string::npos) << nobody[0].error;
  EXPECT_TRUE(nobody[0].tokens.empty());
  EXPECT_EQ(nobody[1].finish_reason, FinishReason::kLength);
  const std::unique_ptr<Engine> p = start("p");
  peers_.change = [](KvMessage& message) {
    if (auto* claim = std::get_if<KvClaim>(&message)) claim->epoch = 7;
  };
  const std::vector<Collected> refused = testing::run_together(*d, {fetched});
  EXPECT_EQ(refused[0].error_code, ErrorCode::kUnavailable);
  expect_fallback(*d, HandoffFallback::kRefused);
  expect_free(*d);
  d->stop();
  p->stop();
}

// One that another worker has begun to answer is over with its prompt at its first token here too.
TEST_P(HandoffEngineTest, AnAnswerThatGoesOnHereKeepsNoFallbackWaiting) {
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_NE(d, nullptr);
  ValidRequest begun = request(1);
  begun.generated = {1, 2, 3};
  begun.sampling.max_tokens = 800;
  begun.handoff = fetch(transfer(1));  // from nobody
  ValidRequest other = request(2);
  other.sampling.max_tokens = 2;
  other.handoff = fetch(transfer(2));
  testing::CollectingSink sink;
  const auto first = d->submit(begun, sink);
  ASSERT_TRUE(first);
  sink.wait_tokens(*first, 1);
  const auto second = d->submit(other, sink);
  ASSERT_TRUE(second);
  sink.wait(*second);
  d->abort(*first);
  EXPECT_EQ(sink.wait(*first).finish_reason, FinishReason::kAbort);
  d->stop();
}

// Models whose layers ranks can share.
class HandoffRanksTest : public HandoffEngineTest {
 protected:
  HandoffRanksTest() {
    config_.max_model_len = 256;
    config_.threads = 2;
    const std::string model = std::get<1>(GetParam());
    if (model.ends_with(".gguf")) return;
    testing::write_model(folder_, model, {{"v_head_dim", 32}, {"moe_intermediate_size", 288}});
    config_.model = folder_.path();
    config_.load_format = "dummy";
  }

 private:
  testing::TemporaryFolder folder_;
};

// Heads that a rank has alone and, on four ranks of two KV heads, heads that two have; latents,
// which all have; states, of whose convolved channels a rank has a range of each part.
TEST_P(HandoffRanksTest, WorkersOfAnyNumberOfRanksGiveTheBitsOfOneEngine) {
  constexpr std::pair<int32_t, int32_t> kRanks[] = {{2, 1}, {1, 2}, {2, 2}, {4, 1}, {2, 4}};
  std::vector<ValidRequest> whole;
  for (int i = 0; i < 3; ++i) whole.push_back(request(i));
  const std::string model = std::get<1>(GetParam());
  const bool has_codes = model != "models/deepseek-v3" && model != "models/glm-moe-dsa";
  for (const char* dtype : {"bfloat16", has_codes ? "int8" : "float32"}) {
    config_.kv_cache_dtype = dtype;
    const std::unique_ptr<Engine> alone = testing::start_engine(config_);
    const std::vector<Collected> expected = testing::run_together(*alone, whole);
    for (const auto& [ranks_of_p, ranks_of_d] : kRanks) {
      SCOPED_TRACE(std::string(dtype) + ", " + std::to_string(ranks_of_p) + " to " +
                   std::to_string(ranks_of_d));
      const std::unique_ptr<Engine> p = start("p", ranks_of_p);
      const std::unique_ptr<Engine> d = start("d", ranks_of_d);
      ASSERT_TRUE(p != nullptr && d != nullptr);
      expect_fetched(whole, expected, *p, *d);
      d->stop();
      p->stop();
      if (HasFailure()) return;
    }
  }
}

// What takes drafts back is a decode worker's own.
TEST_P(HandoffRanksTest, WorkersNeedNotAgreeAboutDrafts) {
  std::vector<ValidRequest> whole;
  for (int i = 0; i < 3; ++i) whole.push_back(request(i));
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  const std::unique_ptr<Engine> p = start("p");
  config_.speculative_config = R"({"method":"ngram","num_speculative_tokens":4,"adaptive":false,)"
                               R"("prompt_lookup_max":2,"prompt_lookup_min":1})";
  const std::unique_ptr<Engine> d = start("d", 2);
  ASSERT_TRUE(p != nullptr && d != nullptr);
  expect_fetched(whole, expected, *p, *d);
  d->stop();
  p->stop();
}

INSTANTIATE_TEST_SUITE_P(Transports,
                         HandoffEngineTest,
                         ::testing::Combine(::testing::Values("tcp", "shm"),
                                            ::testing::Values("tiny/tiny-llama.gguf",
                                                              "models/engine-windows.gguf",
                                                              "models/engine-latents.gguf")));

// Models with recurrent layers, whose states go with the KV.
INSTANTIATE_TEST_SUITE_P(States,
                         HandoffEngineTest,
                         ::testing::Values(std::make_tuple("tcp", "models/engine-delta.gguf"),
                                           std::make_tuple("shm", "models/engine-mamba.gguf")));

INSTANTIATE_TEST_SUITE_P(States,
                         HandoffRanksTest,
                         ::testing::Values(std::make_tuple("tcp", "models/engine-delta.gguf"),
                                           std::make_tuple("shm", "models/engine-mamba.gguf"),
                                           std::make_tuple("tcp", "models/engine-conv.gguf")));

INSTANTIATE_TEST_SUITE_P(Transports,
                         HandoffRanksTest,
                         ::testing::Values(std::make_tuple("tcp", "models/llama"),
                                           std::make_tuple("shm", "models/gemma3"),
                                           std::make_tuple("tcp", "models/deepseek-v3"),
                                           std::make_tuple("shm", "models/glm-moe-dsa")));

}  // namespace
}  // namespace sluice
