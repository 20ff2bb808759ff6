// SPDX-License-Identifier: Apache-2.0
// Strict JSON for request bodies: depth and members bounded, no duplicate keys, finite numbers,
// valid UTF-8. Objects keep their order, because templates show it.
#pragma once

#include <cstdint>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "engine/core/status.h"

namespace sluice {

inline constexpr int64_t kMaxJsonValues = 2'000'000;  // of a text; each takes some tens of bytes
inline constexpr int64_t kMaxJsonMembers = 4096;  // members of one object; look-ups in it are
                                                  // linear

// kInvalidArgument names the rule and the place.
Expected<nlohmann::ordered_json> parse_json(std::string_view body, int32_t max_depth);

// parse_json() of a request's body, which must be an object.
Expected<nlohmann::ordered_json> parse_body(std::string_view body, int32_t max_depth);

// JSON that a model wrote, as Python's json.loads reads it: of equal keys the last one's value
// counts, in the first one's place. Bounded like parse_json(); an integer that neither int64 nor
// uint64 holds is an error, since its digits would be lost.
Expected<nlohmann::ordered_json> parse_written_json(std::string_view text, int32_t max_depth);

}  // namespace sluice
