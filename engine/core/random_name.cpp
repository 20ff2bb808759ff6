// SPDX-License-Identifier: Apache-2.0
#include "engine/core/random_name.h"

#include <array>
#include <cstdint>
#include <random>

#include "engine/core/hex.h"

namespace sluice {

std::string random_name() {
  std::random_device source;
  std::array<uint8_t, 16> bytes{};
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(source());
  return to_hex(bytes);
}

}  // namespace sluice
