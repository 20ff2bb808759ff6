// SPDX-License-Identifier: Apache-2.0
// What each half of a handoff answers, event by event; handoff_model_test.cpp has both together.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "engine/handoff/decode_state.h"
#include "engine/handoff/landing_slot.h"
#include "engine/handoff/prefill_state.h"

namespace sluice {
namespace {

using P = PrefillEvent::Kind;
using PDo = PrefillAction::Kind;
using D = DecodeEvent::Kind;
using DDo = DecodeAction::Kind;

constexpr KvPeerId kPeer{7};
constexpr KvPeerId kOther{8};
constexpr KvKey kKey = {1};
constexpr KvKey kOtherKey = {2};

class Prefill {
 public:
  PrefillState state;
  PrefillWorker worker{.epoch = 5, .is_draining = false, .takes_early_claims = true, .times = {}};
  int64_t now_ms = 0;
  KvRefusal reason = KvRefusal::kUnknown;  // of the last refusal

  std::vector<PDo> operator()(PrefillEvent event) {
    event.now_ms = now_ms;
    std::vector<PDo> done;
    for (const PrefillAction& action : advance(state, event, worker)) {
      done.push_back(action.kind);
      if (action.kind == PDo::kRefuse) reason = action.reason;
    }
    return done;
  }

  std::vector<PDo> operator()(P kind) {
    return (*this)({.kind = kind, .peer = kPeer, .attempt = state.attempt, .key = kKey});
  }

  std::vector<PDo> claim(uint32_t attempt,
                         KvPeerId peer = kPeer,
                         KvKey key = kKey,
                         uint64_t epoch = 0) {
    return (*this)({.kind = P::kClaim,
                    .peer = peer,
                    .attempt = attempt,
                    .epoch = epoch,
                    .key = key,
                    .num_parts = 2,
                    .num_ready = state.has_ended ? 2 : 0});
  }

  std::vector<PDo> credit(int32_t count) {
    return (*this)(
        {.kind = P::kCredit, .peer = kPeer, .attempt = state.attempt, .num_credits = count});
  }

  std::vector<PDo> ready(int32_t count) { return (*this)({.kind = P::kReady, .num_ready = count}); }

  std::vector<PDo> read(int32_t part) {
    return (*this)({.kind = P::kPartRead, .attempt = state.attempt, .part = part});
  }

  // In kServing: the first of two parts is being read.
  void serve() {
    (*this)(P::kAdmitted);
    claim(1);
    credit(1);
    ready(1);
    ASSERT_EQ(state.phase, PrefillPhase::kServing);
  }

