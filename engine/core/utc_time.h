// SPDX-License-Identifier: Apache-2.0
// Times as text.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Returns "2026-01-02T03:04:05Z" (RFC 3339) for seconds since the epoch. Any thread.
std::string utc_text(int64_t unix_seconds);

}  // namespace sluice
