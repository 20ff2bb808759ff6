// SPDX-License-Identifier: Apache-2.0
// The texts of knobs: numbers with units, lists, choices, and what is said of wrong ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/config.h"

namespace sluice {

tl::unexpected<Error> knob_error(const Knob& knob, const std::string& rule, std::string_view got);

std::string range_rule(const Knob& knob);

// "4096", "4k", "25.6k", "2Gi", "-1". Fractions must come out whole.
std::optional<int64_t> parse_integer(std::string_view text);

std::string lower_case(std::string text);

// vLLM takes some lists as JSON: ["a", "b"] is a,b.
std::string without_brackets(const std::string& text);

// Blanks and the CR of a line end of other systems.
std::string_view trimmed(std::string_view line);

bool is_choice(const Knob& knob, const std::string& text);

}  // namespace sluice
