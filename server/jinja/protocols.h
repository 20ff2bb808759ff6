// SPDX-License-Identifier: Apache-2.0
// What every operation may ask of a value, with Python's answers: equality, order, keys of dicts,
// elements, length, slices.
#pragma once

#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "server/jinja/runtime.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

// A list or a tuple.
bool is_plain_sequence(const Value& value);
// Fails with the message of an undefined value.
tl::unexpected<Error> undefined_error(const Runtime& runtime, const Value& value);
// Fails because the operator has no meaning for the types of `a` and `b`.
tl::unexpected<Error> operand_error(const Runtime& runtime,
                                    std::string_view symbol,
                                    const Value& a,
                                    const Value& b);
// An error that says `what` needs an integer.
Expected<int64_t> to_integer(const Runtime& runtime, const Value& value, std::string_view what);

Expected<bool> equals(Runtime& runtime, const Value& a, const Value& b);
// Order of two values; unordered for NaN, an error for types that have none.
Expected<std::partial_ordering> order(Runtime& runtime, const Value& a, const Value& b);
// The positions of `keys` in ascending (or descending) order; equal ones keep theirs.
Expected<std::vector<size_t>> stable_order(Runtime& runtime,
                                           const std::vector<Value>& keys,
                                           bool descending);

// An error unless Python can hash the key, and so store it or look for it.
Expected<void> check_hashable(const Runtime& runtime, const Value& key);
// Null when the dict has no such key; an error when check_hashable() has one.
Expected<Value*> find_key(Runtime& runtime, Dict& dict, const Value& key);
// Adds or replaces; the caller's dict grows.
Expected<void> insert(Runtime& runtime, Dict& dict, Value key, Value value);

// The elements a `for` sees; a generator is used up by it.
Expected<std::vector<Value>> iterate(Runtime& runtime, const Value& value);
Expected<int64_t> length(Runtime& runtime, const Value& value);

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
