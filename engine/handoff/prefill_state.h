// SPDX-License-Identifier: Apache-2.0
// The prefill worker's half of one handoff, as a pure function: (state, event) -> state and
// actions. No clock, thread or allocation: time is a number in events, and the driver of a machine
// asks it when its next timer is due. handoff.cpp drives it in an engine and
// tests/engine/handoff_model.cpp in a model checker; decode_state.h is the other half.
//
// A handoff's blocks travel in parts, each of which fills at most one landing slot. Both workers
// cut the blocks that are wanted into the same parts and count them from 0 in the order in which
// they are sent; a part is ready when the steps that compute its blocks have retired.
//
//   kNone       nothing is known of the transfer
//   kExpected   claimed before its request arrived
//   kComputing  the request runs
//   kParked     all of it is computed and kept for a time, the lease
//   kServing    parts are being read
//   kDrain      ended, and parts are still being read
//   kGone       ended; remembered so that late messages are answered, by the last 4096
//
// From kComputing to kServing, `is_claimed` tells whether a decode worker has claimed the transfer.
// One that is claimed and given up while it is computed is not kept. Nothing that is read moves:
// the parts between kPinPart and kUnpinPart, and all between kPinAll and kUnpinAll, are neither
// freed nor written. Timers bound how long memory is kept, and none is needed for safety.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/types.h"
#include "engine/handoff/action_list.h"
#include "engine/handoff/kv_messages.h"
#include "engine/handoff/kv_peer.h"
#include "kvcache/kv_key.h"

namespace sluice {

enum class PrefillPhase : uint8_t {
  kNone,
  kExpected,
  kComputing,
  kParked,
  kServing,
  kDrain,
  kGone,
};

// How long a prefill worker waits, in milliseconds.
struct PrefillTimes {
  int64_t expected = 2'000;         // for the request of a claim; a worker that ends, for a claim
  int64_t lease = 30'000;           // for a claim, or the claimer's next message
  int64_t renewal = 20'000;         // how long a renewal lasts, from its arrival
  int64_t longest_lease = 600'000;  // with all its renewals
  int64_t progress = 5'000;         // for a part that is being read
};

// Returns times in proportion to `progress`.
constexpr PrefillTimes prefill_times(int64_t progress) {
  return {.expected = progress * 2 / 5,
          .lease = 6 * progress,
          .renewal = 4 * progress,
          .longest_lease = 120 * progress,
          .progress = progress};
}

// The state of its worker, an input of each event.
struct PrefillWorker {
  uint64_t epoch = 0;
  bool is_draining = false;
  bool takes_early_claims = true;  // there is room for one more kExpected of that peer
  PrefillTimes times;
};

struct PrefillState {
  PrefillPhase phase = PrefillPhase::kNone;
  bool is_claimed = false;
  bool has_ended = false;      // the prefill has ended well: there is a first token
  bool is_pinned = false;      // between kPinAll and kUnpinAll
  bool owes_released = false;  // kDrain: kReleased is sent when it ends
  bool is_queued = false;      // kDrain: a newer claim of the same peer waits for its end
  KvPeerId peer;               // of the last claim that was taken; kept when it is given up
  uint32_t attempt = 0;        // of the last claim that was taken; 0: none was
  uint32_t queued_attempt = 0;
  KvKey key{};  // of the last block: the request's, in kExpected the claim's
  // Parts of the claim's cut; 0 without a claim.
  int32_t num_parts = 0;
  int32_t num_ready = 0;
  int32_t num_begun = 0;    // leading parts that have been read or are being read
  int32_t num_credits = 0;  // landing slots that wait at the peer for a part
  int32_t num_reading = 0;
  int32_t num_reading_old = 0;  // for an earlier attempt
  int64_t timer_ms = 0;         // of kExpected, kServing and kDrain
  int64_t lease_end_ms = 0;     // of kParked and, when it has ended, kServing
  int64_t lease_limit_ms = 0;
  friend bool operator==(const PrefillState&, const PrefillState&) = default;
};

struct PrefillEvent {
  enum class Kind : uint8_t {
    // Events of this worker.
    kAdmitted,  // a request with this transfer is about to run: key, and num_parts, num_ready of
                // the claim that waits for it
    kReady,     // a step retired: num_ready
    kEnded,     // the prefill ended well: num_ready is all
    kFailed,    // the request ended without a first token
    kPartRead,  // part, of attempt, was read for the last time, whether or not it was sent
    kLost,      // blocks that were not pinned have been given away
    kTimer,     // next_timer() is due
    kDraining,  // the worker will end: worker.is_draining is true from now on
    kForget,    // the places for kGone are all taken, and this is the oldest
    // A peer's messages: `peer` and `attempt`.
    kClaim,   // epoch, key, is_compatible, num_parts, num_ready, is_cached
    kCredit,  // num_credits
    kNak,     // part: once more, into the slot that the message names
    kRenew,
    kRelease,
    kCancel,
    kPeerDead,
  };

  Kind kind = Kind::kTimer;
  int64_t now_ms = 0;
  KvPeerId peer{};
  uint32_t attempt = 0;
  uint64_t epoch = 0;  // the process that the claim is for; 0: any
  KvKey key{};
  bool is_compatible = true;  // the peer's Hello, and the transport it wants
  // All blocks of the claim (kPartRead: of the queued claim) are in the cache.
  bool is_cached = false;
  int32_t num_parts = 0;  // of the claim whose blocks is_cached means
  int32_t num_ready = 0;
  int32_t num_credits = 0;
  int32_t part = 0;
};

struct PrefillAction {
  enum class Kind : uint8_t {
    kRunAlone,  // kAdmitted: the request is not part of the handoff
    // Messages to `peer` about `attempt`.
    kAccept,
    kRefuse,  // reason
    kFinalOk,
    kFinalFailed,
    kReleased,
    kRenewAck,
    // All of the prompt's blocks, within the quota.
    kPinAll,
    kUnpinAll,
    // `count` parts from `part` on.
    kPinPart,
    kUnpinPart,
    kReadPart,      // each is written into the slot of the oldest credit
    kReadNaked,     // `part`, into the slot that the event's message names
    kKeepCredits,   // the slots of the event's message join those that wait
    kDropCredits,   // all that wait
    kAbortReading,  // of `attempt`: what is left of it is not sent; kPartRead comes all the same
  };

  Kind kind = Kind::kAccept;
  KvPeerId peer{};
  uint32_t attempt = 0;
  KvRefusal reason = KvRefusal::kUnknown;
  int32_t part = 0;
  int32_t count = 0;
};

using PrefillActions = ActionList<PrefillAction>;

// Landing slots of one transfer that may wait for parts; a peer's further credits are ignored.
inline constexpr int32_t kMaxKvCredits = 4096;

// Accepts every event in every phase; one without a meaning there changes nothing.
PrefillActions advance(PrefillState& state, const PrefillEvent& event, const PrefillWorker& worker);

// Returns when kTimer is due. Never in kNone, in kGone and in kComputing, which ends with its
// request.
std::optional<int64_t> next_timer(const PrefillState& state);

}  // namespace sluice
