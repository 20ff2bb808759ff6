// SPDX-License-Identifier: Apache-2.0
// Filters on single values: text, numbers, JSON. Those on sequences are in sequence_filters.cpp.
#include "server/jinja/filters.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include "server/jinja/case_map.h"
#include "server/jinja/json_value.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"

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
  SLUICE_TRY_VOID(bind(runtime, "from_json", args, {}).map([](const Bound&) {}));
  if (!self.is(Kind::kString)) return runtime.fail("from_json: expected a string");
  return parse_json(runtime, self.view(), self.text().overall());
}

template <CaseMap kMap>
Result cased(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "case", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  return map_case(runtime, text.text(), kMap);
}

// Words start after white space and one of - ( { [ <, unlike str.title().
Result title(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "title", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value value, to_text(runtime, self));
  const Text& text = value.text();
  TextBuilder out(runtime);
  bool start = true;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint point = decode_at(text.view(), pos);
    std::string bytes;
    append_utf8(bytes, start ? to_upper(point.value) : to_lower(point.value));
    out.append(bytes, text.origin_at(pos));
    constexpr std::u32string_view kOpen = U"-({[<";
    start = is_space(point.value) || kOpen.find(point.value) != std::u32string_view::npos;
    pos += point.size;
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
  return out.finish();
}

Expected<std::string_view> stripped(const Value& self) {
  const std::string_view view = self.view();
  const size_t begin = skip_space(view, 0);
  return view.substr(begin, std::max(rstrip_end(view), begin) - begin);
}

std::optional<double> parse_float(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
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
    if (base < 2 || base > 36) return fallback;
    SLUICE_TRY(std::string_view text, stripped(self));
    real = parse_float(text);
    if (text.starts_with('+')) text.remove_prefix(1);
    if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
    int64_t value = 0;
    const auto result =
        std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
    if (result.ptr == text.data() + text.size() && !text.empty()) {
      if (result.ec == std::errc::result_out_of_range) return runtime.fail("integer overflow");
      if (result.ec == std::errc{}) return Value(value);
    }
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
    if (const std::optional<double> value = parse_float(text)) return Value(*value);
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
  if (!self.number()) return runtime.fail("round needs a number");
  int64_t precision = 0;
  if (bound.has(0)) {
    SLUICE_TRY(precision, to_integer(runtime, bound[0], "precision"));
  }
  if (precision < -300 || precision > 300) return runtime.fail("precision is out of range");
  const std::string_view method =
      bound.has(1) && bound[1].is(Kind::kString) ? bound[1].view() : "common";
  if (method == "common") {
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
  if (method == "ceil") return Value(std::ceil(self.as_double() * scale) / scale);
  if (method == "floor") return Value(std::floor(self.as_double() * scale) / scale);
  return runtime.fail("method must be common, ceil or floor");
}

Result default_value(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "default", args, {"default_value", "boolean"}));
  if (!self.is(Kind::kUndefined) && (!bound.flag(1, false) || truthy(self))) return self;
  if (bound.has(0)) return bound[0];
  return runtime.text("", Origin::kTemplate);
}

Result format(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Value text, to_text(runtime, self));
  if (args.named.empty()) {
    SLUICE_TRY(const Value values, runtime.sequence(args.positional, SequenceKind::kTuple));
    return percent_format(runtime, text.text(), values);
  }
  SLUICE_TRY(auto dict, runtime.dict(Origin::kTemplate));
  for (const auto& [name, value] : args.named) {
    SLUICE_TRY(Value key, runtime.text(name, Origin::kTemplate));
    SLUICE_TRY_VOID(runtime.insert(*dict, std::move(key), value));
  }
  return percent_format(runtime, text.text(), Value(Kind::kDict, dict.get()));
}

