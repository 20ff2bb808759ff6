// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/decode_state.h"

#include <algorithm>

namespace sluice {
namespace {

using Kind = DecodeEvent::Kind;
using Do = DecodeAction::Kind;
using Phase = DecodePhase;

// One transition: what it looks at, and its answer.
class Transition {
 public:
  Transition(DecodeState& state, const DecodeEvent& event, const DecodeWorker& worker)
      : state_(state), event_(event), worker_(worker) {}

  DecodeActions run();

 private:
  void run_own();
  void run_message();
  void start();
  void room();
  void slots_back();
  void frame();
  void tail();
  void preempted();
  void timer();
  void over();
  void accept();
  void refuse();

  void act(Do kind) { actions_.push({.kind = kind, .attempt = state_.attempt}); }

  void cancel(KvCancelReason reason) {
    actions_.push({.kind = Do::kCancel, .attempt = state_.attempt, .reason = reason});
  }

  [[nodiscard]] bool is_in(Phase phase) const { return state_.phase == phase; }

  // Nothing has landed in full, and the peer may still send something.
  [[nodiscard]] bool is_waiting() const {
    return is_in(Phase::kClaiming) || is_in(Phase::kHeld) || is_in(Phase::kReceiving);
  }

  void claim();
  void hold();
  void post(int32_t num_free);
  void await_progress();
  void land_if_complete();
  void give_up_slots();
  void fall_back(HandoffFallback why);
  void leave_if_drained();

