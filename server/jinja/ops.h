// SPDX-License-Identifier: Apache-2.0
// Operators of the language on values, with Python's results and jinja2's treatment of undefined.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "server/jinja/ast.h"
#include "server/jinja/runtime.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

Expected<bool> equals(Runtime& runtime, const Value& a, const Value& b);
// Order of two values; unordered for NaN, an error for types that have none.
Expected<std::partial_ordering> order(Runtime& runtime, const Value& a, const Value& b);
// The positions of `keys` in ascending (or descending) order; equal ones keep theirs.
Expected<std::vector<size_t>> stable_order(Runtime& runtime,
                                           const std::vector<Value>& keys,
                                           bool descending);
// kEq ... kNotIn.
Expected<bool> compare(Runtime& runtime, Op op, const Value& a, const Value& b);
Expected<bool> contains(Runtime& runtime, const Value& container, const Value& item);
// kAdd ... kPow.
Result arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b);
Result negate(Runtime& runtime, const Value& value);
Result concat(Runtime& runtime, const std::vector<Value>& values);
Result escape_html(Runtime& runtime, const Value& value);

// value.name and value[index], as the immutable sandbox resolves them.
Result get_attribute(Runtime& runtime, const Value& value, std::string_view name);
Result get_item(Runtime& runtime, const Value& value, const Value& index);
// An error unless Python can hash the key, and so store it or look for it.
Expected<void> check_hashable(const Runtime& runtime, const Value& key);
// Null when the dict has no such key; an error when check_hashable() has one.
Expected<Value*> find_key(Runtime& runtime, Dict& dict, const Value& key);

// The elements a `for` sees; a generator is used up by it.
Expected<std::vector<Value>> iterate(Runtime& runtime, const Value& value);
Expected<int64_t> length(Runtime& runtime, const Value& value);
// An error that says `what` needs an integer.
Expected<int64_t> to_integer(const Runtime& runtime, const Value& value, std::string_view what);
// Fails with the message of an undefined value.
tl::unexpected<Error> undefined_error(const Runtime& runtime, const Value& value);

// The index range of a Python slice over `size` elements: `count` of them from `start` by `step`.
struct SliceRange {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;  // at most the size and one
  int64_t count = 0;
  int64_t written_step = 1;
};

Expected<SliceRange> resolve_slice(const Runtime& runtime, const Slice& slice, int64_t size);

}  // namespace sluice::jinja
