// SPDX-License-Identifier: Apache-2.0
// "Did you mean": the known name nearest to a mistyped one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace sluice {

// Edit distance in which a swap of neighbours counts as one edit (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, ties to the first; empty when none is within a third of its length.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace sluice
