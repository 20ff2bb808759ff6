// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/landing_slot.h"

namespace sluice {

bool LandingSlot::awaits(uint64_t for_owner, uint32_t for_attempt, uint32_t for_generation) const {
  return is_posted && owner == for_owner && attempt == for_attempt && generation == for_generation;
}

}  // namespace sluice
