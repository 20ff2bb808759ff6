// SPDX-License-Identifier: Apache-2.0
// Numbers between bounds as expressions, where the grammar library's own numbers, which have six
// places and no exponent, would leave values out.
#pragma once

#include <string_view>

#include "engine/sampling/grammar/schema_forms.h"

namespace sluice {

// An expression in which each number of the form's range has a spelling; empty: none is known,
// which is so for all bounds but 0, and both 0 and 1.
[[nodiscard]] std::string_view pattern_of_number(const SchemaForm& form);

// Whether a schema's "pattern" is one of those, for what has no quotes.
[[nodiscard]] bool is_number_pattern(std::string_view pattern);

}  // namespace sluice
