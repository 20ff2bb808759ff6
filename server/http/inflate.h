// SPDX-License-Identifier: Apache-2.0
// Request bodies that were sent with Content-Encoding: gzip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Small bodies may expand beyond the ratio: up to here it is not looked at.
inline constexpr uint64_t kUncheckedInflatedBytes = 64 << 10;

// kResourceExhausted: larger than `max_bytes`, or than `max_ratio` times the compressed size.
// kInvalidArgument: no gzip, cut off, or followed by something else.
Expected<std::string> inflate_gzip(std::string_view compressed,
                                   uint64_t max_bytes,
                                   int32_t max_ratio);

}  // namespace sluice
