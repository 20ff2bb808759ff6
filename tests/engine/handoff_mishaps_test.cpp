// SPDX-License-Identifier: Apache-2.0
// What goes wrong or ends early in a handoff: the request goes on, and nothing stays held.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "tests/engine/handoff_rig.h"

namespace sluice::testing {
namespace {

TEST_P(HandoffTest, AWorkerThatEndsWaitsNotLongForAClaim) {
  const auto offer = prefill(HandoffMode::kSerial);
  p_.handoff->drain(now_);
  now_ += std::chrono::seconds(1);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 1U);
  now_ += std::chrono::seconds(2);
  turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  EXPECT_EQ(p_.handoff->prefill().num_pinned(), 0);
}

// A prompt that can no longer be cached is not kept.
TEST_P(HandoffTest, HandoffsThatAreOverKeepNoMoreTokensThanTheCacheHas) {
  std::vector<std::shared_ptr<const HandoffOffer>> offers;
  for (int i = 0; i < 20; ++i) {
    tokens_ = prompt(150, static_cast<TokenId>(3 + 50 * i));
    offers.push_back(prefill(HandoffMode::kSerial));
    now_ += std::chrono::seconds(31);  // no worker claims it
    turn();
  }
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  EXPECT_EQ(p_.handoff->prefill().num_gone_tokens(), kNumBlocks * kBlockSize / 144 * 144);
  EXPECT_FALSE(p_.handoff->next_timer().has_value());
  ASSERT_TRUE(fetch(offers.back()));  // late, and still cached
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  finish();
  ready_.clear();
  tokens_ = prompt(150, 3);
  ASSERT_TRUE(fetch(offers.front()));
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kRefused);
  finish();
}

TEST_P(HandoffTest, AReusedIdWithAnotherPromptIsRefused) {
  auto offer = prefill(HandoffMode::kSerial);
  tokens_ = prompt(150, 70);
  HandoffOffer forged = *offer;
  forged.result = {};
  Request request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffMode::kSerial, offer->transfer, "p:1", offer->epoch);
  ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 0);
  EXPECT_EQ(d_.handoff->stats().bytes_in, 0U);
  finish();
}

TEST_P(HandoffTest, AnOfferOfAnEarlierProcessIsRefused) {
  auto offer = prefill(HandoffMode::kSerial);
  HandoffOffer stale = *offer;
  stale.epoch ^= 1;
  ASSERT_TRUE(fetch(std::make_shared<const HandoffOffer>(stale)));
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

TEST_P(HandoffTest, AnotherModelIsRefused) {
  Worker other(peers_, "o", GetParam().transport, GetParam().prefill, "another model");
  prefill(HandoffMode::kSerial);
  Request request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffMode::kConcurrent, {1}, "o:1");
  ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  run_until_ready();
  finish();
}

TEST_P(HandoffTest, APeerThatIsNotAllowedIsNotAsked) {
  Request request = Worker::request(kDecode, tokens_);
  const HandoffSpec spec = fetch_spec(HandoffMode::kSerial, {1}, "nobody:1");
  EXPECT_TRUE(d_.handoff->hold(request, spec, now_));
  turn();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].id, kDecode);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kPeerGone);
  d_.expect_at_rest();
}

// Each message lost, the first time and always: right bytes or none, and nothing stays held.
TEST_P(HandoffTest, LostMessagesDelayAndHarmNothing) {
  if (GetParam().prefill != Cache::kHost || GetParam().decode != Cache::kHost) {
    GTEST_SKIP() << "what is lost is of the control channel";
  }
  for (const bool is_always : {false, true}) {
    for (size_t index = 0; index < std::variant_size_v<KvMessage>; ++index) {
      SCOPED_TRACE(index);
      bool was_lost = false;
      peers_.drop = [&](const KvMessage& message) {
        if (message.index() != index || (was_lost && !is_always)) return false;
        return was_lost = true;
      };
      p_.kv().reset_prefix_cache();
      d_.kv().reset_prefix_cache();
      ready_.clear();
      const auto offer = prefill(HandoffMode::kSerial);
      ASSERT_TRUE(fetch(offer));
      run_until_ready();
      d_.cached(tokens_);
      finish();
    }
  }
}

TEST_P(HandoffTest, ADeadPeerUnpinsAndFallsBack) {
  for (int turns = 0; turns < 12; ++turns) {
    SCOPED_TRACE(turns);
    p_.kv().reset_prefix_cache();
    d_.kv().reset_prefix_cache();
    ready_.clear();
    const auto offer = prefill(HandoffMode::kSerial);
    ASSERT_TRUE(fetch(offer));
    for (int i = 0; i < turns && ready_.empty(); ++i) turn();
    peers_.cut();
    run_until_ready(400);
    d_.cached(tokens_);
    finish();
  }
}

