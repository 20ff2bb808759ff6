// SPDX-License-Identifier: Apache-2.0
// Parameters of a request's query, and what encodes a path's segments. Functions without state.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Decodes "org%2Fname" to "org/name"; a % that no two digits follow stays.
std::string percent_decoded(std::string_view text);

// Returns a parameter's value, decoded; empty: it is not there. `query`: HttpRequest::query.
std::string query_value(std::string_view query, std::string_view name);

// Returns how many items of a list the parameter `limit` asks for; `usual` where it is not there.
// kInvalidArgument: it is not a number from 1 to `most`.
Expected<int> page_limit(std::string_view query, int usual, int most);

}  // namespace sluice
