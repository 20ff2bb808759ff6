// SPDX-License-Identifier: Apache-2.0
// Clients' expressions and grammars, spelled so that XGrammar reads in them what they say: it reads
// "\x411" as one character, "[\^a]" as a negation and "\ud83d\ude00" as no text at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// An expression for the same texts. Classes are written anew, escapes of characters become them,
// optional pieces become counts, and groups lose their names. What is not known here stays, for the
// library to refuse. kUnsupported: a count above `max_count`, half of a surrogate pair, a class
// without a character, a range of a class with more than a character at an end. Any thread.
[[nodiscard]] Expected<std::string> exact_regex(std::string_view regex, int64_t max_count);

// A grammar in EBNF where "\x" has two digits, as GBNF has it.
[[nodiscard]] std::string exact_ebnf(std::string_view grammar);

}  // namespace sluice
