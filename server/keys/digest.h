// SPDX-License-Identifier: Apache-2.0
// SHA-256, for API keys and for the salts that separate caches.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

using Digest = std::array<unsigned char, 32>;

Digest digest_of(std::string_view bytes);

// Returns the digest's first eight bytes, as a prefix cache's salt.
uint64_t salt_of(const Digest& digest);

}  // namespace sluice