  DecodeState& state_;
  const DecodeEvent& event_;
  const DecodeWorker& worker_;
  DecodeActions actions_;
};

void Transition::claim() {
  ++state_.num_claims;
  state_.asks_again = false;
  state_.phase = Phase::kClaiming;
  state_.timer_ms = event_.now_ms + worker_.times.claim;
  act(Do::kClaim);
}

// The peer has the claim.
void Transition::hold() {
  state_.renewal_ms = event_.now_ms + worker_.times.renewal;
  if (!state_.has_room) {
    state_.phase = Phase::kHeld;
    act(Do::kAskRoom);
    return;
  }
  state_.phase = Phase::kReceiving;
  await_progress();
  post(worker_.num_free_slots);
  land_if_complete();
}

void Transition::post(int32_t num_free) {
  const int32_t num_wanted = state_.num_parts - state_.num_received - state_.num_posted;
  const int32_t count = std::min(num_wanted, num_free);
  if (count <= 0) return;
  state_.num_posted += count;
  actions_.push({.kind = Do::kPost, .attempt = state_.attempt, .count = count});
}

void Transition::await_progress() {
  state_.timer_ms = std::min(event_.now_ms + worker_.times.progress, state_.total_end_ms);
}

void Transition::land_if_complete() {
  if (!state_.has_final || state_.num_received < state_.num_parts) return;
  give_up_slots();  // of an earlier attempt, or for a part received twice
  state_.phase = Phase::kLanded;
  act(Do::kLand);
}

// Aborts the landing of all posted slots.
void Transition::give_up_slots() {
  if (state_.num_posted + state_.num_posted_old > 0) act(Do::kAbortLanding);
  state_.num_posted_old += state_.num_posted;
  state_.num_posted = 0;
}

void Transition::fall_back(HandoffFallback why) {
  give_up_slots();
  actions_.push({.kind = Do::kFallBack, .attempt = state_.attempt, .fallback = why});
  state_.phase = Phase::kFallback;
  state_.timer_ms = event_.now_ms + worker_.times.progress;
  leave_if_drained();
}

void Transition::leave_if_drained() {
  if (is_in(Phase::kFallback) && state_.num_posted_old == 0) state_.phase = Phase::kRun;
}

void Transition::start() {
  if (!is_in(Phase::kNone)) return;
  state_.peer = event_.peer;
  state_.is_early = event_.is_early;
  state_.attempt = 1;
  state_.num_parts = event_.num_parts;
  state_.again_end_ms = event_.now_ms + worker_.times.again_for;
  claim();
}

void Transition::room() {
  if (!is_in(Phase::kHeld)) return;
  state_.has_room = true;
  state_.total_end_ms = event_.now_ms + worker_.times.total;
  hold();
}

void Transition::slots_back() {
  if (event_.attempt == state_.attempt) {
    const int32_t count = std::min(event_.num_slots, state_.num_posted);
    state_.num_posted -= count;
    state_.num_posted_old -= std::min(event_.num_slots - count, state_.num_posted_old);
  } else {
    state_.num_posted_old -= std::min(event_.num_slots, state_.num_posted_old);
  }
  leave_if_drained();
}

void Transition::frame() {
  const bool is_current = event_.attempt == state_.attempt && state_.num_posted > 0;
  if (!is_current || !is_in(Phase::kReceiving)) {
    int32_t& num_posted = is_current ? state_.num_posted : state_.num_posted_old;
    num_posted -= std::min(num_posted, 1);
    act(Do::kFreeSlot);
    return leave_if_drained();
  }
  if (!event_.sums_agree) {
    if (++state_.num_spoiled == 1) {
      await_progress();
      return act(Do::kNak);
    }
    --state_.num_posted;
    act(Do::kFreeSlot);
    cancel(KvCancelReason::kBadFrames);
    return fall_back(HandoffFallback::kSpoiled);
  }
  --state_.num_posted;
  state_.num_received += event_.is_new ? 1 : 0;
  act(Do::kTakeIn);
  await_progress();
  post(worker_.num_free_slots + 1);
  land_if_complete();
}

void Transition::tail() {
  if (!is_in(Phase::kLanded)) return;
  if (!event_.agrees) act(Do::kDropBlocks);
  act(Do::kRelease);
  if (event_.agrees) {
    state_.phase = state_.num_posted_old > 0 ? Phase::kFallback : Phase::kRun;
    state_.timer_ms = event_.now_ms + worker_.times.progress;
  } else {
    fall_back(HandoffFallback::kFirstToken);
  }
}

// One that claims again has room too. What has landed is an ordinary cached prefix.
void Transition::preempted() {
  if (!is_waiting() || !state_.has_room) return;
  cancel(KvCancelReason::kPreempted);
  fall_back(HandoffFallback::kPreempted);
}

void Transition::timer() {
  const DecodeTimes& times = worker_.times;
  switch (state_.phase) {
    case Phase::kClaiming:
      if (state_.asks_again ? event_.now_ms < state_.again_end_ms
                            : state_.num_claims < times.max_claims) {
        return claim();
      }
      cancel(KvCancelReason::kTimeout);
      return fall_back(HandoffFallback::kNoAnswer);
    case Phase::kReceiving:
      if (event_.now_ms < state_.total_end_ms) {
        // Others have all the slots: nothing could be received.
        if (state_.num_posted == 0 && state_.num_received < state_.num_parts) {
          await_progress();
          return post(worker_.num_free_slots);
        }
        cancel(KvCancelReason::kTimeout);
        if (state_.attempt >= times.max_attempts) return fall_back(HandoffFallback::kTooSlow);
        give_up_slots();
        ++state_.attempt;
        state_.num_claims = 0;
        state_.num_parts = event_.num_parts;
        state_.num_received = 0;
        return claim();
      }
      cancel(KvCancelReason::kTimeout);
      return fall_back(HandoffFallback::kTooSlow);
    case Phase::kFallback:
    case Phase::kEnded:
      if (state_.num_posted_old > 0) act(Do::kAbortLanding);
      state_.timer_ms = event_.now_ms + times.progress;
      return;
    case Phase::kNone:
    case Phase::kHeld:
    case Phase::kLanded:
    case Phase::kRun:
      return;
  }
}

void Transition::over() {
  if (is_waiting()) cancel(KvCancelReason::kClientGone);
  if (is_in(Phase::kLanded)) act(Do::kRelease);
  give_up_slots();
  state_.phase = Phase::kEnded;
  state_.timer_ms = event_.now_ms + worker_.times.progress;
}

void Transition::accept() {
  switch (state_.phase) {
    case Phase::kClaiming:
      if (event_.attempt == state_.attempt) hold();
      return;
    case Phase::kFallback:
    case Phase::kRun:
    case Phase::kEnded:
      actions_.push({.kind = Do::kCancel, .attempt = event_.attempt});
      return;
    case Phase::kNone:
    case Phase::kHeld:
    case Phase::kReceiving:
    case Phase::kLanded:
      return;
  }
}

void Transition::refuse() {
  if (!is_waiting() || event_.attempt != state_.attempt) return;
  const bool may_know_later = event_.reason == KvRefusal::kUnknown && state_.is_early;
  if (is_in(Phase::kClaiming) && may_know_later && event_.now_ms < state_.again_end_ms) {
    state_.asks_again = true;
    state_.num_claims = 0;
    const int64_t wait = std::max(worker_.times.again, event_.retry_after_ms);
    state_.timer_ms = std::min(event_.now_ms + wait, state_.again_end_ms);
    return;
  }
  fall_back(HandoffFallback::kRefused);
}

void Transition::run_own() {
  switch (event_.kind) {
    case Kind::kStart:
      start();
      break;
    case Kind::kRoom:
      room();
      break;
    case Kind::kSlotsFree:
      if (is_in(Phase::kReceiving)) post(worker_.num_free_slots);
      break;
    case Kind::kSlotsBack:
      slots_back();
      break;
    case Kind::kFrame:
      frame();
      break;
    case Kind::kTail:
      tail();
      break;
    case Kind::kPreempted:
      preempted();
      break;
    case Kind::kLate:
      if (!is_waiting()) break;
      cancel(KvCancelReason::kTimeout);
      fall_back(HandoffFallback::kDeadline);
      break;
    case Kind::kTimer:
      timer();
      break;
    case Kind::kRenewal:
      if (!is_in(Phase::kHeld) && !is_in(Phase::kReceiving)) break;
      state_.renewal_ms = event_.now_ms + worker_.times.renewal;
      act(Do::kRenew);
      break;
    case Kind::kDraining:
      if (!is_in(Phase::kClaiming) && !is_in(Phase::kHeld)) break;
      cancel(KvCancelReason::kLocal);
      fall_back(HandoffFallback::kDraining);
      break;
    case Kind::kOver:
      if (!is_in(Phase::kNone)) over();
      break;
    default:
      break;
  }
}

void Transition::run_message() {
  if (event_.peer != state_.peer) return;
  const bool is_current = event_.attempt == state_.attempt;
  switch (event_.kind) {
    case Kind::kAccept:
      accept();
      break;
    case Kind::kRefuse:
      refuse();
      break;
    case Kind::kFinalOk:
      if (!is_waiting() || !is_current) break;
      state_.has_final = true;
      if (is_in(Phase::kReceiving)) land_if_complete();
      break;
    case Kind::kFinalFailed:
      if (is_waiting() && is_current) fall_back(HandoffFallback::kPrefillFailed);
      break;
    case Kind::kPeerGone:
      if (is_waiting()) fall_back(HandoffFallback::kPeerGone);
      break;
    default:
      break;
  }
}

DecodeActions Transition::run() {
  if (event_.kind >= Kind::kAccept) {
    run_message();
  } else {
    run_own();
  }
  return actions_;
}

}  // namespace

DecodeActions advance(DecodeState& state, const DecodeEvent& event, const DecodeWorker& worker) {
  return Transition(state, event, worker).run();
}

std::optional<int64_t> next_timer(const DecodeState& state) {
  switch (state.phase) {
    case Phase::kClaiming:
    case Phase::kReceiving:
    case Phase::kFallback:
      return state.timer_ms;
    case Phase::kEnded:
      if (state.num_posted_old > 0) return state.timer_ms;
      break;
    case Phase::kNone:
    case Phase::kHeld:
    case Phase::kLanded:
    case Phase::kRun:
      break;
  }
  return std::nullopt;
}

std::optional<int64_t> next_renewal(const DecodeState& state) {
  if (state.phase != Phase::kHeld && state.phase != Phase::kReceiving) return std::nullopt;
  return state.renewal_ms;
}

bool is_over(const DecodeState& state) {
  return state.phase == Phase::kEnded && state.num_posted_old == 0;
}

}  // namespace sluice