TEST_P(HandoffTest, EveryEndOfARequestReleasesBothSides) {
  for (int turns = 0; turns < 16; ++turns) {
    SCOPED_TRACE(turns);
    p_.kv().reset_prefix_cache();
    d_.kv().reset_prefix_cache();
    ready_.clear();
    const auto offer = prefill(HandoffMode::kSerial);
    ASSERT_TRUE(fetch(offer));
    for (int i = 0; i < turns && ready_.empty(); ++i) turn();
    const bool was_held = ready_.empty();
    EXPECT_EQ(d_.handoff->abort(kDecode, now_), was_held);
    d_.handoff->end(kDecode, now_);
    settle();
    p_.expect_at_rest();
    d_.expect_at_rest();
  }
}

TEST_P(HandoffTest, AFailedPrefillIsComputedHere) {
  ASSERT_TRUE(fetch(nullptr));
  turn();
  prefill(HandoffMode::kConcurrent, 100);
  for (int i = 0; i < 20; ++i) {
    turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  p_.kv().free(kPrefill);
  p_.handoff->end(kPrefill, now_);
  run_until_ready();
  EXPECT_EQ(
      d_.handoff->stats().fallbacks[static_cast<size_t>(HandoffFallback::kPrefillFailed)],
      1U);
  d_.cached(tokens_);
  finish();
}

TEST_P(HandoffTest, RoomIsWaitedForAndGivenBack) {
  const auto offer = prefill(HandoffMode::kSerial);
  const std::vector<TokenId> other = prompt(1000, 90);
  d_.kv().acquire_prefix(RequestId(1), other, {});
  ASSERT_TRUE(d_.kv().allocate_slots(RequestId(1), 1000));  // 63 of 64 blocks
  ASSERT_TRUE(fetch(offer));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_TRUE(ready_.empty());
  EXPECT_FALSE(d_.handoff->give_back_blocks(now_));
  d_.kv().free(RequestId(1));
  turn();
  EXPECT_TRUE(!ready_.empty() || d_.handoff->give_back_blocks(now_));
  run_until_ready();
  d_.cached(tokens_);
  finish();
}

// Generations of landing slots are their worker's own: D's have been posted more often.
TEST_P(HandoffTest, AnotherWorkerMayClaimWhatTheFirstGaveUp) {
  for (int i = 0; i < 3; ++i) {
    tokens_ = prompt(150, static_cast<TokenId>(3 + 50 * i));
    ready_.clear();
    ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
    run_until_ready();
    finish();
  }
  tokens_ = prompt(150, 300);
  ready_.clear();
  ASSERT_TRUE(fetch(nullptr));
  turn();
  prefill(HandoffMode::kConcurrent, 100);
  for (int i = 0; i < 500 && d_.handoff->stats().num_receiving == 0; ++i) turn();
  ASSERT_EQ(d_.handoff->stats().num_receiving, 1);
  EXPECT_TRUE(d_.handoff->abort(kDecode, now_));
  for (int i = 0; i < 100; ++i) turn();
  const Way& way = GetParam();
  const char* const transport =
      way.decode_transport == nullptr ? way.transport : way.decode_transport;
  Worker other(peers_, "e", transport, way.decode);
  Request request = Worker::request(kDecode, tokens_);
  HandoffSpec spec = fetch_spec(HandoffMode::kConcurrent, {});
  spec.transfer.fill(9);
  ASSERT_TRUE(other.handoff->hold(request, spec, now_));
  p_.compute(kPrefill, tokens_, 150);
  p_.handoff->choose(kPrefill, 17, 5, 99);
  p_.kv().free(kPrefill);
  p_.handoff->retire(now_);
  for (int i = 0; i < 2000 && ready_.empty(); ++i) {
    turn();
    other.handoff->advance(now_, load_, ready_);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_FALSE(ready_[0].fallback.has_value());
  EXPECT_EQ(other.cached(tokens_), 144);
  other.handoff->end(kDecode, now_);
  for (int i = 0; i < 100; ++i) {
    turn();
    other.handoff->advance(now_, load_, ready_);
  }
  settle();
  p_.expect_at_rest();
  other.expect_at_rest();
}

TEST_P(HandoffTest, RoomIsGivenWhereOthersKeepTheirNextBlocks) {
  const auto offer = prefill(HandoffMode::kSerial);
  const std::vector<TokenId> other = prompt(1000, 90);
  d_.kv().acquire_prefix(RequestId(1), other, {});
  ASSERT_TRUE(d_.kv().allocate_slots(RequestId(1), 53 * kBlockSize));  // 11 are left, 9 are wanted
  load_.num_running = 3;
  ASSERT_TRUE(fetch(offer));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_EQ(d_.handoff->stats().num_awaiting_room, 1);
  load_.num_running = 2;
  load_.has_preempted = true;
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_EQ(d_.handoff->stats().num_awaiting_room, 1);
  load_.has_preempted = false;
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_FALSE(ready_[0].fallback.has_value());
  d_.kv().free(RequestId(1));
  finish();
}

// An offer that no worker has claimed goes first, then one whose claimer has no room yet.
TEST_P(HandoffTest, OffersGiveWayUnlessTheyAreBeingRead) {
  prefill(HandoffMode::kSerial);
  tokens_ = prompt(150, 60);
  const auto claimed = prefill(HandoffMode::kSerial);
  load_.has_preempted = true;
  ASSERT_TRUE(fetch(claimed));
  for (int i = 0; i < 20; ++i) turn();
  ASSERT_EQ(d_.handoff->stats().num_awaiting_room, 1);
  EXPECT_EQ(p_.handoff->prefill().num_pinned(), 16);  // the quota: 9 of the first, 7 of the second
  EXPECT_TRUE(p_.handoff->give_back_blocks(now_));
  EXPECT_EQ(p_.handoff->prefill().num_pinned(), 7);
  EXPECT_TRUE(p_.handoff->give_back_blocks(now_));
  EXPECT_EQ(p_.handoff->prefill().num_pinned(), 0);
  EXPECT_FALSE(p_.handoff->give_back_blocks(now_));
  load_.has_preempted = false;
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kRefused);
  finish();
  ready_.clear();
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 1U);  // until D has compared its first token
  EXPECT_FALSE(p_.handoff->give_back_blocks(now_));
  finish();
}

