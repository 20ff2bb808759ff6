// SPDX-License-Identifier: Apache-2.0
// Parameters of a request's query. Functions without state.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Returns a parameter's value, decoded; empty: it is not there. `query`: HttpRequest::query.
std::string query_value(std::string_view query, std::string_view name);

// Returns how many items of a list the parameter `limit` asks for; `usual` where it is not there.
// kInvalidArgument: it is not a number from 1 to `most`.
Expected<int> page_limit(std::string_view query, int usual, int most);

}  // namespace sluice
