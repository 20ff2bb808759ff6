// SPDX-License-Identifier: Apache-2.0
// SHA-256, for keys and for what sets caches apart.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sluice {

using Digest = std::array<unsigned char, 32>;

Digest digest_of(std::string_view bytes);

// Its first eight bytes, as a prefix cache's salt.
uint64_t salt_of(const Digest& digest);

}  // namespace sluice
