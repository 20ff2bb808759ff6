// SPDX-License-Identifier: Apache-2.0
#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <strings.h>

#include <cstring>

namespace sluice {

Authenticator::Digest Authenticator::digest_of(const std::string& key) {
  Digest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

Authenticator::Authenticator(const std::vector<std::string>& api_keys) {
  for (const std::string& key : api_keys) digests_.push_back(digest_of(key));
}

std::optional<uint64_t> Authenticator::authenticate(const HttpRequest& request) const {
  if (digests_.empty()) return 0;
  constexpr size_t kSchemeLength = 7;
  std::string key = request.api_key;
  if (strncasecmp(request.authorization.c_str(), "Bearer ", kSchemeLength) == 0) {
    key = request.authorization.substr(kSchemeLength);
  }
  const Digest given = digest_of(key);
  std::optional<uint64_t> salt;
  for (const Digest& digest : digests_) {  // no early exit
    if (CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0) {
      uint64_t value = 0;
      std::memcpy(&value, digest.data(), sizeof value);
      salt = value;
    }
  }
  return salt;
}

}  // namespace sluice
