// SPDX-License-Identifier: Apache-2.0
// The `format`s of strings that grammars follow: by a pattern, or as XGrammar knows them.
#pragma once

#include <string>
#include <string_view>

#include "engine/sampling/grammar/schema_pattern.h"

namespace sluice {

struct StringFormat {
  std::string_view name;
  std::string pattern;  // of a JSON schema; empty: XGrammar knows the name
  StringSize size;      // of its strings, in characters
};

// Null: no format that is followed. Any thread.
[[nodiscard]] const StringFormat* find_string_format(std::string_view name);

// Whether a format binds nothing in a text: "password" says how to show it, "path" what it names.
[[nodiscard]] bool is_remark_on_strings(std::string_view format);

}  // namespace sluice
