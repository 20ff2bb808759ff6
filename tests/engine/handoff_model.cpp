// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/handoff_model.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "tests/engine/handoff_actor.h"

namespace sluice::model {
namespace {

bool is_to_prefill(Type type) { return type < Type::kAccept; }

}  // namespace

// The streams to a worker that ends are gone, and what was on its way on them. Frames may still
// come on a connection of their own.
void Actor::restart_p() {
  l.p = {};
  l.p_request = Coming::kToCome;
  l.p_is_part = false;
  l.p_prompt = 0;
  l.p_steps = 0;
  l.p_first = 0;
  l.p_queued_first = 0;
  l.p_is_pinned = false;
  l.p_over_quota = false;
  l.p_blocks = {};
  l.p_pins = {};
  l.readings = {};
  l.credits = {};
  l.num_credits = 0;
  l.p_seen = {};
  for (size_t i = 0; i < world_.messages_.size(); ++i) {
    if (world_.messages_[i].type == Type::kFrame) continue;
    l.net[i / 64] &= ~(uint64_t{1} << (i % 64));
  }
}

void Actor::restart_d() {
  l.d = {};
  l.net = {};
  l.p_seen = {};
  l.d_request = Coming::kToCome;
  l.d_asked = false;
  l.d_has_room = false;
  l.d_first = 0;
  l.d_findable = 0;
  l.d_aborting = 0;
  l.d_blocks = {};
}

// Time stands still here: when a timer may be due is the checker's to choose.
void Actor::forget_times() {
  l.p.timer_ms = 0;
  l.p.lease_end_ms = 0;
  l.p.lease_limit_ms = 0;
  l.d.timer_ms = 0;
  l.d.renewal_ms = 0;
}

void Actor::check_p() {
  const auto num_readings = std::ranges::count(l.readings, 1, &Reading::is_active);
  check(num_readings == l.p.num_reading + l.p.num_reading_old,
        "the machine counts other readings than there are");
  check(l.num_credits == l.p.num_credits, "the machine counts other credits than there are");
  for (const Reading& reading : l.readings) {
    check(reading.is_active == 0 || l.p_pins[reading.block] > 0, "a part is read without a pin");
  }
  const bool is_idle = l.p.phase == PrefillPhase::kNone || l.p.phase == PrefillPhase::kGone;
  check(!is_idle || (num_readings == 0 && !l.p_is_pinned && l.num_credits == 0),
        "a handoff is over and holds blocks");
  check(l.p.phase != PrefillPhase::kExpected || l.p.is_claimed, "nobody is expected");
}

void Actor::check_d() {
  int num_slots = 0;
  for (const Slot& slot : pair_.slots) num_slots += slot.owner == self_ + 1 ? 1 : 0;
  check(num_slots == l.d.num_posted + l.d.num_posted_old,
        "the machine counts other slots than are posted");
  const auto is_current = [&](const Slot& slot) {
    return slot.owner == self_ + 1 && slot.attempt == l.d.attempt;
  };
  check(l.d.phase != DecodePhase::kReceiving ||
            std::ranges::count_if(pair_.slots, is_current) == l.d.num_posted,
        "the machine counts slots of another attempt");
  for (int block = 0; block < kMaxParts; ++block) {
    check((l.d_findable & bit(block)) == 0 || l.d_blocks[block] == Content::kRight,
          "wrong content is findable");
  }
  check(!is_over(l.d) || num_slots == 0, "a request is over and holds slots");
  const bool may_have_room =
      l.d.phase == DecodePhase::kClaiming || l.d.phase == DecodePhase::kReceiving;
  check(!l.d_has_room || may_have_room, "a request that waits for nothing holds room");
}

void Actor::check_all() {
  check_p();
  check_d();
}

void Actor::step_prefill(Move move) {
  switch (move.step) {
    case Step::kPRequest:
      p_request(0);
      break;
    case Step::kPOtherPrompt:
      p_request(1);
      break;
    case Step::kPStep:
      p_step();
      break;
    case Step::kPEnd:
      p_end(true);
      break;
    case Step::kPFail:
      p_end(false);
      break;
    case Step::kPRead:
      p_read(l.readings[move.argument]);
      break;
    case Step::kPTimer:
      advance_p(p_event(PKind::kTimer), nullptr);
      break;
    case Step::kPEvict:
      l.p_blocks[move.argument] = Content::kForeign;
      break;
    case Step::kPQuota:
      l.p_over_quota = true;
      break;
    case Step::kPForget:
      advance_p(p_event(PKind::kForget), nullptr);
      break;
    case Step::kPPeerDead: {
      PrefillEvent event = p_event(PKind::kPeerDead);
      event.peer = l.p.peer;
      advance_p(event, nullptr);
      break;
    }
    default:
      SLUICE_UNREACHABLE("no step of the prefill worker");
  }
}

void Actor::step_decode(Move move) {
  switch (move.step) {
    case Step::kDRequest:
      d_request();
      break;
    case Step::kDRoom:
      l.d_asked = false;
      l.d_has_room = true;
      ++pair_.room_used;
      advance_d(d_event(DKind::kRoom), nullptr);
      break;
    case Step::kDTimer: {
      DecodeEvent event = d_event(DKind::kTimer);
      if (move.argument != 0) event.now_ms = std::max(l.d.total_end_ms, l.d.again_end_ms);
      const auto gap = std::ranges::find(l.d_blocks, Content::kNothing);
      event.num_parts = world_.rules_.num_parts - static_cast<int32_t>(gap - l.d_blocks.begin());
      event.num_parts = std::max(event.num_parts, 0);
      advance_d(event, nullptr);
      break;
    }
    case Step::kDRenewal:
      advance_d(d_event(DKind::kRenewal), nullptr);
      break;
    case Step::kDTail:
    case Step::kDTailSpoiled: {
      DecodeEvent event = d_event(DKind::kTail);
      event.agrees = move.step == Step::kDTail;
      advance_d(event, nullptr);
      check(event.agrees || l.d_findable == 0, "blocks with another first token stay findable");
      break;
    }
    case Step::kDPreempt:
      d_preempt();
      break;
    case Step::kDAbort:
    case Step::kDFinish:
      d_over();
      break;
    case Step::kDSlotsBack:
      d_slots_back();
      break;
    case Step::kDSlotsFree:
      advance_d(d_event(DKind::kSlotsFree), nullptr);
      break;
    case Step::kDPeerGone: {
      DecodeEvent event = d_event(DKind::kPeerGone);
      event.peer = l.d.peer;
      advance_d(event, nullptr);
      break;
    }
    default:
      SLUICE_UNREACHABLE("no step of the decode worker");
  }
}

void Actor::step_between(Move move) {
  switch (move.step) {
    case Step::kDeliver:
    case Step::kFlip: {
      const Message message = world_.message(move.argument);
      if (is_to_prefill(message.type)) {
        deliver_to_prefill(message);
      } else {
        deliver_to_decode(message, move.step == Step::kFlip);
      }
      break;
    }
    case Step::kCut:
      ++l.num_cuts;
      for (size_t i = 0; i < world_.messages_.size(); ++i) {
        if (world_.messages_[i].type == Type::kFrame) continue;
        l.net[i / 64] &= ~(uint64_t{1} << (i % 64));
      }
      break;
    case Step::kPRestarted:
      restart_p();
      break;
    case Step::kDRestarted:
      restart_d();
      break;
    case Step::kPDraining:
      advance_p(p_event(PKind::kDraining), nullptr);
      break;
    case Step::kDDraining:
      advance_d(d_event(DKind::kDraining), nullptr);
      break;
    default:
      SLUICE_UNREACHABLE("no step between the workers");
  }
}

Outcome Actor::make(Move move) {
  if (move.step < Step::kDRequest) {
    step_prefill(move);
  } else if (move.step < Step::kDeliver) {
    step_decode(move);
  } else {
    step_between(move);
  }
  forget_times();
  check_all();
  return std::move(out_);
}

Outcome World::make(const Local& local, const Pair& pair, int self, Move move) {
  return Actor(*this, local, pair, self).make(move);
}

}  // namespace sluice::model
