// SPDX-License-Identifier: Apache-2.0
// The fixture HandoffEngineTest: engines of one process as prefill and decode workers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/fake_kv_peers.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {

using testing::Collected;
using testing::FakeKvPeers;

// A test for each transport and model.
class HandoffEngineTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  HandoffEngineTest() {
    config_.model = golden_folder() + "/" + std::get<1>(GetParam());
    config_.max_model_len = 1024;
    config_.kv_cache_memory = int64_t{16} << 20;
    config_.kv_transport = std::get<0>(GetParam());
  }

  std::unique_ptr<Engine> start(const std::string& name, int32_t num_ranks = 1) {
    Config config = config_;
    config.tensor_parallel_size = num_ranks;
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
    spec.mode = HandoffMode::kConcurrent;
    spec.transfer = transfer;
    spec.peer = "p:1";
    return spec;
  }

  static ValidRequest prefill(int number, HandoffMode mode) {
    ValidRequest made = request(number);
    made.sampling.max_tokens = 1;
    made.handoff.emplace();
    made.handoff->kind = HandoffKind::kOffer;
    made.handoff->mode = mode;
    if (mode == HandoffMode::kConcurrent) made.handoff->transfer = transfer(number);
    return made;
  }

  // Asks P for the prompt, whose blocks it keeps, and returns the request by which D fetches them.
  static ValidRequest fetched(Engine& p, ValidRequest whole) {
    ValidRequest offer = whole;
    offer.sampling.max_tokens = 1;
    offer.handoff.emplace();
    offer.handoff->kind = HandoffKind::kOffer;
    offer.handoff->mode = HandoffMode::kSerial;
    const Collected prefilled = testing::run_together(p, {offer}).front();
    EXPECT_NE(prefilled.offer, nullptr);
    whole.handoff = fetch(prefilled.offer->transfer);
    whole.handoff->mode = HandoffMode::kSerial;
    whole.handoff->peer_epoch = prefilled.offer->epoch;
    whole.handoff->result = prefilled.offer->result;
    return whole;
  }

  static uint64_t num_fallbacks(const Engine& engine, HandoffFallback reason) {
    return engine.stats().handoff->fallbacks[static_cast<size_t>(reason)];
  }

  // A request that ends without a step is counted a moment later.
  static void expect_fallback(const Engine& engine, HandoffFallback reason) {
    for (int i = 0; i < 500 && num_fallbacks(engine, reason) == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(num_fallbacks(engine, reason), 1U) << to_string(reason);
  }

  static void expect_free(const Engine& engine) {
    const auto is_free = [&] {
      const EngineStats stats = engine.stats();
      return stats.num_blocks_used == 0 && stats.handoff->num_posted_slots == 0 &&
             stats.handoff->num_reserved_blocks == 0 && stats.handoff->num_pinned_blocks == 0;
    };
    for (int i = 0; i < 500 && !is_free(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(is_free()) << engine.stats().num_blocks_used;
  }

  // What D answers once P has: one engine's `expected` answers, each with all whole blocks of its
  // prompt from P.
  void expect_fetched(const std::vector<ValidRequest>& whole,
                      const std::vector<Collected>& expected,
                      Engine& p,
                      Engine& d) {
    std::vector<ValidRequest> offers;
    for (size_t i = 0; i < whole.size(); ++i) {
      offers.push_back(prefill(static_cast<int>(i), HandoffMode::kSerial));
    }
    const std::vector<Collected> prefilled = testing::run_together(p, offers);
    std::vector<ValidRequest> fetches = whole;
    for (size_t i = 0; i < fetches.size(); ++i) {
      ASSERT_NE(prefilled[i].offer, nullptr) << i;
      EXPECT_EQ(prefilled[i].offer->result.first_token, expected[i].tokens[0]);
      EXPECT_NE(prefilled[i].offer->result.check, 0U);
      fetches[i].handoff = fetch(prefilled[i].offer->transfer);
      fetches[i].handoff->mode = HandoffMode::kSerial;
      fetches[i].handoff->peer_epoch = prefilled[i].offer->epoch;
      fetches[i].handoff->result = prefilled[i].offer->result;
    }
    const std::vector<Collected> actual = testing::run_together(d, fetches);
    testing::expect_same(expected, actual, "fetched");
    for (size_t i = 0; i < actual.size(); ++i) {
      const auto num_tokens = static_cast<int32_t>(fetches[i].prompt.size());
      EXPECT_EQ(actual[i].num_cached_tokens, (num_tokens - 1) / 16 * 16) << i;
    }
    expect_free(p);
    expect_free(d);
    const HandoffStats in = *d.stats().handoff;
    const HandoffStats out = *p.stats().handoff;
    EXPECT_EQ(in.num_claims, whole.size());
    EXPECT_EQ(in.num_in, whole.size());
    EXPECT_EQ(out.num_out, whole.size());
    EXPECT_EQ(in.blocks_in, out.blocks_out);
    EXPECT_EQ(in.bytes_in, out.bytes_out);
    EXPECT_EQ(static_cast<uint64_t>(in.transfer_bytes.sum), in.bytes_in);
    EXPECT_GE(in.wait_time.sum, in.transfer_time.sum);
    EXPECT_EQ(in.num_failed + in.num_expired, 0U);
    EXPECT_EQ(num_fallbacks(d, HandoffFallback::kFirstToken), 0U);
  }

  // Makes requests as a router sends them to both workers at once.
  void split(int count, std::vector<ValidRequest>& offers, std::vector<ValidRequest>& fetches) {
    for (int i = 0; i < count; ++i) {
      offers.push_back(prefill(i, HandoffMode::kConcurrent));
      fetches.push_back(request(i));
      fetches.back().handoff = fetch(transfer(i));
    }
  }

  FakeKvPeers peers_;
  Config config_;
};

}  // namespace sluice
