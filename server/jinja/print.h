// SPDX-License-Identifier: Apache-2.0
// Values to text: Python's str() and repr(), json.dumps(), and the two format languages.
#pragma once

#include <string>
#include <string_view>

#include "server/jinja/runtime.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

Expected<void> append_str(Runtime& runtime, const Value& value, TextBuilder& out);
Expected<void> append_repr(Runtime& runtime, const Value& value, TextBuilder& out);
// str(value) as a string value; strings are returned unchanged.
Result to_text(Runtime& runtime, const Value& value);
std::string float_repr(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool pretty = false;
  std::string indent;  // one level, when pretty
  Text item_separator;
  Text key_separator;
  bool sort_keys = false;
};

Result to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

// 'text' % values.
Result percent_format(Runtime& runtime, const Text& format, const Value& values);
// 'text'.format(...).
Result brace_format(Runtime& runtime, const Text& format, const CallArgs& args);

}  // namespace sluice::jinja
