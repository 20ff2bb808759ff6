// SPDX-License-Identifier: Apache-2.0
// Filters on single values: text, conversions, numbers, JSON. Those on sequences are in
// sequence_filters.cpp.
#include "server/jinja/filters.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "server/jinja/json_value.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {
namespace {

// json.dumps(indent=): a number of spaces or the string itself.
Expected<void> json_indent(Runtime& runtime, const Value& value, JsonStyle& style) {
  if (value.is(Kind::kNone)) return {};
  style.pretty = true;
  style.item_separator = Text(",", Origin::kTemplate);
  if (value.is(Kind::kString)) {
    style.indent = value.view();
    return {};
  }
  SLUICE_TRY(const int64_t spaces, to_integer(runtime, value, "indent"));
  if (spaces > 64) return runtime.fail("indent is too large");
  style.indent.assign(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
  return {};
}

Result tojson(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, "tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  style.item_separator = Text(", ", Origin::kTemplate);
  style.key_separator = Text(": ", Origin::kTemplate);
  SLUICE_TRY_VOID(json_indent(runtime, bound.get(1), style));
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    SLUICE_TRY(const std::vector<Value> pair, iterate(runtime, bound[2]));
    if (pair.size() != 2 || !pair[0].is(Kind::kString) || !pair[1].is(Kind::kString)) {
      return runtime.fail("tojson: separators must be two strings");
    }
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
  }
  return to_json(runtime, self, style);
}

Result from_json(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "from_json", args, {"default"}));
  if (!self.is(Kind::kString)) return runtime.fail("from_json: expected a string");
  return parse_json(
      runtime, self.view(), self.text().overall(), bound.has(0) ? &bound[0] : nullptr);
}

template <CaseMap kMap>
Result cased(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "case", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  SLUICE_TRY(Value mapped, map_case(runtime, text.text(), kMap));
  mapped.set_markup(self.markup());
  return mapped;
}

// Words start after white space and one of - ( { [ <, unlike str.title().
Result title(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "title", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value value, to_text(runtime, self));
  const Text& text = value.text();
  const auto separates = [&](size_t pos) {
    constexpr std::u32string_view kOpen = U"-({[<";
    const char32_t c = decode_at(text.view(), pos).value;
    return is_space(c) || kOpen.find(c) != std::u32string_view::npos;
  };
  TextBuilder out(runtime);
  for (size_t pos = 0; pos < text.size() && !out.overflowed();) {
    const size_t first = decode_at(text.view(), pos).size;
    SLUICE_TRY(const Value initial,
               map_case(runtime, text.substr(pos, pos + first), CaseMap::kUpper));
    out.append(initial.text());
    size_t end = pos + first;
    if (separates(pos)) {
      pos = end;
      continue;
    }
    while (end < text.size() && !separates(end)) end += decode_at(text.view(), end).size;
    SLUICE_TRY(const Value others,
               map_case(runtime, text.substr(pos + first, end), CaseMap::kLower));
    out.append(others.text());
    pos = end;
  }
  return out.finish();
}

Result trim(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "trim", args, {"chars"}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  const bool given = bound.has(0) && bound[0].is(Kind::kString);
  SLUICE_TRY(
      Value stripped,
      strip_text(runtime, text.text(), given ? &bound[0].text() : nullptr, StripSide::kBoth));
  stripped.set_markup(self.markup());
  return stripped;
}

Result string(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "string", args, {}).map([](const Bound&) {}));
  return to_text(runtime, self);
}

Result safe(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "safe", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(Value text, to_text(runtime, self));
  text.set_markup(true);
  return text;
}

Result escape(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "escape", args, {}).map([](const Bound&) {}));
  return escape_html(runtime, self);
}

Result replace(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "replace", args, {"old", "new", "count"}, 2));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  SLUICE_TRY(const Value from, to_text(runtime, bound[0]));
  SLUICE_TRY(const Value to, to_text(runtime, bound[1]));
  int64_t count = -1;
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    SLUICE_TRY(count, to_integer(runtime, bound[2], "count"));
  }
  return replace_text(runtime, text.text(), from.text(), to.text(), count);
}

