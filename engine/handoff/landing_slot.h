// SPDX-License-Identifier: Apache-2.0
// One place where a part of a transfer lands before it is checked and copied into the cache. Its
// generation goes up with each posting: a part for an earlier one finds another number here and is
// dropped. Engine thread only.
#pragma once

#include <cstdint>

namespace sluice {

struct LandingSlot {
  bool is_posted = false;
  uint32_t generation = 0;
  uint32_t attempt = 0;  // of the transfer that it is posted for
  uint64_t owner = 0;    // its owner's number at its worker; no meaning when it is free

  // Makes the slot wait for a part.
  void post(uint64_t new_owner, uint32_t new_attempt) {
    is_posted = true;
    ++generation;
    attempt = new_attempt;
    owner = new_owner;
  }

  // Tells whether the slot waits for a part that was sent for this.
  [[nodiscard]] bool awaits(uint64_t for_owner,
                            uint32_t for_attempt,
                            uint32_t for_generation) const;

  // The transport has reported that nothing writes into it.
  void release() { is_posted = false; }

  friend bool operator==(const LandingSlot&, const LandingSlot&) = default;
};

}  // namespace sluice
