// SPDX-License-Identifier: Apache-2.0
// Text forms of knobs: numbers with units, lists, choices, and their error messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/config.h"

namespace sluice {

tl::unexpected<Error> knob_error(const Knob& knob, const std::string& rule, std::string_view got);

std::string range_rule(const Knob& knob);

// What documentation says of a knob's values: "1 to 4096", "auto, cpu, cuda", "text", "list".
std::string values_text(const Knob& knob);

// Parses "4096", "4k", "25.6k", "2Gi", "-1". The result must be whole.
std::optional<int64_t> parse_integer(std::string_view text);

std::string lower_case(std::string text);

// Converts a JSON list, as vLLM accepts for some knobs, to plain form: ["a", "b"] is a,b.
std::string without_brackets(const std::string& text);

// Strips blanks and a carriage return.
std::string_view trimmed(std::string_view line);

bool is_choice(const Knob& knob, const std::string& text);

}  // namespace sluice