Result wordcount(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "wordcount", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  int64_t words = 0;
  bool inside = false;
  for (const char c : text.view()) {
    const bool word = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' ||
                      static_cast<unsigned char>(c) >= 0x80;
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(words);
}

Result center(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "center", args, {"width"}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  const MethodEntry* method = find_method(text, "center");
  return method->function(runtime, text, CallArgs{{bound.get(0, Value(int64_t{80}))}, {}});
}

Result truncate(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, "truncate", args, {"length", "killwords", "end", "leeway"}));
  int64_t limit = 255;
  int64_t leeway = 5;
  if (bound.has(0)) {
    SLUICE_TRY(limit, to_integer(runtime, bound[0], "length"));
  }
  if (bound.has(3)) {
    SLUICE_TRY(leeway, to_integer(runtime, bound[3], "leeway"));
  }
  SLUICE_TRY(const Value text, to_text(runtime, self));
  SLUICE_TRY(const Value dots, runtime.text("...", Origin::kTemplate));
  SLUICE_TRY(const Value end, to_text(runtime, bound.get(2, dots)));
  const auto size = static_cast<int64_t>(count_characters(text.view()));
  const auto end_size = static_cast<int64_t>(count_characters(end.view()));
  if (limit < end_size) {
    return runtime.fail("expected length >= " + std::to_string(end_size) + ", got " +
                        std::to_string(limit));
  }
  if (leeway < 0) return runtime.fail("expected leeway >= 0, got " + std::to_string(leeway));
  if (size - limit <= leeway) return text;
  size_t cut = byte_offset(text.view(), static_cast<size_t>(limit - end_size));
  if (!bound.flag(1, false)) cut = std::min(text.view().substr(0, cut).rfind(' '), cut);
  TextBuilder out(runtime);
  out.append(text.text(), 0, cut);
  out.append(end.text());
  return out.finish();
}

Result force_escape(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "forceescape", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  SLUICE_TRY(const Value plain, runtime.text(text.text()));
  return escape_html(runtime, plain);
}

Result urlencode(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "urlencode", args, {}).map([](const Bound&) {}));
  if (self.is(Kind::kDict) || self.is(Kind::kSequence)) {
    return runtime.fail("urlencode takes a string");
  }
  SLUICE_TRY(const Value text, to_text(runtime, self));
  constexpr std::string_view kPlain = "_.-~/";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  TextBuilder out(runtime);
  for (size_t i = 0; i < text.view().size(); ++i) {
    const auto byte = static_cast<unsigned char>(text.view()[i]);
    const bool is_plain = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                          (byte >= 'a' && byte <= 'z') ||
                          kPlain.find(static_cast<char>(byte)) != std::string_view::npos;
    if (is_plain) {
      out.append(text.text(), i, i + 1);
    } else {
      const char escaped[] = {'%', kDigits[byte >> 4], kDigits[byte & 15]};
      out.append(std::string_view(escaped, 3), text.text().origin_at(i));
    }
  }
  return out.finish();
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

struct Entry {
  std::string_view name;
  NativeFunction function;
};

constexpr std::array kFilters = {
    Entry{"tojson", tojson},
    Entry{"from_json", from_json},
    Entry{"upper", cased<CaseMap::kUpper>},
    Entry{"lower", cased<CaseMap::kLower>},
    Entry{"capitalize", cased<CaseMap::kCapitalize>},
    Entry{"title", title},
    Entry{"trim", trim},
    Entry{"string", string},
    Entry{"safe", safe},
    Entry{"escape", escape},
    Entry{"e", escape},
    Entry{"replace", replace},
    Entry{"indent", indent},
    Entry{"int", to_int},
    Entry{"float", to_float},
    Entry{"abs", absolute},
    Entry{"round", round},
    Entry{"default", default_value},
    Entry{"d", default_value},
    Entry{"format", format},
    Entry{"wordcount", wordcount},
    Entry{"center", center},
    Entry{"truncate", truncate},
    Entry{"forceescape", force_escape},
    Entry{"urlencode", urlencode},
    Entry{"attr", attr},
};

}  // namespace

NativeFunction find_filter(std::string_view name) {
  const auto found = std::find_if(
      kFilters.begin(), kFilters.end(), [&](const Entry& entry) { return entry.name == name; });
  return found == kFilters.end() ? find_sequence_filter(name) : found->function;
}

}  // namespace sluice::jinja
