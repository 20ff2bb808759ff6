// SPDX-License-Identifier: Apache-2.0
// Operators of the language on values, with Python's results and jinja2's treatment of undefined.
#pragma once

#include <string_view>
#include <vector>

#include "server/jinja/ast.h"
#include "server/jinja/runtime.h"
#include "server/jinja/value.h"

namespace sluice::jinja {

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

}  // namespace sluice::jinja
