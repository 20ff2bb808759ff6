// SPDX-License-Identifier: Apache-2.0
#include "server/keys/digest.h"

#include <openssl/sha.h>

#include <cstring>

namespace sluice {

Digest digest_of(std::string_view bytes) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  return digest;
}

uint64_t salt_of(const Digest& digest) {
  uint64_t salt = 0;
  std::memcpy(&salt, digest.data(), sizeof salt);
  return salt;
}

}  // namespace sluice
