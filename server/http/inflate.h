// SPDX-License-Identifier: Apache-2.0
// Request bodies that were sent with Content-Encoding: gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Bodies up to this size may expand beyond the ratio.
inline constexpr uint64_t kUncheckedInflatedBytes = 64 << 10;

// kResourceExhausted: larger than `max_bytes`, or than `max_ratio` times the compressed size.
// kInvalidArgument: no gzip, cut off, or followed by something else.
Expected<std::string> inflate_gzip(std::string_view compressed,
                                   uint64_t max_bytes,
                                   int32_t max_ratio);

}  // namespace sluice
