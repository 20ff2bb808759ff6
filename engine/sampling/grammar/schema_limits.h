// SPDX-License-Identifier: Apache-2.0
// Limits on the size of a JSON schema.
#pragma once

#include <cstdint>
#include <limits>

namespace sluice {

// The most that a text may count of a character or a group. XGrammar as released compiles each
// place of a count against the whole vocabulary, and above 128 tries all tokens at each mask;
// deploy/xgrammar/repetitions.patch mends both.
#ifdef SLUICE_XGRAMMAR_AS_RELEASED
inline constexpr int64_t kMostCounted = 32;
#else
inline constexpr int64_t kMostCounted = std::numeric_limits<int64_t>::max();
#endif

struct SchemaLimits {
  int64_t max_bytes = int64_t{256} << 10;
  int32_t max_depth = 64;              // of the JSON text, and of references followed
  int64_t max_nodes = 20000;           // values in the schema, and what merging makes
  int64_t max_properties = 5000;       // in all objects
  int64_t max_enum_values = 10000;     // in all enums
  int64_t max_branches = 64;           // of one anyOf or oneOf, and of what distributing makes
  int64_t max_repetitions = 10000;     // of items and characters; larger maxima are refused by name
  int64_t max_counted = kMostCounted;  // in a string or an expression; more is refused by name
  int64_t max_work = 400000;           // more than any schema within the limits needs
};

}  // namespace sluice
