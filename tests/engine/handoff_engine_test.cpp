// SPDX-License-Identifier: Apache-2.0
// A prefill and a decode engine of one process: what the second answers is what one engine alone
// does, bit for bit, whether or not blocks have come.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::FakeKvPeers;

class HandoffEngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  HandoffEngineTest() {
    config_.model = std::string(SLUICE_TEST_DATA) + "/tiny/tiny-llama.gguf";
    config_.max_model_len = 1024;
    config_.kv_cache_memory = int64_t{16} << 20;
    config_.kv_transport = GetParam();
  }

  std::unique_ptr<Engine> start(const std::string& name) {
    Config config = config_;
    config.kv_listen = "127.0.0.1:0";
    Expected<std::unique_ptr<Engine>> made = create_worker_engine(config, peers_.opener(name));
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    return made ? std::move(*made) : nullptr;
  }

  static ValidRequest request(int number) {
    ValidRequest made;
    for (int i = 0; i < 100 + 37 * number; ++i) {
      made.prompt.push_back(static_cast<TokenId>((number * 37 + i * i * 31 + i * 7) % 250));
    }
    made.sampling.max_tokens = 20;
    made.sampling.ignore_eos = true;
    made.sampling.temperature = 0.7F;
    made.sampling.seed = 11;
    made.sampling.num_logprobs = 0;
    return made;
  }

  static KvTransferId transfer(int number) { return {1, static_cast<uint8_t>(number)}; }

  static HandoffSpec fetch(const KvTransferId& transfer) {
    HandoffSpec spec;
    spec.kind = HandoffKind::kFetch;
    spec.door = HandoffDoor::kConcurrent;
    spec.transfer = transfer;
    spec.peer = "p:1";
    return spec;
  }

  static ValidRequest prefill(int number, HandoffDoor door) {
    ValidRequest made = request(number);
    made.sampling.max_tokens = 1;
    made.handoff.emplace();
    made.handoff->kind = HandoffKind::kOffer;
    made.handoff->door = door;
    if (door == HandoffDoor::kConcurrent) made.handoff->transfer = transfer(number);
    return made;
  }

  testing::CollectingSink sink_of_p_;
  FakeKvPeers peers_;
  Config config_;
};

TEST_P(HandoffEngineTest, AFetchedPromptGetsTheBitsOfOneEngine) {
  std::vector<ValidRequest> whole;
  std::vector<ValidRequest> offers;
  for (int i = 0; i < 6; ++i) {
    whole.push_back(request(i));
    offers.push_back(prefill(i, HandoffDoor::kSerial));
  }
  const std::unique_ptr<Engine> alone = testing::start_engine(config_);
  const std::vector<Collected> expected = testing::run_together(*alone, whole);
  const std::unique_ptr<Engine> p = start("p");
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_TRUE(p != nullptr && d != nullptr);
  ASSERT_TRUE(p->model().handoff.has_value());
  const std::vector<Collected> prefilled = testing::run_together(*p, offers);
  std::vector<ValidRequest> fetches = whole;
  for (size_t i = 0; i < fetches.size(); ++i) {
    ASSERT_NE(prefilled[i].offer, nullptr) << i;
    EXPECT_EQ(prefilled[i].offer->result.first_token, expected[i].tokens[0]);
    fetches[i].handoff = fetch(prefilled[i].offer->transfer);
    fetches[i].handoff->door = HandoffDoor::kSerial;
    fetches[i].handoff->peer_epoch = prefilled[i].offer->epoch;
    fetches[i].handoff->result = prefilled[i].offer->result;
  }
  const std::vector<Collected> actual = testing::run_together(*d, fetches);
  testing::expect_same(expected, actual, "fetched");
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto num_tokens = static_cast<int32_t>(fetches[i].prompt.size());
    EXPECT_EQ(actual[i].num_cached_tokens, (num_tokens - 1) / 16 * 16) << i;
  }
  EXPECT_EQ(peers_.sent["Release"], 6);
  EXPECT_EQ(d->stats().num_blocks_used + p->stats().num_blocks_used, 0);
  d->stop();
  p->stop();
}

TEST_P(HandoffEngineTest, RequestsThatRoutersSendAtOnceGetTheBitsOfOneEngine) {
  std::vector<ValidRequest> whole;
  std::vector<ValidRequest> offers;
  std::vector<ValidRequest> fetches;
  for (int i = 0; i < 6; ++i) {
    whole.push_back(request(i));
    offers.push_back(prefill(i, HandoffDoor::kConcurrent));
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

// Aborted at any moment, by either client, and with a worker that goes away: no block stays taken.
TEST_P(HandoffEngineTest, NothingStaysTakenWhateverEnds) {
  const std::unique_ptr<Engine> d = start("d");
  ASSERT_NE(d, nullptr);
  for (int round = 0; round < 6; ++round) {
    std::unique_ptr<Engine> p = start("p");
    ASSERT_NE(p, nullptr);
    testing::CollectingSink sink;
    std::vector<RequestId> ids;
    for (int i = 0; i < 4; ++i) {
      const auto offer = prefill(4 * round + i, HandoffDoor::kConcurrent);
      const auto at_p = p->submit(offer, sink_of_p_);
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
  for (int i = 0; i < 200 && d->stats().num_blocks_used > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(d->stats().num_blocks_used, 0);
  d->stop();
}

INSTANTIATE_TEST_SUITE_P(Transports, HandoffEngineTest, ::testing::Values("tcp", "shm"));

}  // namespace
}  // namespace sluice
