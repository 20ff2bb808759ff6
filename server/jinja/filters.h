// SPDX-License-Identifier: Apache-2.0
// The filter table.
#pragma once

#include <span>
#include <string_view>

#include "server/jinja/value.h"

namespace sluice::jinja {

struct FilterEntry {
  std::string_view name;
  NativeFunction function;
};

// `self` is the filtered value. Null when there is no such filter.
NativeFunction find_filter(std::string_view name);
NativeFunction find_sequence_filter(std::string_view name);
NativeFunction find_text_filter(std::string_view name);

NativeFunction find_entry(std::span<const FilterEntry> table, std::string_view name);

// Filters with a file of their own.
Result word_wrap(Runtime& runtime, const Value& self, const CallArgs& args);
Result strip_tags(Runtime& runtime, const Value& self, const CallArgs& args);
Result pretty_print(Runtime& runtime, const Value& self, const CallArgs& args);

}  // namespace sluice::jinja
