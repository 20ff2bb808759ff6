// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/prefill_state.h"

#include <algorithm>

namespace sluice {
namespace {

using Kind = PrefillEvent::Kind;
using Do = PrefillAction::Kind;
using Phase = PrefillPhase;

// One transition: what it looks at, and its answer.
class Transition {
 public:
  Transition(PrefillState& state, const PrefillEvent& event, const PrefillWorker& worker)
      : state_(state), event_(event), worker_(worker) {}

  PrefillActions run();

 private:
  void admitted();
  void ready();
  void ended();
  void failed();
  void part_read();
  void lost();
  void timer();
  void claim();
  void claim_expected();
  void claim_draining();
  void claim_gone();
  void credit();
  void nak();
  void renew();
  void release();
  void cancel();
  void peer_dead();

  void act(Do kind) {
    actions_.push({.kind = kind, .peer = state_.peer, .attempt = state_.attempt});
  }

  void act_on_parts(Do kind, int32_t part, int32_t count) {
    actions_.push({.kind = kind,
                   .peer = state_.peer,
                   .attempt = state_.attempt,
                   .part = part,
                   .count = count});
  }

  void answer(Do kind) {
    actions_.push({.kind = kind, .peer = event_.peer, .attempt = event_.attempt});
  }

  void refuse(KvRefusal reason) {
    actions_.push(
        {.kind = Do::kRefuse, .peer = event_.peer, .attempt = event_.attempt, .reason = reason});
  }

  [[nodiscard]] bool is_in(Phase phase) const { return state_.phase == phase; }

  // The message is about the claim that this worker serves.
  [[nodiscard]] bool is_of_claimer() const {
    return state_.is_claimed && event_.peer == state_.peer && event_.attempt == state_.attempt;
  }

  // The claimer gave the transfer up or disconnected. A later claim can still succeed, because the
  // blocks may remain in the cache.
  [[nodiscard]] bool is_given_up() const { return !state_.is_claimed && state_.attempt > 0; }

  [[nodiscard]] bool is_reading() const { return state_.num_reading + state_.num_reading_old > 0; }

  void take_claim();
  void lease_until(int64_t end_ms);
  void keep_shortly();
  void accept();
  void replace();
  void serve();
  void park();
  void unclaim();
  void drain();
  void finish();

