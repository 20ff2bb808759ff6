// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "server/jinja/print.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {
namespace {

std::string_view symbol(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    default:
      return "**";
  }
}

Result power(Runtime& runtime, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return runtime.fail("0 cannot be raised to a negative power");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t bit = exponent; bit > 0; bit >>= 1) {
    if ((bit & 1) != 0 && __builtin_mul_overflow(result, base, &result)) {
      return runtime.fail("integer overflow");
    }
    if (bit > 1 && __builtin_mul_overflow(base, base, &base)) {
      return runtime.fail("integer overflow");
    }
  }
  return Value(result);
}

Result integer_arithmetic(Runtime& runtime, Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kPow:
      return power(runtime, a, b);
    default: {
      if (b == 0) return runtime.fail("division by zero");
      if (op == Op::kDiv) return Value(static_cast<double>(a) / static_cast<double>(b));
      if (b == -1) {
        overflow = a == std::numeric_limits<int64_t>::min() && op == Op::kFloorDiv;
        result = op == Op::kFloorDiv && !overflow ? -a : 0;
        break;
      }
      const int64_t remainder = a % b;
      const bool adjust = remainder != 0 && ((remainder < 0) != (b < 0));
      result = op == Op::kMod ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
    }
  }
  if (overflow) return runtime.fail("integer overflow");
  return Value(result);
}

Result float_power(Runtime& runtime, double a, double b) {
  if (a < 0 && std::isfinite(b) && b != std::floor(b)) {
    return runtime.fail("the power is a complex number");
  }
  if (a == 0 && b < 0) return runtime.fail("0.0 cannot be raised to a negative power");
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    return runtime.fail("the power is out of range");
  }
  return Value(power);
}

Result float_arithmetic(Runtime& runtime, Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value(a + b);
    case Op::kSub:
      return Value(a - b);
    case Op::kMul:
      return Value(a * b);
    case Op::kPow:
      return float_power(runtime, a, b);
    default:
      break;
  }
  if (b == 0) return runtime.fail("division by zero");
  if (op == Op::kDiv) return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (remainder == 0) remainder = std::copysign(0.0, b);
  if (op == Op::kMod) return Value(remainder);
  const double quotient = (a - remainder) / b;
  return Value(quotient == 0 ? std::copysign(0.0, a / b) : std::floor(quotient + 0.5));
}

Result repeat(Runtime& runtime, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (value.is(Kind::kString)) {
    TextBuilder out(runtime);
    if (value.text().empty()) times = 0;
    for (; times > 0 && !out.overflowed(); --times) {
      SLUICE_TRY_VOID(runtime.charge(1));
      out.append(value.text());
    }
    SLUICE_TRY(Value repeated, out.finish());
    repeated.set_markup(value.markup());
    return repeated;
  }
  const auto& items = value.as<Sequence>().items;
  const auto size = static_cast<int64_t>(items.size() * sizeof(Value));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(size, times, &bytes)) bytes = std::numeric_limits<int64_t>::max();
  SLUICE_TRY_VOID(runtime.reserve(bytes));
  std::vector<Value> out;
  for (; times > 0 && !items.empty(); --times) out.insert(out.end(), items.begin(), items.end());
  return runtime.sequence(std::move(out), value.as<Sequence>().kind, value.as<Sequence>().origin);
}

Result add(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    if (!a.markup() && !b.markup()) return concat(runtime, {a, b});
    SLUICE_TRY(const Value left, escape_html(runtime, a));
    SLUICE_TRY(const Value right, escape_html(runtime, b));
    SLUICE_TRY(Value sum, concat(runtime, {left, right}));
    sum.set_markup(true);
    return sum;
  }
  if (is_plain_sequence(a) && is_plain_sequence(b) &&
      a.as<Sequence>().kind == b.as<Sequence>().kind) {
    std::vector<Value> items = a.as<Sequence>().items;
    const auto& more = b.as<Sequence>().items;
    items.insert(items.end(), more.begin(), more.end());
    const bool input =
        a.as<Sequence>().origin == Origin::kInput || b.as<Sequence>().origin == Origin::kInput;
    return runtime.sequence(
        std::move(items), a.as<Sequence>().kind, input ? Origin::kInput : Origin::kTemplate);
  }
  return operand_error(runtime, symbol(Op::kAdd), a, b);
}

}  // namespace

