// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/group_life.h"

namespace sluice {

LifeActions take_event(GroupLife& life, LifeEvent event) {
  if (life.is_over()) return {};
  const auto fail = [&life]() -> LifeActions {
    life.phase = GroupLife::Phase::kFailed;
    return {.has_cause = true, .says_failing = true, .closes_data = true};
  };
  switch (event) {
    case LifeEvent::kMet:
      life.phase = GroupLife::Phase::kServing;
      return {};
    case LifeEvent::kBeat:
      return {.says_alive = true};
    case LifeEvent::kLeave:
      return {.says_leaving = !life.is_first && !life.has_said_leaving};
    case LifeEvent::kToldLeaving:
      life.has_said_leaving = true;
      return {};
    case LifeEvent::kAlive:
      return {};
    case LifeEvent::kLeaving:
      return {.asks_to_end = life.is_first};
    case LifeEvent::kEnd:
      life.phase = GroupLife::Phase::kEnded;
      return {.says_ending = true, .closes_data = true};
    case LifeEvent::kEnding:
      if (life.is_first) return fail();  // no other ends a group
      life.phase = GroupLife::Phase::kEnded;
      return {.closes_data = true};
    case LifeEvent::kLost:
    case LifeEvent::kFailing:
    case LifeEvent::kGone:
    case LifeEvent::kSilent:
      return fail();
  }
  return {};
}

}  // namespace sluice