  PrefillState& state_;
  const PrefillEvent& event_;
  const PrefillWorker& worker_;
  PrefillActions actions_;
};

// The event's claim is the one that counts.
void Transition::take_claim() {
  state_.is_claimed = true;
  state_.peer = event_.peer;
  state_.attempt = event_.attempt;
  state_.num_parts = event_.num_parts;
  state_.num_ready = std::min(event_.num_ready, event_.num_parts);
  state_.num_begun = 0;
}

// Sends the transfer's state to the claimer.
void Transition::accept() {
  act(Do::kAccept);
  if (state_.has_ended) act(Do::kFinalOk);
}

// A newer claim of the same peer: what is being read for the earlier one is waited for.
void Transition::replace() {
  if (state_.num_credits > 0) act(Do::kDropCredits);
  state_.num_credits = 0;
  if (state_.num_reading > 0) act(Do::kAbortReading);
  state_.num_reading_old += state_.num_reading;
  state_.num_reading = 0;
  take_claim();
  accept();
}

// Begins to read what is ready and has a slot.
void Transition::serve() {
  if (!state_.is_claimed || state_.num_reading_old > 0) return;
  const int32_t count = std::min(state_.num_credits, state_.num_ready - state_.num_begun);
  if (count <= 0) return;
  act_on_parts(Do::kPinPart, state_.num_begun, count);
  act_on_parts(Do::kReadPart, state_.num_begun, count);
  state_.num_begun += count;
  state_.num_credits -= count;
  state_.num_reading += count;
  state_.phase = Phase::kServing;
  state_.timer_ms = event_.now_ms + worker_.times.progress;
}

// At least, where no limit comes first.
void Transition::lease_until(int64_t end_ms) {
  state_.lease_end_ms = std::max(state_.lease_end_ms, std::min(end_ms, state_.lease_limit_ms));
}

// A worker that shuts down does not wait long for claims: a peer that would claim has its offer by
// now.
void Transition::keep_shortly() {
  if (state_.is_claimed || !worker_.is_draining) return;
  state_.lease_end_ms = std::min(state_.lease_end_ms, event_.now_ms + worker_.times.expected);
}

// Everything is computed.
void Transition::park() {
  state_.has_ended = true;
  state_.is_pinned = true;
  act(Do::kPinAll);
  state_.lease_limit_ms = event_.now_ms + worker_.times.longest_lease;
  state_.lease_end_ms = std::min(event_.now_ms + worker_.times.lease, state_.lease_limit_ms);
}

// The peer has given its claim up, and the prefill is an ordinary one.
void Transition::unclaim() {
  if (state_.num_credits > 0) act(Do::kDropCredits);
  state_.num_credits = 0;
  state_.is_claimed = false;
  state_.num_parts = 0;
  state_.num_ready = 0;
  state_.num_begun = 0;
}

// The handoff is over but for what is being read.
void Transition::drain() {
  unclaim();
  state_.num_reading_old += state_.num_reading;
  state_.num_reading = 0;
  state_.phase = Phase::kDrain;
  state_.timer_ms = event_.now_ms + worker_.times.progress;
  if (!is_reading()) finish();
}

void Transition::finish() {
  unclaim();
  if (state_.is_pinned) act(Do::kUnpinAll);
  state_.is_pinned = false;
  if (state_.owes_released) act(Do::kReleased);
  state_.owes_released = false;
  state_.attempt = std::max(state_.attempt, state_.queued_attempt);
  state_.queued_attempt = 0;
  state_.phase = Phase::kGone;
}

void Transition::admitted() {
  if (is_in(Phase::kExpected)) {
    const bool is_same = state_.key == event_.key;
    state_.phase = Phase::kComputing;
    state_.key = event_.key;
    if (!is_same) {
      actions_.push({.kind = Do::kRefuse,
                     .peer = state_.peer,
                     .attempt = state_.attempt,
                     .reason = KvRefusal::kKey});
      unclaim();
      state_.peer = {};  // it was not a claim of this prompt
      state_.attempt = 0;
      return;
    }
    state_.num_parts = event_.num_parts;
    state_.num_ready = std::min(event_.num_ready, event_.num_parts);
    accept();
    serve();
  } else if (is_in(Phase::kNone) && !worker_.is_draining) {
    state_.phase = Phase::kComputing;
    state_.key = event_.key;
  } else {
    answer(Do::kRunAlone);
  }
}

void Transition::ready() {
  if (!is_in(Phase::kComputing) && !is_in(Phase::kServing)) return;
  if (!state_.is_claimed) return;
  state_.num_ready = std::clamp(event_.num_ready, state_.num_ready, state_.num_parts);
  serve();
}

void Transition::ended() {
  if (state_.has_ended) return;
  if (!is_in(Phase::kComputing) && !is_in(Phase::kServing)) return;
  if (is_given_up()) {
    state_.has_ended = true;
    return finish();
  }
  park();
  keep_shortly();
  if (is_in(Phase::kComputing)) state_.phase = Phase::kParked;
  if (!state_.is_claimed) return;
  state_.num_ready = state_.num_parts;
  act(Do::kFinalOk);
  serve();
}

void Transition::failed() {
  if (is_in(Phase::kParked)) return finish();
  if (!is_in(Phase::kComputing) && !is_in(Phase::kServing)) return;
  if (state_.is_claimed) act(Do::kFinalFailed);
  drain();
}

void Transition::part_read() {
  const bool is_current = event_.attempt == state_.attempt && state_.num_reading > 0;
  int32_t& num_reading = is_current ? state_.num_reading : state_.num_reading_old;
  if (num_reading == 0) return;
  --num_reading;
  act_on_parts(Do::kUnpinPart, event_.part, 1);
  state_.timer_ms = event_.now_ms + worker_.times.progress;
  if (is_in(Phase::kServing)) {
    serve();
    if (is_reading()) return;
    state_.phase = state_.has_ended ? Phase::kParked : Phase::kComputing;
    lease_until(state_.timer_ms);
  } else if (is_in(Phase::kDrain) && !is_reading()) {
    finish();
    if (!state_.is_queued) return;
    state_.is_queued = false;
    if (state_.has_ended && event_.is_cached && !worker_.is_draining) {
      state_.num_parts = event_.num_parts;
      state_.num_ready = event_.num_parts;
      state_.is_claimed = true;
      state_.phase = Phase::kParked;
      park();
      accept();
    } else {
      actions_.push({.kind = Do::kRefuse,
                     .peer = state_.peer,
                     .attempt = state_.attempt,
                     .reason = KvRefusal::kGone});
    }
  }
}

void Transition::lost() {
  if (!state_.has_ended) return;
  if (!is_in(Phase::kParked) && !is_in(Phase::kServing)) return;
  if (state_.is_claimed) act(Do::kFinalFailed);
  drain();
}

void Transition::timer() {
  switch (state_.phase) {
    case Phase::kExpected:
    case Phase::kParked:
      return finish();
    case Phase::kServing:
      act(Do::kFinalFailed);
      return drain();
    case Phase::kDrain:
      act(Do::kAbortReading);
      state_.timer_ms = event_.now_ms + worker_.times.progress;
      return;
    case Phase::kNone:
    case Phase::kComputing:
    case Phase::kGone:
      return;
  }
}

void Transition::claim_expected() {
  if (event_.peer != state_.peer) return refuse(KvRefusal::kBusy);
  if (event_.attempt < state_.attempt) return;
  if (event_.attempt == state_.attempt) {
    if (event_.key != state_.key) refuse(KvRefusal::kBusy);
    return;
  }
  unclaim();
  take_claim();
  state_.key = event_.key;
  state_.timer_ms = event_.now_ms + worker_.times.expected;
}

// What is being read for the earlier attempt comes first.
void Transition::claim_draining() {
  const uint32_t last = std::max(state_.attempt, state_.queued_attempt);
  const bool is_same = state_.is_queued && event_.attempt == last;
  const bool is_newer = event_.attempt > last;
  if (event_.peer != state_.peer || event_.key != state_.key || (!is_same && !is_newer)) {
    return refuse(KvRefusal::kGone);
  }
  state_.is_queued = true;
  state_.queued_attempt = event_.attempt;
}

// The blocks may still be there, found by their keys like any cached ones.
void Transition::claim_gone() {
  const bool is_old = event_.peer == state_.peer && event_.attempt <= state_.attempt;
  const bool is_there = state_.has_ended && event_.key == state_.key && event_.is_cached;
  if (is_old || !is_there || worker_.is_draining) return refuse(KvRefusal::kGone);
  take_claim();
  state_.num_ready = state_.num_parts;
  state_.phase = Phase::kParked;
  park();
  accept();
}

void Transition::claim() {
  if (event_.epoch != 0 && event_.epoch != worker_.epoch) return refuse(KvRefusal::kEpoch);
  if (!event_.is_compatible) return refuse(KvRefusal::kMismatch);
  const bool is_same_peer = event_.peer == state_.peer;
  switch (state_.phase) {
    case Phase::kNone:
      if (worker_.is_draining) return refuse(KvRefusal::kDraining);
      if (event_.epoch != 0 || !worker_.takes_early_claims) return refuse(KvRefusal::kUnknown);
      take_claim();
      state_.phase = Phase::kExpected;
      state_.key = event_.key;
      state_.timer_ms = event_.now_ms + worker_.times.expected;
      return;
    case Phase::kExpected:
      return claim_expected();
    case Phase::kDrain:
      return claim_draining();
    case Phase::kGone:
      return claim_gone();
    case Phase::kComputing:
    case Phase::kParked:
    case Phase::kServing:
      break;
  }
  if (event_.key != state_.key) return refuse(KvRefusal::kKey);
  if (!state_.is_claimed) {
    // A late message does not revive what was given up.
    if (is_same_peer && event_.attempt <= state_.attempt) return refuse(KvRefusal::kGone);
    take_claim();
    if (state_.has_ended) lease_until(event_.now_ms + worker_.times.lease);
    return accept();
  }
  if (!is_same_peer) return refuse(KvRefusal::kBusy);
  if (event_.attempt < state_.attempt) return;
  if (event_.attempt == state_.attempt) return accept();
  replace();
}

void Transition::credit() {
  if (!is_of_claimer()) return refuse(KvRefusal::kGone);
  if (event_.num_credits <= 0 || event_.num_credits > kMaxKvCredits - state_.num_credits) return;
  state_.num_credits += event_.num_credits;
  act(Do::kKeepCredits);
  if (!is_in(Phase::kExpected)) serve();
}

void Transition::nak() {
  if (!is_of_claimer()) return refuse(KvRefusal::kGone);
  if (event_.part < 0 || event_.part >= state_.num_begun || state_.num_reading_old > 0) return;
  act_on_parts(Do::kPinPart, event_.part, 1);
  act_on_parts(Do::kReadNaked, event_.part, 1);
  ++state_.num_reading;
  state_.phase = Phase::kServing;
  state_.timer_ms = event_.now_ms + worker_.times.progress;
}

void Transition::renew() {
  if (!is_of_claimer()) {
    if (!is_in(Phase::kDrain)) refuse(KvRefusal::kGone);
    return;
  }
  if (is_in(Phase::kExpected)) state_.timer_ms = event_.now_ms + worker_.times.expected;
  lease_until(event_.now_ms + worker_.times.renewal);
  answer(Do::kRenewAck);
}

void Transition::release() {
  if (is_in(Phase::kNone) || is_in(Phase::kGone)) return answer(Do::kReleased);
  if (!is_of_claimer()) return;
  if (is_in(Phase::kComputing)) return unclaim();
  state_.owes_released = !is_in(Phase::kExpected);
  drain();
}

void Transition::cancel() {
  if (state_.is_queued && event_.peer == state_.peer && event_.attempt == state_.queued_attempt) {
    state_.is_queued = false;
    return;
  }
  if (!is_of_claimer()) return;
  if (is_in(Phase::kComputing)) return unclaim();
  drain();
}

void Transition::peer_dead() {
  if (event_.peer != state_.peer) return;
  state_.is_queued = false;
  state_.owes_released = false;
  if (!state_.is_claimed) return;
  if (is_in(Phase::kComputing)) return unclaim();
  drain();
}

PrefillActions Transition::run() {
  switch (event_.kind) {
    case Kind::kAdmitted:
      admitted();
      break;
    case Kind::kReady:
      ready();
      break;
    case Kind::kEnded:
      ended();
      break;
    case Kind::kFailed:
      failed();
      break;
    case Kind::kPartRead:
      part_read();
      break;
    case Kind::kLost:
      lost();
      break;
    case Kind::kTimer:
      timer();
      break;
    case Kind::kDraining:
      if (is_in(Phase::kParked)) keep_shortly();
      if (!is_in(Phase::kExpected)) break;
      actions_.push({.kind = Do::kRefuse,
                     .peer = state_.peer,
                     .attempt = state_.attempt,
                     .reason = KvRefusal::kDraining});
      finish();
      break;
    case Kind::kForget:
      if (is_in(Phase::kGone)) state_ = {};
      break;
    case Kind::kClaim:
      claim();
      break;
    case Kind::kCredit:
      credit();
      break;
    case Kind::kNak:
      nak();
      break;
    case Kind::kRenew:
      renew();
      break;
    case Kind::kRelease:
      release();
      break;
    case Kind::kCancel:
      cancel();
      break;
    case Kind::kPeerDead:
      peer_dead();
      break;
  }
  return actions_;
}

}  // namespace

PrefillActions advance(PrefillState& state,
                       const PrefillEvent& event,
                       const PrefillWorker& worker) {
  return Transition(state, event, worker).run();
}

std::optional<int64_t> next_timer(const PrefillState& state) {
  switch (state.phase) {
    case Phase::kExpected:
    case Phase::kServing:
    case Phase::kDrain:
      return state.timer_ms;
    case Phase::kParked:
      return state.lease_end_ms;
    case Phase::kNone:
    case Phase::kComputing:
    case Phase::kGone:
      break;
  }
  return std::nullopt;
}

}  // namespace sluice