Expected<bool> contains(Runtime& runtime, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString)) {
        return runtime.fail("'in <string>' requires a string, not " + std::string(type_name(item)));
      }
      SLUICE_TRY_VOID(runtime.charge(static_cast<int64_t>(container.view().size() / 16)));
      return container.view().find(item.view()) != std::string_view::npos;
    case Kind::kDict: {
      SLUICE_TRY(const Value* found, find_key(runtime, container.as<Dict>(), item));
      return found != nullptr;
    }
    case Kind::kSequence: {
      if (container.as<Sequence>().kind == SequenceKind::kDictKeys) {
        SLUICE_TRY_VOID(check_hashable(runtime, item));
      }
      SLUICE_TRY(const std::vector<Value> items, iterate(runtime, container));
      for (const Value& candidate : items) {
        SLUICE_TRY(const bool same, equals(runtime, candidate, item));
        if (same) return true;
      }
      return false;
    }
    default:
      return runtime.fail("argument of type '" + std::string(type_name(container)) +
                          "' is not iterable");
  }
}

Expected<bool> compare(Runtime& runtime, Op op, const Value& a, const Value& b) {
  if (op == Op::kEq) return equals(runtime, a, b);
  if (op == Op::kIn) return contains(runtime, b, a);
  if (op == Op::kNe || op == Op::kNotIn) {
    SLUICE_TRY(const bool same, compare(runtime, op == Op::kNe ? Op::kEq : Op::kIn, a, b));
    return !same;
  }
  SLUICE_TRY(const std::partial_ordering result, order(runtime, a, b));
  if (op == Op::kLt) return result < 0;
  if (op == Op::kLe) return result <= 0;
  return op == Op::kGt ? result > 0 : result >= 0;
}

namespace {

// What a markup string formats: everything but numbers is escaped.
Result escaped_values(Runtime& runtime, const Value& values) {
  if (values.number() || values.is(Kind::kUndefined)) return values;
  if (values.is(Kind::kSequence) && values.as<Sequence>().kind == SequenceKind::kTuple) {
    std::vector<Value> items = values.as<Sequence>().items;
    for (Value& item : items) {
      if (item.number()) continue;
      SLUICE_TRY(item, escape_html(runtime, item));
    }
    return runtime.sequence(std::move(items), SequenceKind::kTuple);
  }
  return escape_html(runtime, values);
}

}  // namespace

Result arithmetic(Runtime& runtime, Op op, const Value& a, const Value& b) {
  if (op == Op::kMod && a.is(Kind::kString)) {
    if (!a.markup()) return percent_format(runtime, a.text(), b);
    SLUICE_TRY(const Value values, escaped_values(runtime, b));
    SLUICE_TRY(Value formatted, percent_format(runtime, a.text(), values));
    formatted.set_markup(true);
    return formatted;
  }
  if (a.is(Kind::kUndefined)) return undefined_error(runtime, a);
  if (b.is(Kind::kUndefined)) return undefined_error(runtime, b);
  if (a.integral() && b.integral()) {
    return integer_arithmetic(runtime, op, a.integer(), b.integer());
  }
  if (a.number() && b.number()) return float_arithmetic(runtime, op, a.as_double(), b.as_double());
  if (op == Op::kAdd) return add(runtime, a, b);
  if (op == Op::kMul) {
    if ((a.is(Kind::kString) || is_plain_sequence(a)) && b.integral()) {
      return repeat(runtime, a, b.integer());
    }
    if ((b.is(Kind::kString) || is_plain_sequence(b)) && a.integral()) {
      return repeat(runtime, b, a.integer());
    }
  }
  return operand_error(runtime, symbol(op), a, b);
}

Result negate(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kUndefined)) return undefined_error(runtime, value);
  if (value.is(Kind::kFloat)) return Value(-value.real());
  if (!value.integral()) {
    return runtime.fail("bad operand type for unary -: '" + std::string(type_name(value)) + "'");
  }
  return integer_arithmetic(runtime, Op::kSub, 0, value.integer());
}

Result escape_html(Runtime& runtime, const Value& value) {
  SLUICE_TRY(Value text, to_text(runtime, value));
  if (!value.markup()) {
    TextBuilder out(runtime);
    const Text& source = text.text();
    size_t start = 0;
    for (size_t i = 0; i < source.size(); ++i) {
      constexpr std::string_view kSpecial = "&<>'\"";
      constexpr std::string_view kEscaped[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
      const size_t which = kSpecial.find(source.view()[i]);
      if (which == std::string_view::npos) continue;
      out.append(source, start, i);
      out.append(kEscaped[which], source.origin_at(i));
      start = i + 1;
    }
    out.append(source, start, source.size());
    SLUICE_TRY(text, out.finish());
  }
  text.set_markup(true);
  return text;
}

Result concat(Runtime& runtime, const std::vector<Value>& values) {
  TextBuilder out(runtime);
  for (const Value& value : values) SLUICE_TRY_VOID(append_str(runtime, value, out));
  return out.finish();
}

}  // namespace sluice::jinja
