// SPDX-License-Identifier: Apache-2.0
// A kept answer of the Responses API as the events of a stream. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace sluice {

// `response`: a whole answer, as ResponsesFormat writes it. Returns its events, with one delta for
// each text, numbered from 0: those after number `after`, and always the last, which has it all.
std::string response_events(const nlohmann::ordered_json& response, int64_t after);

}  // namespace sluice
