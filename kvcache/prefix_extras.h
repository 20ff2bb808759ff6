// SPDX-License-Identifier: Apache-2.0
// Values of a request that make equal tokens unequal for the prefix index.
#pragma once

#include <cstdint>

namespace sluice {

struct PrefixExtras {
  uint64_t tenant_salt = 0;
  int32_t adapter_id = 0;
  uint64_t media_hash = 0;
  friend bool operator==(const PrefixExtras&, const PrefixExtras&) = default;
};

}  // namespace sluice