// Its peer accepted it, sends nothing and does not answer the second claim before that.
TEST_P(HandoffTest, RoomIsGivenBackWhileItIsClaimedAgain) {
  const auto offer = prefill(HandoffMode::kSerial);
  peers_.drop = [](const KvMessage& message) { return std::holds_alternative<KvCredit>(message); };
  ASSERT_TRUE(fetch(offer));
  for (int i = 0; i < 100 && d_.handoff->stats().num_receiving == 0; ++i) turn();
  ASSERT_EQ(d_.handoff->stats().num_receiving, 1);
  now_ += std::chrono::seconds(5);
  d_.handoff->advance(now_, load_, ready_);
  ASSERT_EQ(d_.handoff->stats().num_claiming, 1);
  EXPECT_EQ(d_.handoff->stats().num_reserved_blocks, 9);
  EXPECT_TRUE(d_.handoff->give_back_blocks(now_));
  EXPECT_EQ(d_.handoff->stats().num_reserved_blocks, 0);
  peers_.drop = [](const KvMessage&) { return false; };
  run_until_ready();
  for (int i = 0; i < 20; ++i) turn();  // P's answer
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kPreempted);
  finish();
}

// The claim has left out what was here then.
TEST_P(HandoffTest, WhatIsEvictedBeforeThereIsRoomIsComputedHere) {
  d_.kv().acquire_prefix(RequestId(1), tokens_, {});
  d_.compute(RequestId(1), tokens_, 48);
  d_.kv().free(RequestId(1));
  ASSERT_EQ(d_.cached(tokens_), 48);
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  d_.kv().reset_prefix_cache();
  run_until_ready();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kEvicted);
  EXPECT_EQ(d_.handoff->stats().blocks_in, 6U);
  EXPECT_EQ(d_.handoff->stats().num_in, 0U);
  EXPECT_EQ(d_.cached(tokens_), 0);
  finish();
}

// One after the other, so that they do not keep others from their steps.
TEST_P(HandoffTest, PromptsToComputeHereComeOneAtATimeWhereOthersRun) {
  load_.is_idle = false;
  for (uint64_t id = 201; id < 205; ++id) {
    Request request = Worker::request(RequestId(id), prompt(150, static_cast<TokenId>(id)));
    KvTransferId transfer{};
    transfer[0] = static_cast<uint8_t>(id);
    HandoffSpec spec = fetch_spec(HandoffMode::kConcurrent, transfer, "nobody:1");
    ASSERT_TRUE(d_.handoff->hold(request, spec, now_));
  }
  turn();
  ASSERT_EQ(ready_.size(), 1U);
  EXPECT_EQ(ready_[0].fallback, HandoffFallback::kPeerGone);
  turn();
  EXPECT_EQ(ready_.size(), 1U);
  d_.handoff->note_token(RequestId(201));
  turn();
  ASSERT_EQ(ready_.size(), 2U);
  EXPECT_TRUE(d_.handoff->abort(RequestId(203), now_));
  d_.handoff->end(RequestId(202), now_);
  turn();
  ASSERT_EQ(ready_.size(), 3U);
  EXPECT_EQ(ready_[2].id, RequestId(204));
}

