// SPDX-License-Identifier: Apache-2.0
// A small world around the two machines of a handoff, for a model checker: one prefill and one
// decode worker's part in one transfer, with blocks that have contents, landing slots, and a
// network that is the set of all messages ever sent. A message may be delivered at any time, any
// number of times or never, so loss, repetition and reordering need no steps of their own.
//
// Several transfers share workers: what they share (epochs, slots, room) is a Pair, and everything
// else of a transfer is a Local. handoff_search.h makes whole worlds of these.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/handoff/decode_state.h"
#include "engine/handoff/landing_slot.h"
#include "engine/handoff/prefill_state.h"

namespace sluice::model {

inline constexpr int kMaxParts = 3;
inline constexpr int kMaxSlots = 2;
inline constexpr int kMaxReadings = 4;
inline constexpr int kMaxCredits = 8;
inline constexpr int kNetWords = 4;

struct Rules {
  int num_parts = 1;     // of every prompt
  int num_slots = 1;     // of a decode worker
  int room = 1;          // requests of a decode worker that can have their blocks at once
  bool is_early = true;  // concurrent: both workers get their requests at once; else the answer of
                         // the first names the transfer to the second
  uint32_t max_attempts = 1;
  bool timers_are_faults = false;  // else they may be due at any time
};

enum class Content : uint8_t { kNothing, kRight, kOtherPrompt, kForeign };

struct Reading {
  uint8_t is_active = 0;
  uint8_t is_aborted = 0;
  uint8_t block = 0;
  uint8_t slot = 0;
  uint8_t generation = 0;
  uint8_t attempt = 0;
};

struct Credit {
  uint8_t slot = 0;
  uint8_t generation = 0;
};

enum class Coming : uint8_t { kToCome, kLives, kOver };

// One transfer's own. All of it is in pack().
struct Local {
  PrefillState p;
  DecodeState d;
  std::array<uint64_t, kNetWords> net{};  // bits: messages of the World's table

  Coming p_request = Coming::kToCome;
  bool p_is_part = false;      // the request is the handoff's
  uint8_t p_prompt = 0;        // 1: another prompt under the same id
  uint8_t p_steps = 0;         // parts computed
  uint8_t p_first = 0;         // block of the claim's part 0
  uint8_t p_queued_first = 0;  // the same of the claim that waits
  bool p_is_pinned = false;
  bool p_over_quota = false;
  std::array<Content, kMaxParts> p_blocks{};
  std::array<uint8_t, kMaxParts> p_pins{};
  std::array<Reading, kMaxReadings> readings{};
  std::array<Credit, kMaxCredits> credits{};
  uint8_t num_credits = 0;
  std::array<uint8_t, kMaxSlots> p_seen{};  // the last generation that was credited

  Coming d_request = Coming::kToCome;
  bool d_asked = false;  // for room
  bool d_has_room = false;
  uint8_t d_first = 0;     // block of this attempt's part 0
  uint8_t d_findable = 0;  // bits: blocks
  uint8_t d_aborting = 0;  // bits: slots that the transport gives back
  std::array<Content, kMaxParts> d_blocks{};
  uint8_t blob_epoch = 0;  // that the answer named; 0: there is none
  uint8_t num_cuts = 0;    // of the stream between the two
};

struct Slot {
  uint8_t owner = 0;  // 0: free, else the transfer's number + 1
  uint8_t generation = 0;
  uint8_t attempt = 0;
};

// What transfers share.
struct Pair {
  uint8_t p_epoch = 1;
  bool p_draining = false;
  uint8_t d_epoch = 1;
  bool d_draining = false;
  uint8_t room_used = 0;
  std::array<Slot, kMaxSlots> slots{};
};

// The stream between the two workers, as peers know it.
KvPeerId stream(const Local& local, const Pair& pair);

struct Message {
  enum class Type : uint8_t {
    kClaim,
    kCredit,
    kNak,
    kRenew,
    kRelease,
    kCancel,  // to the prefill worker
    kAccept,
    kRefuse,
    kFinalOk,
    kFinalFailed,
    kFrame,  // to the decode worker
  };
  Type type = Type::kClaim;
  uint8_t attempt = 0;
  uint8_t epoch = 0;                    // kClaim
  uint8_t first = 0;                    // kClaim
  uint8_t slot = 0;                     // kCredit, kNak, kFrame
  uint8_t generation = 0;               // the same
  uint8_t block = 0;                    // kNak, kFrame
  Content content = Content::kNothing;  // kFrame
  KvRefusal reason = KvRefusal::kUnknown;
  friend bool operator==(const Message&, const Message&) = default;
};

enum class Step : uint8_t {
  // Of the prefill worker.
  kPRequest,
  kPOtherPrompt,
  kPStep,
  kPEnd,
  kPFail,
  kPRead,
  kPTimer,
  kPEvict,
  kPQuota,
  kPForget,
  kPPeerDead,
  // Of the decode worker.
  kDRequest,
  kDRoom,
  kDTimer,
  kDRenewal,
  kDTail,
  kDTailSpoiled,
  kDPreempt,
  kDAbort,
  kDFinish,
  kDSlotsBack,
  kDSlotsFree,
  kDPeerGone,
  // Of the stream between them.
  kDeliver,
  kFlip,
  kCut,
  // What a worker's end or drain is to a transfer; the Pair says so already.
  kPRestarted,
  kDRestarted,
  kPDraining,
  kDDraining,
};

// One possible step of one transfer.
struct Move {
  Step step = Step::kPRequest;
  uint8_t argument = 0;  // a block, a reading, a message; kDTimer: 1, at the end of its time
  bool is_fault = false;
  friend bool operator==(const Move&, const Move&) = default;
};

struct Outcome {
  Local local;
  Pair pair;
  std::string violation;  // empty: none
};

class World {
 public:
  explicit World(const Rules& rules) : rules_(rules) {}

  // All that may happen to a transfer, in this state.
  void list_moves(const Local& local, const Pair& pair, std::vector<Move>& moves) const;
  Outcome make(const Local& local, const Pair& pair, int self, Move move);

  // Without any message: the step that brings the transfer nearer to rest, or nothing where it has
  // to wait for room or is at rest.
  bool next_alone(const Local& local, const Pair& pair, Move& move) const;
  // Nothing is going on, and nothing is held.
  static bool is_at_rest(const Local& local, const Pair& pair, int self);
  // At rest, and both requests have come and gone: late messages change nothing that others see.
  static bool is_done(const Local& local);
  static Local done();
  // Waits for what another transfer has.
  [[nodiscard]] bool waits_for_room(const Local& local, const Pair& pair) const;

  static void pack(const Local& local, std::string& bytes);
  [[nodiscard]] std::string describe(Move move) const;
  static std::string describe(const Local& local, const Pair& pair);

  [[nodiscard]] size_t num_messages() const { return messages_.size(); }

 private:
  friend class Actor;
  uint8_t number_of(const Message& message);

  [[nodiscard]] const Message& message(uint8_t number) const { return messages_[number]; }

  const Rules rules_;
  std::vector<Message> messages_;
};

}  // namespace sluice::model
