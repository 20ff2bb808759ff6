// SPDX-License-Identifier: Apache-2.0
// API keys: compared by digest over all keys, so that the time taken tells nothing about them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/http_message.h"

namespace sluice {

class Authenticator {
 public:
  explicit Authenticator(const std::vector<std::string>& api_keys);

  // The tenant's salt for its prefix cache, 0 where no keys are configured; nothing: not let in.
  // Reads "Authorization: Bearer KEY" or "x-api-key: KEY".
  [[nodiscard]] std::optional<uint64_t> authenticate(const HttpRequest& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest_of(const std::string& key);

  std::vector<Digest> digests_;
};

}  // namespace sluice