TEST_P(HandoffTest, ADuplicateRoomIsAnOrdinaryRequest) {
  ASSERT_TRUE(fetch(nullptr));
  Request request = Worker::request(RequestId(201), tokens_);
  HandoffSpec spec = fetch_spec(HandoffMode::kConcurrent, {});
  spec.transfer.fill(9);
  EXPECT_FALSE(d_.handoff->hold(request, spec, now_));
  prefill(HandoffMode::kConcurrent);
  Request again = Worker::request(RequestId(101), tokens_);
  EXPECT_FALSE(p_.handoff->hold(again, offer_spec(HandoffMode::kConcurrent, spec.transfer), now_));
  p_.handoff->end(RequestId(101), now_);
  run_until_ready();
  EXPECT_EQ(d_.cached(tokens_), 144);
  finish();
}

TEST_P(HandoffTest, TimersFireInAnIdleEngine) {
  peers_.drop = [](const KvMessage& message) { return std::holds_alternative<KvClaim>(message); };
  ASSERT_TRUE(fetch(nullptr));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ready_.empty());
    ASSERT_TRUE(d_.handoff->next_timer().has_value());
    now_ = *d_.handoff->next_timer();
    turn();
  }
  ASSERT_EQ(ready_.size(), 1U);
  finish();
}

// Messages that no peer of ours sends.
TEST_P(HandoffTest, NonsenseReachesNoCheck) {
  peers_.change = [](KvMessage& message) {
    if (auto* claim = std::get_if<KvClaim>(&message)) claim->first_blocks = {7, 7, 4'000'000'000U};
    if (auto* credit = std::get_if<KvCredit>(&message)) credit->slots[0].bytes = 1;
  };
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  d_.cached(tokens_);
  finish();
  peers_.change = [](KvMessage& message) {
    if (auto* credit = std::get_if<KvCredit>(&message)) {
      credit->slots[0] = {
          .slot = 4'000'000'000U, .generation = 4'000'000'000U, .bytes = UINT32_MAX};
    }
    if (auto* final = std::get_if<KvFinal>(&message)) final->num_blocks = UINT32_MAX;
  };
  ready_.clear();
  p_.kv().reset_prefix_cache();
  ASSERT_TRUE(fetch(prefill(HandoffMode::kSerial)));
  run_until_ready();
  d_.cached(tokens_);
  finish();
}

// A peer's claims before their requests, each with credits of twice as many slots as are kept, in
// messages of the largest size, after credits for an attempt that nobody has claimed.
std::vector<KvMessage> flood_of(const KvClaim& own, uint8_t num_claims) {
  std::vector<KvMessage> flood;
  for (uint8_t i = 1; i <= num_claims; ++i) {
    KvClaim claim = own;
    claim.ref.transfer.fill(static_cast<uint8_t>(100 + i));
    flood.emplace_back(claim);
    KvCredit credit{.ref = claim.ref, .slots = std::vector<KvSlot>(kMaxKvCreditSlots)};
    ++credit.ref.attempt;
    uint32_t number = 0;
    for (uint32_t sent = 0; sent <= 2 * kMaxKvCredits; sent += kMaxKvCreditSlots) {
      for (KvSlot& slot : credit.slots) slot = {.slot = number++, .generation = 1, .bytes = 1};
      flood.emplace_back(credit);
      credit.ref.attempt = claim.ref.attempt;
    }
  }
  return flood;
}

TEST_P(HandoffTest, SlotsOfAPeerAreRememberedUpToALimitAndUntilTheEnd) {
  constexpr uint8_t kNumClaims = 5;
  peers_.pass = [](bool to_prefill, KvMessage message) -> std::vector<KvMessage> {
    const auto* const claim = std::get_if<KvClaim>(&message);
    if (!to_prefill) return {std::move(message)};
    if (claim == nullptr) return {};
    return flood_of(*claim, kNumClaims);
  };
  ASSERT_TRUE(fetch(nullptr));
  for (int i = 0; i < 10; ++i) turn();
  EXPECT_EQ(p_.handoff->prefill().num_live(), kNumClaims);
  EXPECT_EQ(p_.handoff->prefill().num_known_slots(), size_t{kNumClaims} * kMaxKvCredits);
  peers_.pass = nullptr;
  peers_.drop = [](const KvMessage&) { return true; };
  run_until_ready();
  settle();
  EXPECT_EQ(p_.handoff->prefill().num_live(), 0U);
  EXPECT_EQ(p_.handoff->prefill().num_known_slots(), 0U);
  peers_.drop = [](const KvMessage&) { return false; };
  finish();
}

}  // namespace
}  // namespace sluice::testing
