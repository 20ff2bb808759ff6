// SPDX-License-Identifier: Apache-2.0
// A rank's part in the life of its group, as a pure function: (state, event) -> state and actions.
// No clock, thread or allocation: RankGroup drives it, and tests/engine/group_life_test.cpp
// searches every state of groups of two and three ranks whose processes and links fail at any time.
//
//   kMeeting  not all are there
//   kServing  until the first event that ends the group
//   kFailed   a rank is lost: this one says why to those that it has, and its process ends
//   kEnded    rank 0 ended the group in order
//
// The last two are final: the first cause stays, an end that has begun is no failure, and no rank
// of a group is replaced. A rank that fails closes what others wait on and says why, and who waits
// looks for a reason before it takes its peer for the cause (RankGroup::lose()), so that all name
// the rank that is lost and not the one from which they have it.
#pragma once

#include <cstdint>

namespace sluice {

struct GroupLife {
  enum class Phase : uint8_t { kMeeting, kServing, kFailed, kEnded };

  Phase phase = Phase::kMeeting;
  bool is_first = false;          // rank 0
  bool has_said_leaving = false;  // a follower, whose connection has taken the word

  [[nodiscard]] bool is_over() const { return phase == Phase::kFailed || phase == Phase::kEnded; }

  friend bool operator==(const GroupLife&, const GroupLife&) = default;
};

enum class LifeEvent : uint8_t {
  // What this rank itself finds.
  kMet,    // all are there
  kBeat,   // a second has passed
  kLost,   // it cannot go on: not all are there in time, or what it has or computes is wrong
  kEnd,    // rank 0: no job follows
  kLeave,  // its process is to end; repeated until kToldLeaving
  kToldLeaving,  // what says_leaving asks for is done
  // What the connection for life of another rank brings.
  kAlive,
  kLeaving,
  kEnding,
  kFailing,  // it has failed, and its reason is all here
  kGone,     // the connection has ended without a reason
  kSilent,   // it has said nothing for longer than a rank may
};

// What the driver does, in this order.
struct LifeActions {
  bool has_cause = false;     // the event is the cause of the failure
  bool says_failing = false;  // to all, with the cause
  bool says_ending = false;   // to all
  bool says_alive = false;    // to all
  bool says_leaving = false;  // to rank 0
  bool closes_data = false;   // under whoever waits for bytes of others
  bool asks_to_end = false;   // of rank 0's process, when its requests have ended
};

LifeActions take_event(GroupLife& life, LifeEvent event);

}  // namespace sluice
