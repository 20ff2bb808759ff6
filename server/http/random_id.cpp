// SPDX-License-Identifier: Apache-2.0
#include "server/http/random_id.h"

#include <openssl/rand.h>

#include <cstdint>

#include "engine/core/hex.h"
#include "engine/core/status.h"

namespace sluice {

std::string random_id(std::string_view prefix) {
  uint8_t bytes[16];
  CHECK_EQ(RAND_bytes(bytes, sizeof bytes), 1);
  return std::string(prefix) + to_hex(bytes);
}

}  // namespace sluice
