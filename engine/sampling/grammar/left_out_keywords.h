// SPDX-License-Identifier: Apache-2.0
// What an answer's grammar will not enforce, for the front ends to tell before it is compiled.
#pragma once

#include <string>
#include <vector>

#include "engine/core/grammar_spec.h"

namespace sluice {

// Returns paths of keywords, "properties.x.propertyNames", each once; empty for a grammar that is
// refused or too complex to tell, within about 20 ms. Any thread.
[[nodiscard]] std::vector<std::string> left_out_keywords(const GrammarSpec& spec);

}  // namespace sluice