  void park() {
    (*this)(P::kAdmitted);
    (*this)(P::kEnded);
    ASSERT_EQ(state.phase, PrefillPhase::kParked);
  }
};

using PActions = std::vector<PDo>;

TEST(PrefillStateTest, PartsAreReadAsTheyAreReadyAndHaveSlots) {
  Prefill p;
  EXPECT_EQ(p(P::kAdmitted), PActions{});
  EXPECT_EQ(p.claim(1), PActions{PDo::kAccept});
  EXPECT_EQ(p.credit(2), PActions{PDo::kKeepCredits});
  EXPECT_EQ(p.ready(1), (PActions{PDo::kPinPart, PDo::kReadPart}));
  EXPECT_EQ(p.state.phase, PrefillPhase::kServing);
  EXPECT_EQ(p(P::kEnded), (PActions{PDo::kPinAll, PDo::kFinalOk, PDo::kPinPart, PDo::kReadPart}));
  EXPECT_EQ(p.read(0), PActions{PDo::kUnpinPart});
  EXPECT_EQ(p.state.phase, PrefillPhase::kServing);
  EXPECT_EQ(p.read(1), PActions{PDo::kUnpinPart});
  EXPECT_EQ(p.state.phase, PrefillPhase::kParked);
  EXPECT_EQ(p(P::kRelease), (PActions{PDo::kUnpinAll, PDo::kReleased}));
  EXPECT_EQ(p.state.phase, PrefillPhase::kGone);
  EXPECT_EQ(p(P::kRelease), PActions{PDo::kReleased});
}

TEST(PrefillStateTest, AClaimMayComeBeforeItsRequest) {
  Prefill p;
  EXPECT_EQ(p.claim(1), PActions{});
  EXPECT_EQ(p.state.phase, PrefillPhase::kExpected);
  EXPECT_EQ(next_timer(p.state), 2'000);
  EXPECT_EQ(p(P::kAdmitted), PActions{PDo::kAccept});
  EXPECT_TRUE(p.state.is_claimed);
}

TEST(PrefillStateTest, AnEarlyClaimThatNamesAnEpochIsUnknown) {
  Prefill p;
  EXPECT_EQ(p.claim(1, kPeer, kKey, 5), PActions{PDo::kRefuse});
  EXPECT_EQ(p.reason, KvRefusal::kUnknown);
  EXPECT_EQ(p.state, PrefillState());
}

// The id of an earlier transfer, and tokens of this one.
TEST(PrefillStateTest, AReusedIdWithAnotherPromptIsRefused) {
  Prefill p;
  p(P::kAdmitted);
  EXPECT_EQ(p.claim(1, kPeer, kOtherKey), PActions{PDo::kRefuse});
  EXPECT_EQ(p.reason, KvRefusal::kKey);
  EXPECT_FALSE(p.state.is_claimed);
  Prefill early;
  early.claim(1, kPeer, kOtherKey);
  EXPECT_EQ(early(P::kAdmitted), PActions{PDo::kRefuse});
  EXPECT_EQ(early.reason, KvRefusal::kKey);
  EXPECT_EQ(early.state.phase, PrefillPhase::kComputing);
}

TEST(PrefillStateTest, ADuplicateRoomIsAnOrdinaryRequest) {
  Prefill p;
  p(P::kAdmitted);
  EXPECT_EQ(p(P::kAdmitted), PActions{PDo::kRunAlone});
  Prefill parked;
  parked.park();
  EXPECT_EQ(parked(P::kAdmitted), PActions{PDo::kRunAlone});
}

TEST(PrefillStateTest, AClaimForAnotherEpochIsRefusedInEveryPhase) {
  std::vector<Prefill> all(5);
  all[1].claim(1);
  all[2](P::kAdmitted);
  all[3].park();
  all[4].serve();
  for (Prefill& p : all) {
    const PrefillState before = p.state;
    EXPECT_EQ(p.claim(9, kPeer, kKey, 4), PActions{PDo::kRefuse});
    EXPECT_EQ(p.reason, KvRefusal::kEpoch);
    EXPECT_EQ(p.state, before);
  }
}

TEST(PrefillStateTest, OneClaimerOfATransfer) {
  Prefill p;
  p.park();
  EXPECT_EQ(p.claim(1), (PActions{PDo::kAccept, PDo::kFinalOk}));
  EXPECT_EQ(p.claim(1), (PActions{PDo::kAccept, PDo::kFinalOk}));
  EXPECT_EQ(p.claim(1, kOther), PActions{PDo::kRefuse});
  EXPECT_EQ(p.reason, KvRefusal::kBusy);
  EXPECT_EQ(p.state.peer, kPeer);
}

TEST(PrefillStateTest, ANewerAttemptIsServedWhenTheEarlierIsRead) {
  Prefill p;
  p.serve();
  EXPECT_EQ(p.claim(2), (PActions{PDo::kAbortReading, PDo::kAccept}));
  EXPECT_EQ(p.credit(2), PActions{PDo::kKeepCredits});
  EXPECT_EQ(p.ready(1), PActions{});
  EXPECT_EQ(p({.kind = P::kPartRead, .attempt = 1}),
            (PActions{PDo::kUnpinPart, PDo::kPinPart, PDo::kReadPart}));
  EXPECT_EQ(p.claim(1), PActions{});  // late
}

TEST(PrefillStateTest, ADeadPeerUnpinsWhenNothingIsReadAnyMore) {
  Prefill p;
  p.serve();
  p(P::kEnded);
  EXPECT_EQ(p({.kind = P::kPeerDead, .peer = kOther}), PActions{});
  EXPECT_EQ(p(P::kPeerDead), PActions{});
  EXPECT_EQ(p.state.phase, PrefillPhase::kDrain);
  EXPECT_EQ(p.read(0), (PActions{PDo::kUnpinPart, PDo::kUnpinAll}));
  EXPECT_EQ(p.state.phase, PrefillPhase::kGone);
}

TEST(PrefillStateTest, LeasesEndAndCanBeRenewedForSoLong) {
  Prefill p;
  p.park();
  p.claim(1);
  EXPECT_EQ(next_timer(p.state), 30'000);
  p.now_ms = 20'000;
  EXPECT_EQ(p(P::kRenew), PActions{PDo::kRenewAck});
  EXPECT_EQ(next_timer(p.state), 40'000);
  p.now_ms = 595'000;
  p(P::kRenew);
  EXPECT_EQ(next_timer(p.state), 600'000);
  EXPECT_EQ(p(P::kTimer), PActions{PDo::kUnpinAll});
  EXPECT_EQ(p.state.phase, PrefillPhase::kGone);
  EXPECT_EQ(next_timer(p.state), std::nullopt);
}

TEST(PrefillStateTest, BlocksThatAreStillCachedAreServedLate) {
  Prefill p;
  p.park();
  p(P::kTimer);
  EXPECT_EQ(p.claim(1), PActions{PDo::kRefuse});
  EXPECT_EQ(p.reason, KvRefusal::kGone);
  PrefillEvent late{.kind = P::kClaim, .peer = kPeer, .attempt = 1, .key = kKey};
  late.is_cached = true;
  late.num_parts = 2;
  EXPECT_EQ(p(late), (PActions{PDo::kPinAll, PDo::kAccept, PDo::kFinalOk}));
  EXPECT_EQ(p.state.phase, PrefillPhase::kParked);
}

TEST(PrefillStateTest, AFailedPrefillIsSaidAndOver) {
  Prefill p;
  p(P::kAdmitted);
  p.claim(1);
  EXPECT_EQ(p(P::kFailed), PActions{PDo::kFinalFailed});
  EXPECT_EQ(p.state.phase, PrefillPhase::kGone);
  Prefill alone;
  alone(P::kAdmitted);
  EXPECT_EQ(alone(P::kFailed), PActions{});
  EXPECT_EQ(alone.state.phase, PrefillPhase::kGone);
}

TEST(PrefillStateTest, ADrainingWorkerOffersNothingNewAndServesWhatIsParked) {
  Prefill p;
  p.worker.is_draining = true;
  EXPECT_EQ(p(P::kAdmitted), PActions{PDo::kRunAlone});
  EXPECT_EQ(p.claim(1), PActions{PDo::kRefuse});
  EXPECT_EQ(p.reason, KvRefusal::kDraining);
  Prefill early;
  early.claim(1);
  early.worker.is_draining = true;
  EXPECT_EQ(early(P::kDraining), PActions{PDo::kRefuse});
  EXPECT_EQ(early.state.phase, PrefillPhase::kGone);
  Prefill parked;
  parked.park();
  parked.worker.is_draining = true;
  EXPECT_EQ(parked(P::kDraining), PActions{});
  EXPECT_EQ(parked.claim(1), (PActions{PDo::kAccept, PDo::kFinalOk}));
}

TEST(PrefillStateTest, ADrainingWorkerKeepsWhatNobodyHasClaimedForAShortTime) {
  Prefill p;
  p.park();
  p.now_ms = 1'000;
  EXPECT_EQ(next_timer(p.state), 30'000);
  p.worker.is_draining = true;
  EXPECT_EQ(p(P::kDraining), PActions{});
  EXPECT_EQ(next_timer(p.state), 3'000);
  p.now_ms = 2'000;
  EXPECT_EQ(p.claim(1), (PActions{PDo::kAccept, PDo::kFinalOk}));
  EXPECT_EQ(next_timer(p.state), 32'000);  // somebody wants it
  EXPECT_EQ(p(P::kDraining), PActions{});
  EXPECT_EQ(next_timer(p.state), 32'000);
  Prefill computing;
  computing(P::kAdmitted);
  computing.worker.is_draining = true;
  computing(P::kDraining);
  computing.now_ms = 5'000;
  EXPECT_EQ(computing(P::kEnded), PActions{PDo::kPinAll});
  EXPECT_EQ(next_timer(computing.state), 7'000);
}

TEST(PrefillStateTest, WhatItsPeerGaveUpMeanwhileIsNotKept) {
  for (const P end : {P::kPeerDead, P::kCancel, P::kRelease}) {
    Prefill p;
    p(P::kAdmitted);
    p.claim(1);
    p(end);
    EXPECT_EQ(p.state.phase, PrefillPhase::kComputing);
    EXPECT_EQ(p(P::kEnded), PActions{});
    EXPECT_EQ(p.state.phase, PrefillPhase::kGone);
    EXPECT_FALSE(p.state.is_pinned);
    PrefillEvent late{.kind = P::kClaim, .peer = kPeer, .attempt = 2, .key = kKey};
    late.is_cached = true;
    late.num_parts = 2;
    EXPECT_EQ(p(late), (PActions{PDo::kPinAll, PDo::kAccept, PDo::kFinalOk}));
  }
  // A claim of another prompt says nothing about this one.
  Prefill p;
  p.claim(1, kPeer, kOtherKey);
  p(P::kAdmitted);
  EXPECT_EQ(p(P::kEnded), PActions{PDo::kPinAll});
  EXPECT_EQ(p.claim(1), (PActions{PDo::kAccept, PDo::kFinalOk}));
}

TEST(PrefillStateTest, MessagesAboutWhatIsUnknownAreRefusedAndChangeNothing) {
  Prefill p;
  for (const P kind : {P::kCredit, P::kNak, P::kRenew}) {
    EXPECT_EQ(p(kind), PActions{PDo::kRefuse});
    EXPECT_EQ(p.reason, KvRefusal::kGone);
  }
  EXPECT_EQ(p(P::kRelease), PActions{PDo::kReleased});
  EXPECT_EQ(p(P::kCancel), PActions{});
  EXPECT_EQ(p.state, PrefillState());
}

TEST(PrefillStateTest, CreditsWithoutEndAreNotHeard) {
  Prefill p;
  p(P::kAdmitted);
  p.claim(1);
  EXPECT_EQ(p.credit(kMaxKvCredits), PActions{PDo::kKeepCredits});
  EXPECT_EQ(p.credit(1), PActions{});
  EXPECT_EQ(p.state.num_credits, kMaxKvCredits);
}

class Decode {
 public:
  DecodeState state;
  DecodeWorker worker{.num_free_slots = 4, .times = {.total = 20'000}};
  int64_t now_ms = 0;
  HandoffFallback why = HandoffFallback::kNoHandoff;
  int32_t num_posted = 0;  // by the last event

  std::vector<DDo> operator()(DecodeEvent event) {
    event.now_ms = now_ms;
    std::vector<DDo> done;
    num_posted = 0;
    for (const DecodeAction& action : advance(state, event, worker)) {
      done.push_back(action.kind);
      if (action.kind == DDo::kFallBack) why = action.fallback;
      if (action.kind == DDo::kPost) num_posted = action.count;
    }
    return done;
  }

  std::vector<DDo> operator()(D kind) {
    return (*this)({.kind = kind,
                    .peer = kPeer,
                    .attempt = state.attempt,
                    .num_parts = 2});
  }

  std::vector<DDo> frame(bool agrees = true, bool is_new = true) {
    return (*this)(
        {.kind = D::kFrame, .attempt = state.attempt, .sums_agree = agrees, .is_new = is_new});
  }

  std::vector<DDo> refuse(KvRefusal reason) {
    return (*this)({.kind = D::kRefuse, .peer = kPeer, .attempt = state.attempt, .reason = reason});
  }

  std::vector<DDo> start(bool is_early = false) {
    return (*this)({.kind = D::kStart, .peer = kPeer, .is_early = is_early, .num_parts = 2});
  }

  void receive() {
    start();
    (*this)(D::kAccept);
    (*this)(D::kRoom);
    ASSERT_EQ(state.phase, DecodePhase::kReceiving);
  }

  void land() {
    receive();
    (*this)(D::kFinalOk);
    frame();
    frame();
    ASSERT_EQ(state.phase, DecodePhase::kLanded);
  }
};

using DActions = std::vector<DDo>;

TEST(DecodeStateTest, RoomComesBeforeBytesAndTheFirstTokenIsCompared) {
  Decode d;
  EXPECT_EQ(d.start(), DActions{DDo::kClaim});
  EXPECT_EQ(d(D::kAccept), DActions{DDo::kAskRoom});
  EXPECT_EQ(d.state.phase, DecodePhase::kHeld);
  EXPECT_EQ(d(D::kRoom), DActions{DDo::kPost});
  EXPECT_EQ(d.num_posted, 2);
  EXPECT_EQ(d.frame(), DActions{DDo::kTakeIn});
  EXPECT_EQ(d.frame(), DActions{DDo::kTakeIn});
  EXPECT_EQ(d(D::kFinalOk), DActions{DDo::kLand});
  EXPECT_EQ(d(D::kTail), DActions{DDo::kRelease});
  EXPECT_EQ(d.state.phase, DecodePhase::kRun);
  EXPECT_EQ(d(D::kOver), DActions{});
  EXPECT_TRUE(is_over(d.state));
}

TEST(DecodeStateTest, AnotherFirstTokenDropsTheBlocks) {
  Decode d;
  d.land();
  EXPECT_EQ(d({.kind = D::kTail, .agrees = false}),
            (DActions{DDo::kDropBlocks, DDo::kRelease, DDo::kFallBack}));
  EXPECT_EQ(d.why, HandoffFallback::kFirstToken);
  EXPECT_EQ(d.state.phase, DecodePhase::kRun);
}

TEST(DecodeStateTest, AFlippedBitIsAskedForOnceMore) {
  Decode d;
  d.receive();
  EXPECT_EQ(d.frame(false), DActions{DDo::kNak});
  EXPECT_EQ(d.state.num_posted, 2);
  EXPECT_EQ(d.frame(false),
            (DActions{DDo::kFreeSlot, DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(d.why, HandoffFallback::kSpoiled);
  EXPECT_EQ(d.state.phase, DecodePhase::kFallback);
  EXPECT_EQ(d({.kind = D::kSlotsBack, .attempt = 1, .num_slots = 1}), DActions{});
  EXPECT_EQ(d.state.phase, DecodePhase::kRun);
}

TEST(DecodeStateTest, EachStageFallsBackInTime) {
  Decode claiming;
  claiming.start();
  for (int i = 1; i < 3; ++i) EXPECT_EQ(claiming(D::kTimer), DActions{DDo::kClaim});
  EXPECT_EQ(claiming(D::kTimer), (DActions{DDo::kCancel, DDo::kFallBack}));
  EXPECT_EQ(claiming.why, HandoffFallback::kNoAnswer);

  Decode receiving;
  receiving.receive();
  EXPECT_EQ(next_timer(receiving.state), 5'000);
  receiving.now_ms = 5'000;
  EXPECT_EQ(receiving(D::kTimer), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kClaim}));
  EXPECT_EQ(receiving.state.attempt, 2U);
  EXPECT_EQ(receiving.state.num_posted_old, 2);
  receiving(D::kAccept);
  EXPECT_EQ(receiving.state.phase, DecodePhase::kReceiving);
  receiving.now_ms = 10'000;
  EXPECT_EQ(receiving(D::kTimer), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(receiving.why, HandoffFallback::kTooSlow);
  EXPECT_TRUE(next_timer(receiving.state).has_value());
}

TEST(DecodeStateTest, TheTotalTimeEndsEvenWhatGoesOnWell) {
  Decode d;
  d.receive();
  d.now_ms = 19'000;
  d.frame();
  EXPECT_EQ(next_timer(d.state), 20'000);
  d.now_ms = 20'000;
  EXPECT_EQ(d(D::kTimer), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
}

TEST(DecodeStateTest, WhoHasNoSlotIsNotTooSlow) {
  Decode d;
  d.worker.num_free_slots = 0;
  d.receive();
  EXPECT_EQ(d(D::kTimer), DActions{});
  EXPECT_EQ(d.state.phase, DecodePhase::kReceiving);
  d.worker.num_free_slots = 1;
  EXPECT_EQ(d(D::kSlotsFree), DActions{DDo::kPost});
  EXPECT_EQ(d.num_posted, 1);
}

TEST(DecodeStateTest, AnUnknownTransferIsAskedForAgainIfItMayBeEarly) {
  Decode early;
  early.start(true);
  EXPECT_EQ(early.refuse(KvRefusal::kUnknown), DActions{});
  EXPECT_EQ(next_timer(early.state), 100);
  EXPECT_EQ(early(D::kTimer), DActions{DDo::kClaim});
  early.now_ms = 2'000;
  EXPECT_EQ(early.refuse(KvRefusal::kUnknown), DActions{DDo::kFallBack});
  Decode serial;
  serial.start();
  EXPECT_EQ(serial.refuse(KvRefusal::kUnknown), DActions{DDo::kFallBack});
  EXPECT_EQ(serial.why, HandoffFallback::kRefused);
}

TEST(DecodeStateTest, EveryEndReleasesThePeerAndItsSlots) {
  Decode claiming;
  claiming.start();
  EXPECT_EQ(claiming(D::kOver), DActions{DDo::kCancel});
  EXPECT_TRUE(is_over(claiming.state));
  Decode receiving;
  receiving.receive();
  EXPECT_EQ(receiving(D::kOver), (DActions{DDo::kCancel, DDo::kAbortLanding}));
  EXPECT_FALSE(is_over(receiving.state));
  EXPECT_EQ(receiving.frame(), DActions{DDo::kFreeSlot});
  receiving({.kind = D::kSlotsBack, .attempt = 1, .num_slots = 1});
  EXPECT_TRUE(is_over(receiving.state));
  Decode landed;
  landed.land();
  EXPECT_EQ(landed(D::kOver), DActions{DDo::kRelease});
  EXPECT_EQ(landed(D::kAccept), DActions{DDo::kCancel});
}

TEST(DecodeStateTest, PreemptionInEveryStateEnds) {
  Decode held;
  held.start();
  held(D::kAccept);
  EXPECT_EQ(held(D::kPreempted), DActions{});
  EXPECT_EQ(held.state.phase, DecodePhase::kHeld);
  Decode receiving;
  receiving.receive();
  EXPECT_EQ(receiving(D::kPreempted), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(receiving.why, HandoffFallback::kPreempted);
  Decode again;  // it claims for the second time, with room and slots of the first
  again.receive();
  again.now_ms = 5'000;
  again(D::kTimer);
  ASSERT_EQ(again.state.phase, DecodePhase::kClaiming);
  EXPECT_EQ(again(D::kPreempted), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(again.why, HandoffFallback::kPreempted);
  EXPECT_EQ(again(D::kAccept), DActions{DDo::kCancel});
  Decode landed;
  landed.land();
  EXPECT_EQ(landed(D::kPreempted), DActions{});
  EXPECT_EQ(landed({.kind = D::kTail, .agrees = false}),
            (DActions{DDo::kDropBlocks, DDo::kRelease, DDo::kFallBack}));
}

TEST(DecodeStateTest, ADeadlineEndsEveryWait) {
  Decode held;
  held.start();
  held(D::kAccept);
  EXPECT_EQ(held(D::kLate), (DActions{DDo::kCancel, DDo::kFallBack}));
  EXPECT_EQ(held.why, HandoffFallback::kDeadline);
  Decode receiving;
  receiving.receive();
  EXPECT_EQ(receiving(D::kLate), (DActions{DDo::kCancel, DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(receiving(D::kLate), DActions{});
  Decode landed;
  landed.land();
  EXPECT_EQ(landed(D::kLate), DActions{});
}

TEST(DecodeStateTest, ARestartedPeerIsANewPeer) {
  Decode d;
  d.receive();
  EXPECT_EQ(d({.kind = D::kFinalOk, .peer = kOther, .attempt = 1}), DActions{});
  EXPECT_FALSE(d.state.has_final);
  EXPECT_EQ(d(D::kPeerGone), (DActions{DDo::kAbortLanding, DDo::kFallBack}));
  EXPECT_EQ(d.why, HandoffFallback::kPeerGone);
}

TEST(LandingSlotTest, WhatWasMeantForAnEarlierPostingIsNotAwaited) {
  LandingSlot slot;
  EXPECT_FALSE(slot.awaits(1, 1, 0));
  slot.post(1, 1);
  EXPECT_TRUE(slot.awaits(1, 1, 1));
  EXPECT_FALSE(slot.awaits(2, 1, 1));
  EXPECT_FALSE(slot.awaits(1, 2, 1));
  EXPECT_FALSE(slot.awaits(1, 0, 1));
  slot.release();
  EXPECT_FALSE(slot.awaits(1, 1, 1));
  slot.post(1, 1);
  EXPECT_FALSE(slot.awaits(1, 1, 1));
  EXPECT_TRUE(slot.awaits(1, 1, 2));
}

// Events without any sense, with numbers at the ends of their ranges: no CHECK, and counts that
// stay counts.
TEST(HandoffStateTest, NoEventReachesACheck) {
  std::mt19937_64 random(3);
  const auto number = [&] {
    constexpr int32_t kNumbers[] = {INT32_MIN, -1, 0, 1, 2, 3, 4096, INT32_MAX};
    return kNumbers[random() % std::size(kNumbers)];
  };
  const auto small = [&](uint64_t most) { return static_cast<uint32_t>(random() % (most + 1)); };
  PrefillState p;
  DecodeState d;
  for (int i = 0; i < 300'000; ++i) {
    if (i % 200 == 0) {
      p = {};
      d = {};
    }
    PrefillEvent event{.kind = static_cast<P>(small(static_cast<uint64_t>(P::kPeerDead))),
                       .now_ms = i,
                       .peer = KvPeerId(small(2)),
                       .attempt = small(2),
                       .epoch = small(2),
                       .key = {static_cast<uint8_t>(small(1))},
                       .is_compatible = small(9) != 0,
                       .is_cached = small(1) != 0};
    event.num_parts = static_cast<int32_t>(small(3));  // by the driver
    event.num_ready = static_cast<int32_t>(small(3));
    event.num_credits = number();
    event.part = number();
    advance(p, event, {.epoch = 1, .is_draining = false, .takes_early_claims = true, .times = {}});
    EXPECT_GE(p.num_credits, 0);
    EXPECT_GE(p.num_reading, 0);
    EXPECT_GE(p.num_reading_old, 0);
    EXPECT_LE(p.num_begun, p.num_parts);
    DecodeEvent other{.kind = static_cast<D>(small(static_cast<uint64_t>(D::kPeerGone))),
                      .now_ms = i,
                      .peer = KvPeerId(small(2)),
                      .attempt = small(2),
                      .reason = static_cast<KvRefusal>(small(6)),
                      .retry_after_ms = number()};
    other.sums_agree = small(3) != 0;
    other.num_parts = static_cast<int32_t>(small(3));
    other.num_slots = number() < 0 ? 0 : static_cast<int32_t>(small(3));
    advance(d, other, {.num_free_slots = static_cast<int32_t>(small(3)), .times = {}});
    EXPECT_GE(d.num_posted, 0);
    EXPECT_GE(d.num_posted_old, 0);
  }
}

}  // namespace
}  // namespace sluice
