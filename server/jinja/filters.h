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

NativeFunction find_entry(std::span<const FilterEntry> table, std::string_view name);

}  // namespace sluice::jinja
