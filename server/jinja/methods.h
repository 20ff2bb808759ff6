// SPDX-License-Identifier: Apache-2.0
// Methods of strings, sequences and dicts, the global functions, and the operations on text that
// filters, tests and methods share.
#pragma once

#include <string_view>

#include "server/jinja/value.h"

namespace sluice::jinja {

struct MethodEntry {
  std::string_view name;
  NativeFunction function;  // null: hidden by the immutable sandbox
};

// Null when the type has no such method.
const MethodEntry* find_method(const Value& value, std::string_view name);
// A namespace refuses names that start with an underscore.
tl::unexpected<Error> underscore_error(const Runtime& runtime, std::string_view name);
// Null when there is no such global.
NativeFunction find_global(std::string_view name);
// Python's split: `separator` null splits at runs of white space.
Result split_text(Runtime& runtime, const Text& text, const Text* separator, int64_t max_splits);
enum class StripSide : uint8_t { kBoth, kLeft, kRight };
// `characters` null strips white space.
Result strip_text(Runtime& runtime, const Text& text, const Text* characters, StripSide side);
Result replace_text(
    Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t count);
enum class CaseMap : uint8_t { kUpper, kLower, kTitle, kCapitalize };
Result map_case(Runtime& runtime, const Text& text, CaseMap map);

}  // namespace sluice::jinja
