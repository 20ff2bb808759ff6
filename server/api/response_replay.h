// SPDX-License-Identifier: Apache-2.0
// A kept answer of the Responses API as the events of a stream. Pure functions; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// Returns the events of `response`, a whole answer as ResponsesFormat writes it: those of its first
// stream, but with one delta for each text, and numbered from 0 accordingly.
std::string response_events(const nlohmann::ordered_json& response);

}  // namespace sluice
