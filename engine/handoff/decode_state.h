// SPDX-License-Identifier: Apache-2.0
// The decode worker's half of one handoff, as a pure function: (state, event) -> state and actions.
// Clocks, parts and drivers are as in prefill_state.h.
//
//   kClaiming   the claim is sent; no room is needed yet
//   kHeld       the peer has it; the request waits for room for its blocks
//   kReceiving  it has the room, and landing slots are posted for parts
//   kLanded     all parts are in its blocks and checked; it computes the rest of its prompt
//   kFallback   an ordinary request; slots are still posted
//   kRun        an ordinary request, nothing posted
//   kEnded      the request is over; slots may still be posted
//
// Every failure leads to kFallback or kRun: computing locally gives the same bytes. Whole blocks at
// the front that have landed are kept. A slot is released by its frame, or when the transport
// reports that nothing writes into it any more, never by time.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/types.h"
#include "engine/handoff/action_list.h"
#include "engine/handoff/handoff_spec.h"
#include "engine/handoff/kv_messages.h"
#include "engine/handoff/kv_peer.h"

namespace sluice {

enum class DecodePhase : uint8_t {
  kNone,  // before kStart
  kClaiming,
  kHeld,
  kReceiving,
  kLanded,
  kFallback,
  kRun,
  kEnded,
};

// How long a decode worker waits, in milliseconds, and how often it asks.
struct DecodeTimes {
  int64_t claim = 2'000;      // for an answer
  int32_t max_claims = 3;     // of one attempt without an answer
  int64_t again = 100;        // before repeating a claim that the peer did not recognise
  int64_t again_for = 2'000;  // how long claims are repeated, measured from the first
  int64_t renewal = 5'000;    // between two renewals
  int64_t progress = 5'000;   // for the next part, or for the last to be taken back
  int64_t total = 30'000;     // for all of receiving
  uint32_t max_attempts = 2;
};

// Returns times in proportion to `progress`.
constexpr DecodeTimes decode_times(int64_t progress) {
  const int64_t claim = progress * 2 / 5;
  return {.claim = claim,
          .again = progress / 50 + 1,
          .again_for = claim,
          .renewal = progress,
          .progress = progress,
          .total = 6 * progress};
}

struct DecodeWorker {
  int32_t num_free_slots = 0;  // landing slots without an owner
  DecodeTimes times;
};

struct DecodeState {
  DecodePhase phase = DecodePhase::kNone;
  bool is_early = false;     // the peer's request may arrive after the claim
  bool asks_again = false;   // kClaiming: the timer is for another claim, not for an answer
  bool has_room = false;     // while it waits: blocks of its own for all that comes
  bool has_final = false;    // the peer's prefill ended well
  KvPeerId peer;
  uint32_t attempt = 0;
  int32_t num_claims = 0;      // claims of this attempt without an answer
  int32_t num_parts = 0;       // of this attempt
  int32_t num_received = 0;    // different parts
  int32_t num_posted = 0;      // slots
  int32_t num_posted_old = 0;  // slots posted for attempts that were given up
  int32_t num_spoiled = 0;     // parts of all attempts
  int64_t timer_ms = 0;
  int64_t renewal_ms = 0;
  int64_t again_end_ms = 0;
  int64_t total_end_ms = 0;  // of kReceiving, all attempts
  friend bool operator==(const DecodeState&, const DecodeState&) = default;
};

struct DecodeEvent {
  enum class Kind : uint8_t {
    // Events of this worker.
    kStart,      // peer, is_early, num_parts
    kRoom,       // the scheduler has given the request its blocks
    kSlotsFree,  // landing slots of others have been released
    kSlotsBack,  // nothing writes any more into num_slots of attempt
    kFrame,      // a slot of attempt has its part: sums_agree, is_new. The slot is not posted now
    kTail,       // the first token was computed: agrees
    kPreempted,  // others need the request's blocks
    kLate,       // the request's deadline has passed
    kTimer,      // next_timer() is due: num_parts of a new attempt
    kRenewal,    // next_renewal() is due
    kDraining,   // the worker will end
    kOver,       // the request has ended: finished, disconnected or timed out
    // A peer's messages: `peer` and `attempt`.
    kAccept,
    kRefuse,  // reason, retry_after_ms
    kFinalOk,
    kFinalFailed,
    kPeerGone,  // dead, or replaced by another process
  };

  Kind kind = Kind::kTimer;
  int64_t now_ms = 0;
  KvPeerId peer{};
  uint32_t attempt = 0;
  KvRefusal reason = KvRefusal::kUnknown;
  int64_t retry_after_ms = 0;
  bool is_early = false;
  bool sums_agree = true;
  bool is_new = true;  // the first good one of its part
  bool agrees = true;  // with the first token and the check of kFinalOk
  int32_t num_parts = 0;
  int32_t num_slots = 0;
};

struct DecodeAction {
  enum class Kind : uint8_t {
    // Messages to the peer about `attempt`.
    kClaim,
    kRenew,
    kRelease,
    kCancel,  // reason
    // Tells the scheduler that the request waits for blocks for its prompt.
    kAskRoom,
    // `count` free slots wait for parts, and the peer gets a Credit for them.
    kPost,
    // Answers to kFrame, about its slot.
    kTakeIn,    // its part is copied into the request's blocks; the slot is free
    kNak,       // it is posted once more with a new generation, and the part asked for again
    kFreeSlot,  // its part is not wanted; the slot is free
    // Slots that are posted for any attempt: the transport takes them back, and kSlotsBack follows.
    kAbortLanding,
    // All parts have landed: they become findable, the request gives its room back and continues
    // after them.
    kLand,
    // The request continues as an ordinary one and gives its room back; whole blocks from the front
    // that have landed become findable. fallback is the reason.
    kFallBack,
    // The parts that landed are no longer findable, and nothing computed after them counts.
    kDropBlocks,
  };

  Kind kind = Kind::kClaim;
  uint32_t attempt = 0;
  int32_t count = 0;
  KvCancelReason reason = KvCancelReason::kLocal;
  HandoffFallback fallback = HandoffFallback::kNoAnswer;
};

using DecodeActions = ActionList<DecodeAction>;

// Accepts every event in every phase; one without a meaning there changes nothing.
DecodeActions advance(DecodeState& state, const DecodeEvent& event, const DecodeWorker& worker);

// Returns when kTimer is due. Never in kHeld, which ends with the peer's lease at the latest, in
// kLanded and kRun, where the request runs, and in kEnded when its slots are back.
std::optional<int64_t> next_timer(const DecodeState& state);
// Returns when kRenewal is due: in kHeld and kReceiving only.
std::optional<int64_t> next_renewal(const DecodeState& state);

// Tells whether the machine can be dropped: the request is over, and no slot is posted for it.
bool is_over(const DecodeState& state);

}  // namespace sluice