Result indent(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "indent", args, {"width", "first", "blank"}));
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (!self.is(Kind::kString)) return runtime.fail("indent needs a string");
  Text indention("    ", Origin::kTemplate);
  if (bound.has(0) && bound[0].is(Kind::kString)) {
    indention = bound[0].text();
  } else if (bound.has(0)) {
    SLUICE_TRY(const int64_t width, to_integer(runtime, bound[0], "width"));
    if (width > 1000) return runtime.fail("indent is too large");
    indention =
        Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), Origin::kTemplate);
  }
  const Text& text = self.text();
  const std::string_view view = text.view();
  TextBuilder out(runtime);
  if (bound.flag(1, false)) out.append(indention);
  for (size_t pos = 0;;) {
    const ByteRange end = find_line_break(view, pos);
    if (pos > 0) {
      out.append("\n", text.origin_at(pos - 1));
      if (end.begin > pos || bound.flag(2, false)) out.append(indention);
    }
    out.append(text, pos, end.begin);
    if (end.begin == end.end) break;
    pos = end.end;
  }
  SLUICE_TRY(Value indented, out.finish());
  indented.set_markup(self.markup());
  return indented;
}

Expected<std::string_view> stripped(const Value& self) {
  const std::string_view view = self.view();
  const size_t begin = skip_space(view, 0);
  return view.substr(begin, std::max(rstrip_end(view), begin) - begin);
}

// A number as Python reads it: underscores between digits do not count.
std::string digits_of(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && std::isalnum(text[i - 1]) != 0 &&
                         std::isalnum(text[i + 1]) != 0;
    if (text[i] != '_' || !between) out.push_back(text[i]);
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.starts_with('+') || text.starts_with("-+")) return std::nullopt;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// int(text, base); none where Python would raise.
Expected<std::optional<int64_t>> parse_int(Runtime& runtime, std::string_view text, int64_t base) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);

  struct Prefix {
    int64_t base;
    char letter;
  };

  for (const Prefix prefix : {Prefix{16, 'x'}, Prefix{8, 'o'}, Prefix{2, 'b'}}) {
    const bool named = text.size() > 2 && text[0] == '0' && (text[1] | 32) == prefix.letter;
    if (!named || (base != 0 && base != prefix.base)) continue;
    text.remove_prefix(2);
    base = prefix.base;
  }
  // Python reads 012 in no base of its own.
  if (base == 0 && text.starts_with('0') && text.find_first_not_of("0_") != text.npos) {
    return std::optional<int64_t>();
  }
  if (base == 0) base = 10;
  uint64_t value = 0;
  const auto result =
      std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
  if (text.empty() || result.ptr != text.data() + text.size()) return std::optional<int64_t>();
  if (result.ec != std::errc{} || value > uint64_t{1} << 63 ||
      (value == uint64_t{1} << 63 && !negative)) {
    return runtime.fail("integer overflow");
  }
  return std::optional<int64_t>(static_cast<int64_t>(negative ? 0 - value : value));
}

Result to_int(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "int", args, {"default", "base"}));
  const Value fallback = bound.get(0, Value(int64_t{0}));
  std::optional<double> real;
  if (self.integral()) return Value(self.integer());
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (self.is(Kind::kFloat)) {
    real = self.real();
  } else if (self.is(Kind::kString)) {
    int64_t base = 10;
    if (bound.has(1)) {
      SLUICE_TRY(base, to_integer(runtime, bound[1], "base"));
    }
    SLUICE_TRY(const std::string_view text, stripped(self));
    const std::string digits = digits_of(text);
    if (base == 0 || (base >= 2 && base <= 36)) {
      SLUICE_TRY(const std::optional<int64_t> value, parse_int(runtime, digits, base));
      if (value) return Value(*value);
    }
    real = parse_float(digits);
  }
  if (!real || !std::isfinite(*real)) return fallback;
  if (!(*real > -9.2e18 && *real < 9.2e18)) return runtime.fail("integer overflow");
  return Value(static_cast<int64_t>(*real));
}

Result to_float(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "float", args, {"default"}));
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (self.number()) return Value(self.as_double());
  if (self.is(Kind::kString)) {
    SLUICE_TRY(const std::string_view text, stripped(self));
    if (const std::optional<double> value = parse_float(digits_of(text))) return Value(*value);
  }
  return bound.get(0, Value(0.0));
}

Result absolute(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "abs", args, {}).map([](const Bound&) {}));
  if (self.is(Kind::kFloat)) return Value(std::fabs(self.real()));
  SLUICE_TRY(const int64_t value, to_integer(runtime, self, "abs()"));
  return value < 0 ? negate(runtime, self) : Value(value);
}

Result round(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "round", args, {"precision", "method"}));
  if (self.is(Kind::kUndefined)) return undefined_error(runtime, self);
  if (!self.number()) return runtime.fail("round needs a number");
  int64_t precision = 0;
  const bool to_integral = bound.has(0) && bound[0].is(Kind::kNone);  // Python's round(x, None)
  if (bound.has(0) && !to_integral) {
    SLUICE_TRY(precision, to_integer(runtime, bound[0], "precision"));
  }
  if (precision < -300 || precision > 300) return runtime.fail("precision is out of range");
  const std::string_view method =
      bound.has(1) && bound[1].is(Kind::kString) ? bound[1].view() : "common";
  if (to_integral && method != "common") return runtime.fail("precision must be an integer");
  if (method == "common") {
    if (to_integral && self.is(Kind::kFloat)) {
      const double rounded = std::nearbyint(self.real());
      if (!(std::fabs(rounded) < 9e18)) return runtime.fail("integer overflow");
      return Value(static_cast<int64_t>(rounded));
    }
    if (self.integral() && precision >= 0) return Value(self.integer());
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double rounded = std::nearbyint(self.as_double() * scale) / scale;
    if (self.integral() && std::fabs(rounded) < 9e18) return Value(static_cast<int64_t>(rounded));
    if (precision <= 0) return Value(rounded);
    // Decimal digits decide, as in Python: 2.675 rounds to 2.67.
    std::array<char, 700> buffer{};
    std::snprintf(
        buffer.data(), buffer.size(), "%.*f", static_cast<int>(precision), self.as_double());
    return Value(std::strtod(buffer.data(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  // Python's ceil and floor are integers, which have no negative zero.
  if (method == "ceil") return Value((std::ceil(self.as_double() * scale) + 0.0) / scale);
  if (method == "floor") return Value((std::floor(self.as_double() * scale) + 0.0) / scale);
  return runtime.fail("method must be common, ceil or floor");
}

Result default_value(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "default", args, {"default_value", "boolean"}));
  if (!self.is(Kind::kUndefined) && (!bound.flag(1, false) || truthy(self))) return self;
  if (bound.has(0)) return bound[0];
  return runtime.text("", Origin::kTemplate);
}

Result format(Runtime& runtime, const Value& self, const CallArgs& args) {
  if (!args.named.empty()) return runtime.fail("format takes no named arguments");
  SLUICE_TRY(const Value text, to_text(runtime, self));
  SLUICE_TRY(const Value values, runtime.sequence(args.positional, SequenceKind::kTuple));
  return percent_format(runtime, text.text(), values);
}

Result attr(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "attr", args, {"name"}, 1));
  if (!bound[0].is(Kind::kString)) return runtime.fail("attr needs a name");
  // Attributes only: the elements of a dict do not count.
  if (self.is(Kind::kDict) && find_method(self, bound[0].view()) == nullptr) {
    return runtime.undefined("'dict object' has no attribute '" + std::string(bound[0].view()) +
                             "'");
  }
  return get_attribute(runtime, self, bound[0].view());
}

constexpr std::array kFilters = {
    FilterEntry{"tojson", tojson},
    FilterEntry{"from_json", from_json},
    FilterEntry{"upper", cased<CaseMap::kUpper>},
    FilterEntry{"lower", cased<CaseMap::kLower>},
    FilterEntry{"capitalize", cased<CaseMap::kCapitalize>},
    FilterEntry{"title", title},
    FilterEntry{"trim", trim},
    FilterEntry{"string", string},
    FilterEntry{"safe", safe},
    FilterEntry{"escape", escape},
    FilterEntry{"e", escape},
    FilterEntry{"replace", replace},
    FilterEntry{"indent", indent},
    FilterEntry{"int", to_int},
    FilterEntry{"float", to_float},
    FilterEntry{"abs", absolute},
    FilterEntry{"round", round},
    FilterEntry{"default", default_value},
    FilterEntry{"d", default_value},
    FilterEntry{"format", format},
    FilterEntry{"attr", attr},
};

}  // namespace

NativeFunction find_entry(std::span<const FilterEntry> table, std::string_view name) {
  const auto found = std::find_if(
      table.begin(), table.end(), [&](const FilterEntry& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : found->function;
}

NativeFunction find_filter(std::string_view name) {
  const NativeFunction found = find_entry(kFilters, name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace sluice::jinja
