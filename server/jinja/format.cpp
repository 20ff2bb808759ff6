// SPDX-License-Identifier: Apache-2.0
// Python's two format languages: '%s' % values and '{}'.format(values).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "server/jinja/ops.h"
#include "server/jinja/print.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxWidth = 100'000;
constexpr int64_t kMaxPrecision = 300;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '\0';
  bool alternate = false;
  char grouping = '\0';  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  int64_t min_digits = 0;  // of an integer
  char type = '\0';
  bool given = false;  // by a format field: only numbers and strings take one
};

Expected<int64_t> parse_count(Runtime& runtime, std::string_view text, size_t& pos, int64_t cap) {
  int64_t value = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    value = value * 10 + (text[pos] - '0');
    if (value > cap) return runtime.fail("format width or precision is too large");
  }
  return value;
}

std::string radix_digits(uint64_t value, unsigned base) {
  std::string out;
  do {
    out.insert(out.begin(), "0123456789abcdef"[value % base]);
    value /= base;
  } while (value > 0);
  return out;
}

bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

size_t count_digits(std::string_view text, bool hexadecimal) {
  return std::min(text.find_first_not_of(hexadecimal ? "0123456789abcdefABCDEF" : "0123456789"),
                  text.size());
}

std::string grouped(std::string digits, size_t integer_digits, char separator, size_t group) {
  for (size_t at = integer_digits; at > group; at -= group) digits.insert(at - group, 1, separator);
  return digits;
}

std::string printed(const Spec& spec, char conversion, int64_t precision, double real) {
  const std::string pattern = std::string(spec.alternate ? "%#.*" : "%.*") + conversion;
  std::array<char, 700> buffer{};
  const int size = std::snprintf(
      buffer.data(), buffer.size(), pattern.c_str(), static_cast<int>(precision), real);
  return {buffer.data(), static_cast<size_t>(std::clamp(size, 0, 699))};
}

// Prints like 'g', but with a digit behind the point, and an exponent one digit earlier.
std::string general_with_point(double real, const Spec& spec) {
  const int64_t digits = std::max<int64_t>(spec.precision, 1);
  std::string text = printed(spec, 'e', digits - 1, real);
  const size_t exponent_at = text.find('e');
  if (exponent_at == std::string::npos) return text;  // not finite
  const int64_t exponent = std::strtol(text.c_str() + exponent_at + 1, nullptr, 10);
  const bool fixed = exponent + 1 > -4 && exponent + 1 <= digits - 1;
  std::string tail;
  if (fixed) {
    text = printed(spec, 'f', digits - 1 - exponent, real);
  } else {
    tail = text.substr(exponent_at);
    text.resize(exponent_at);
  }
  if (!spec.alternate && text.find('.') != std::string::npos) {
    text.resize(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text += '0';
    if (!fixed && text.ends_with(".0")) text.resize(text.size() - 2);
  }
  return text + tail;
}

struct Number {
  std::string sign;
  std::string prefix;  // 0x
  std::string digits;
};

std::string float_digits(const Value& value, const Spec& spec) {
  const double real = std::fabs(value.as_double());
  const bool is_float = value.is(Kind::kFloat);
  if (spec.type == '\0') {
    return spec.precision < 0 ? float_repr(real) : general_with_point(real, spec);
  }
  const int64_t precision = spec.precision < 0 ? 6 : spec.precision;
  if (spec.type == '%') return printed(spec, 'f', precision, real * 100) + "%";
  const char conversion = spec.type == 'n' && is_float ? 'g' : spec.type;
  return is_one_of(conversion, "eEfFgG") ? printed(spec, conversion, precision, real) : "";
}

// Empty digits: an unknown type.
Number split_number(const Value& value, const Spec& spec) {
  Number out;
  const bool negative = value.integral()
                            ? value.integer() < 0
                            : std::signbit(value.real()) && value.real() == value.real();
  out.sign = negative ? "-" : spec.sign == '+' || spec.sign == ' ' ? std::string(1, spec.sign) : "";
  const bool is_radix = is_one_of(spec.type, "xXob");
  const bool is_decimal = is_one_of(spec.type, std::string_view("diun\0", 5));
  if (!value.integral() || !(is_radix || is_decimal)) {
    out.digits = float_digits(value, spec);
    return out;
  }
  const int64_t signed_value = value.integer();
  const uint64_t magnitude = signed_value < 0 ? 0 - static_cast<uint64_t>(signed_value)
                                              : static_cast<uint64_t>(signed_value);
  out.digits = radix_digits(magnitude,
                            is_decimal         ? 10
                            : spec.type == 'o' ? 8
                            : spec.type == 'b' ? 2
                                               : 16);
  if (spec.type == 'X') {
    for (char& c : out.digits) c = c >= 'a' ? static_cast<char>(c - 32) : c;
  }
  if (is_radix && spec.alternate) out.prefix = std::string("0") + spec.type;
  const auto min_digits = static_cast<size_t>(spec.min_digits);
  if (out.digits.size() < min_digits) out.digits.insert(0, min_digits - out.digits.size(), '0');
  return out;
}

Expected<std::string> format_number(Runtime& runtime, const Value& value, const Spec& spec) {
  Number number = split_number(value, spec);
  if (number.digits.empty()) {
    return runtime.fail("Unknown format code '" + std::string(1, spec.type) +
                        "' for object of type '" + std::string(type_name(value)) + "'");
  }
  const std::string head = number.sign + number.prefix;
  const auto width = static_cast<size_t>(spec.width);
  const bool zeros = spec.align == '=' && spec.fill == "0";
  if (spec.grouping != '\0') {
    const bool is_radix = is_one_of(spec.type, "xXob");
    const size_t integer_digits = count_digits(number.digits, is_radix);
    const size_t group = is_radix ? 4 : 3;
    // The zeros of the padding are grouped, too.
    for (size_t more = 0;; ++more) {
      std::string digits = grouped(
          std::string(more, '0') + number.digits, integer_digits + more, spec.grouping, group);
      if (zeros && integer_digits > 0 && head.size() + digits.size() < width) {
        // At most so many zeros are too few, whatever separators come between them.
        more += (width - head.size() - digits.size() - 1) / 2;
        continue;
      }
      number.digits = std::move(digits);
      break;
    }
  }
  std::string padding;
  const size_t used = head.size() + number.digits.size();
  for (size_t i = used; spec.align == '=' && i < width; ++i) padding += spec.fill;
  return head + padding + number.digits;
}

// What a spec of a format field may not ask for.
Expected<void> check_spec(Runtime& runtime, const Value& value, const Spec& spec) {
  const bool is_text = value.is(Kind::kString);
  const bool is_integer =
      value.integral() && is_one_of(spec.type, std::string_view("dxXobcn\0", 8));
  const char* kind = is_text ? "string" : "integer";
  if (is_text || (is_integer && spec.type == 'c')) {
    if (spec.sign != '\0') {
      return runtime.fail(std::string(spec.sign == ' ' ? "Space" : "Sign") + " not allowed in " +
                          kind + " format specifier");
    }
    if (spec.alternate) {
      return runtime.fail(std::string("Alternate form (#) not allowed in ") + kind +
                          " format specifier");
    }
  }
  if (is_one_of(spec.type, "iu")) {
    return runtime.fail("Unknown format code '" + std::string(1, spec.type) +
                        "' for object of type '" + std::string(type_name(value)) + "'");
  }
  if (is_text && spec.align == '=') {
    return runtime.fail("'=' alignment not allowed in string format specifier");
  }
  if (is_integer && spec.precision >= 0) {
    return runtime.fail("Precision not allowed in integer format specifier");
  }
  const std::string_view takes_groups(spec.grouping == '_' ? "deEfFgG%xXob\0" : "deEfFgG%\0",
                                      spec.grouping == '_' ? 13 : 9);
  const char type = is_text && spec.type == '\0' ? 's' : spec.type;
  if (spec.grouping != '\0' && !is_one_of(type, takes_groups)) {
    return runtime.fail(std::string("Cannot specify '") + spec.grouping + "' with '" + type + "'.");
  }
  return {};
}

// A code point as a string of one character.
Result character_of(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kString) && count_characters(value.view()) == 1) return value;
  const bool surrogate = value.integral() && value.integer() >= 0xD800 && value.integer() < 0xE000;
  if (!value.integral() || value.integer() < 0 || value.integer() > 0x10FFFF || surrogate) {
    return runtime.fail("%c requires int or char");
  }
  std::string bytes;
  append_utf8(bytes, static_cast<char32_t>(value.integer()));
  return runtime.text(std::move(bytes), value.origin());
}

// The value under a spec, padded.
Expected<void> append_formatted(Runtime& runtime, const Value& value, Spec spec, TextBuilder& out) {
  Text body;
  if (spec.given) SLUICE_TRY_VOID(check_spec(runtime, value, spec));
  const bool plain_bool = value.is(Kind::kBool) && !spec.given && spec.type == '\0';
  if (spec.given && value.integral() && spec.type == 'c') {
    SLUICE_TRY(const Value character, character_of(runtime, value));
    body = character.text();
    if (spec.align == '\0' || spec.align == '=') spec.align = '>';
  } else if (value.number() && spec.type != 's' && !plain_bool) {
    SLUICE_TRY(std::string digits, format_number(runtime, value, spec));
    body = Text(std::move(digits), value.origin());
    if (spec.align == '\0') spec.align = '>';
  } else {
    if (spec.type != '\0' && spec.type != 's') {
      return runtime.fail("Unknown format code '" + std::string(1, spec.type) +
                          "' for object of type '" + std::string(type_name(value)) + "'");
    }
    if (spec.given && !value.is(Kind::kString)) {
      return runtime.fail("unsupported format string passed to " + std::string(type_name(value)) +
                          ".__format__");
    }
    SLUICE_TRY(const Value text, to_text(runtime, value));
    body = text.text();
    if (spec.precision >= 0) {
      body = body.substr(0, byte_offset(body.view(), static_cast<size_t>(spec.precision)));
    }
  }
  const int64_t padding = spec.width - static_cast<int64_t>(count_characters(body.view()));
  const int64_t left = padding <= 0        ? 0
                       : spec.align == '>' ? padding
                       : spec.align == '^' ? padding / 2
                                           : 0;
  out.fill(spec.fill, Origin::kTemplate, left);
  out.append(body);
  out.fill(spec.fill, Origin::kTemplate, padding - left);
  return {};
}

// repr() with escapes for what is not ASCII.
Result ascii_repr(Runtime& runtime, const Value& value) {
  TextBuilder repr(runtime);
  SLUICE_TRY_VOID(append_repr(runtime, value, repr));
  SLUICE_TRY(const Text text, repr.take());
  const std::string_view view = text.view();
  TextBuilder out(runtime);
  for (size_t pos = 0; pos < view.size();) {
    const auto [code, size] = decode_at(view, pos);
    if (code < 0x80) {
      out.append(text, pos, pos + size);
    } else {
      std::array<char, 16> escape{};
      std::snprintf(escape.data(),
                    escape.size(),
                    code < 0x100     ? "\\x%02x"
                    : code < 0x10000 ? "\\u%04x"
                                     : "\\U%08x",
                    static_cast<unsigned>(code));
      out.append(escape.data(), text.origin_at(pos));
    }
    pos += size;
  }
  return out.finish();
}

// Walks the values of a % format: positions of a tuple, or keys of a dict.
class PercentArguments {
 public:
  PercentArguments(Runtime& runtime, const Value& values) : runtime_(runtime), values_(values) {}

  Result next() {
    if (is_tuple()) {
      const auto& items = values_.as<Sequence>().items;
      if (used_ < items.size()) return items[used_++];
    } else if (used_++ == 0) {
      return values_;
    }
    return runtime_.fail("not enough arguments for format string");
  }

  Result named(const Text& key) {
    used_ = 1;
    if (!values_.is(Kind::kDict)) return runtime_.fail("format requires a mapping");
    SLUICE_TRY(const Value name, runtime_.text(key));
    SLUICE_TRY(const Value* found, find_key(runtime_, values_.as<Dict>(), name));
    if (found == nullptr) return runtime_.fail("no key '" + std::string(key.view()) + "'");
    return *found;
  }

  [[nodiscard]] bool all_used() const {
    if (is_tuple()) return used_ == values_.as<Sequence>().items.size();
    if (used_ > 0 || values_.is(Kind::kDict) || values_.is(Kind::kUndefined)) return true;
    if (!values_.is(Kind::kSequence)) return false;
    const SequenceKind kind = values_.as<Sequence>().kind;
    return kind == SequenceKind::kList || kind == SequenceKind::kRange;
  }

 private:
  [[nodiscard]] bool is_tuple() const {
    return values_.is(Kind::kSequence) && values_.as<Sequence>().kind == SequenceKind::kTuple;
  }

  Runtime& runtime_;
  const Value& values_;
  size_t used_ = 0;
};

Expected<Spec> parse_percent_spec(Runtime& runtime,
                                  std::string_view view,
                                  size_t& pos,
                                  PercentArguments& arguments) {
  // A number, or a star for the next argument.
  const auto count = [&](int64_t cap) -> Expected<int64_t> {
    if (pos >= view.size() || view[pos] != '*') return parse_count(runtime, view, pos, cap);
    ++pos;
    SLUICE_TRY(const Value value, arguments.next());
    if (!value.integral()) return runtime.fail("* wants int");
    if (std::abs(value.integer()) > cap) {
      return runtime.fail("format width or precision is too large");
    }
    return value.integer();
  };
  Spec spec;
  for (; pos < view.size() && std::string_view("-+ 0#").find(view[pos]) != std::string_view::npos;
       ++pos) {
    const char flag = view[pos];
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    if (flag == '#') spec.alternate = true;
    if (flag == '0' && spec.align == '\0') {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  SLUICE_TRY(spec.width, count(kMaxWidth));
  if (spec.width < 0) {
    spec.width = -spec.width;
    spec.align = '<';
  }
  if (spec.align == '<') spec.fill = " ";
  if (pos < view.size() && view[pos] == '.') {
    ++pos;
    SLUICE_TRY(const int64_t precision, count(kMaxPrecision));
    spec.precision = std::max<int64_t>(precision, 0);
  }
  // C's length modifiers mean nothing.
  if (pos < view.size() && is_one_of(view[pos], "hlL")) ++pos;
  if (pos >= view.size()) return runtime.fail("incomplete format");
  spec.type = view[pos++];
  return spec;
}

Expected<void> append_conversion(Runtime& runtime, Value value, Spec spec, TextBuilder& out) {
  if (spec.type == 's' || spec.type == 'r' || spec.type == 'a') {
    if (spec.type == 'a') {
      SLUICE_TRY(value, ascii_repr(runtime, value));
    } else if (spec.type == 'r') {
      TextBuilder repr(runtime);
      SLUICE_TRY_VOID(append_repr(runtime, value, repr));
      SLUICE_TRY(value, repr.finish());
    }
    spec.type = 's';
    if (spec.align == '=') spec.fill = " ";
    if (spec.align != '<') spec.align = '>';
    return append_formatted(runtime, value, spec, out);
  }
  if (spec.type == 'c') {
    SLUICE_TRY(value, character_of(runtime, value));
    spec.type = 's';
    spec.precision = -1;
    if (spec.align == '=') spec.fill = " ";
    if (spec.align != '<') spec.align = '>';
    return append_formatted(runtime, value, spec, out);
  }
  if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos) {
    return runtime.fail("unsupported format character '" + std::string(1, spec.type) + "'");
  }
  const bool truncates = is_one_of(spec.type, "diu");
  const bool integer = truncates || is_one_of(spec.type, "xXo");
  // Python asks an undefined value for a number, which raises; for the bases it does not ask.
  if (value.is(Kind::kUndefined) && (truncates || !integer)) return undefined_error(runtime, value);
  if (!value.number() || (integer && !truncates && value.is(Kind::kFloat))) {
    return runtime.fail("%" + std::string(1, spec.type) +
                        " format: " + (integer && !truncates ? "an integer" : "a real number") +
                        " is required, not " + std::string(type_name(value)));
  }
  if (integer && value.is(Kind::kFloat)) {
    if (!(value.real() > -9e18 && value.real() < 9e18)) return runtime.fail("integer overflow");
    value = Value(static_cast<int64_t>(value.real()));
  }
  if (!integer && !value.is(Kind::kFloat)) value = Value(value.as_double());
  if (integer) spec.min_digits = std::exchange(spec.precision, -1);
  spec.min_digits = std::max<int64_t>(spec.min_digits, 0);
  return append_formatted(runtime, value, spec, out);
}

// {:[[fill]align][sign][#][0][width][, or _][.precision][type]}, for a number or for text.
Expected<Spec> parse_brace_spec(Runtime& runtime, std::string_view view, bool is_number) {
  Spec spec;
  spec.given = !view.empty();
  bool has_fill = false;
  size_t pos = 0;
  const auto is_align = [&](size_t at) {
    return at < view.size() && std::string_view("<>^=").find(view[at]) != std::string_view::npos;
  };
  if (!view.empty()) {
    const size_t first = decode_at(view, 0).size;
    if (is_align(first)) {
      spec.fill = view.substr(0, first);
      pos = first;
      has_fill = true;
    }
  }
  if (is_align(pos)) spec.align = view[pos++];
  if (pos < view.size() && (view[pos] == '+' || view[pos] == '-' || view[pos] == ' ')) {
    spec.sign = view[pos++];
  }
  if (pos < view.size() && view[pos] == '#') {
    spec.alternate = true;
    ++pos;
  }
  if (!has_fill && pos < view.size() && view[pos] == '0') {
    spec.fill = "0";
    if (spec.align == '\0' && is_number) spec.align = '=';
    ++pos;
  }
  SLUICE_TRY(spec.width, parse_count(runtime, view, pos, kMaxWidth));
  if (pos < view.size() && is_one_of(view[pos], ",_")) spec.grouping = view[pos++];
  if (pos < view.size() && view[pos] == '.') {
    const size_t begin = ++pos;
    SLUICE_TRY(spec.precision, parse_count(runtime, view, pos, kMaxPrecision));
    if (pos == begin) return runtime.fail("Format specifier missing precision");
  }
  if (pos < view.size()) spec.type = view[pos++];
  if (pos != view.size()) return runtime.fail("invalid format specifier");
  return spec;
}

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Text& format, const CallArgs& args)
      : runtime_(runtime), format_(format), args_(args), out_(runtime) {}

  Result run() {
    const std::string_view view = format_.view();
    for (size_t pos = 0; pos < view.size();) {
      const size_t brace = std::min(view.find_first_of("{}", pos), view.size());
      out_.append(format_, pos, brace);
      if (brace == view.size()) break;
      if (brace + 1 < view.size() && view[brace + 1] == view[brace]) {
        out_.append(format_, brace, brace + 1);
        pos = brace + 2;
        continue;
      }
      const size_t close = closing_brace(view, brace);
      if (view[brace] == '}' || close == std::string_view::npos) {
        return runtime_.fail("unbalanced brace in format string");
      }
      SLUICE_TRY_VOID(field(view.substr(brace + 1, close - brace - 1)));
      pos = close + 1;
    }
    return out_.finish();
  }

 private:
  // The brace that ends the field at `open`; fields inside its spec have braces of their own.
  static size_t closing_brace(std::string_view view, size_t open) {
    int64_t depth = 0;
    for (size_t pos = open; pos < view.size(); ++pos) {
      depth += view[pos] == '{' ? 1 : view[pos] == '}' ? -1 : 0;
      if (depth == 0) return pos;
    }
    return std::string_view::npos;
  }

  // The spec with the values of the fields inside it.
  Expected<std::string> expand_spec(std::string_view spec) {
    std::string out;
    for (size_t pos = 0; pos < spec.size();) {
      const size_t open = std::min(spec.find('{', pos), spec.size());
      out += spec.substr(pos, open - pos);
      if (open == spec.size()) break;
      const size_t close = std::min(spec.find('}', open), spec.size());
      const std::string_view name = spec.substr(open + 1, close - open - 1);
      if (name.find_first_of("{:!") != std::string_view::npos) {
        return runtime_.fail("a field inside a format specifier is a plain name");
      }
      SLUICE_TRY(const Value value, resolve(name));
      SLUICE_TRY(const Value text, to_text(runtime_, value));
      out += text.view();
      pos = close + 1;
    }
    return out;
  }

  Expected<void> field(std::string_view text) {
    const size_t colon = std::min(text.find(':'), text.size());
    std::string_view name = text.substr(0, colon);
    if (name.find('{') != std::string_view::npos) {
      return runtime_.fail("unexpected '{' in field name");
    }
    char conversion = '\0';
    if (const size_t bang = name.find('!'); bang != std::string_view::npos) {
      if (bang + 2 != name.size()) return runtime_.fail("invalid conversion in format string");
      conversion = name[bang + 1];
      name = name.substr(0, bang);
    }
    SLUICE_TRY(Value value, resolve(name));
    if (conversion == 'r') {
      TextBuilder repr(runtime_);
      SLUICE_TRY_VOID(append_repr(runtime_, value, repr));
      SLUICE_TRY(value, repr.finish());
    } else if (conversion == 'a') {
      SLUICE_TRY(value, ascii_repr(runtime_, value));
    } else if (conversion == 's') {
      SLUICE_TRY(value, to_text(runtime_, value));
    } else if (conversion != '\0') {
      return runtime_.fail("unknown conversion in format string");
    }
    SLUICE_TRY(const std::string spec_text,
               expand_spec(colon < text.size() ? text.substr(colon + 1) : ""));
    SLUICE_TRY(const Spec spec, parse_brace_spec(runtime_, spec_text, value.number()));
    return append_formatted(runtime_, value, spec, out_);
  }

  // first(.attribute | [item])*
  Result resolve(std::string_view name) {
    size_t end = std::min(name.find_first_of(".["), name.size());
    SLUICE_TRY(Value value, first(name.substr(0, end)));
    while (end < name.size()) {
      const bool bracket = name[end] == '[';
      const size_t begin = end + 1;
      end =
          std::min(bracket ? name.find(']', begin) : name.find_first_of(".[", begin), name.size());
      const std::string_view part = name.substr(begin, end - begin);
      if (bracket && end < name.size()) ++end;
      if (bracket && !part.empty() && part.find_first_not_of("0123456789") == part.npos) {
        size_t at = 0;
        SLUICE_TRY(const int64_t index, parse_count(runtime_, part, at, kMaxRange));
        SLUICE_TRY(value, get_item(runtime_, value, Value(index)));
      } else {
        SLUICE_TRY(value, get_attribute(runtime_, value, part));
      }
    }
    return value;
  }

  Result first(std::string_view name) {
    const bool numeric = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (numeric) {
      size_t pos = 0;
      SLUICE_TRY(int64_t index, parse_count(runtime_, name, pos, kMaxRange));
      manual_ = manual_ || !name.empty();
      if (name.empty()) index = automatic_++;
      if (manual_ && automatic_ > 0) {
        return runtime_.fail("cannot mix manual and automatic field numbering");
      }
      if (index >= static_cast<int64_t>(args_.positional.size())) {
        return runtime_.fail("format index " + std::to_string(index) + " is out of range");
      }
      return args_.positional[static_cast<size_t>(index)];
    }
    for (const auto& [key, value] : args_.named) {
      if (key == name) return value;
    }
    return runtime_.fail("no format argument '" + std::string(name) + "'");
  }

  Runtime& runtime_;
  const Text& format_;
  const CallArgs& args_;
  TextBuilder out_;
  int64_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

Result percent_format(Runtime& runtime, const Text& format, const Value& values) {
  const std::string_view view = format.view();
  TextBuilder out(runtime);
  PercentArguments arguments(runtime, values);
  for (size_t pos = 0; pos < view.size();) {
    const size_t percent = std::min(view.find('%', pos), view.size());
    out.append(format, pos, percent);
    if (percent == view.size()) break;
    pos = percent + 1;
    if (pos < view.size() && view[pos] == '%') {
      out.append(format, pos, pos + 1);
      ++pos;
      continue;
    }
    std::optional<Text> key;
    if (pos < view.size() && view[pos] == '(') {
      const size_t close = view.find(')', pos);
      if (close == std::string_view::npos) return runtime.fail("incomplete format key");
      key = format.substr(pos + 1, close);
      pos = close + 1;
    }
    SLUICE_TRY(const Spec spec, parse_percent_spec(runtime, view, pos, arguments));
    SLUICE_TRY(Value value, key ? arguments.named(*key) : arguments.next());
    SLUICE_TRY_VOID(append_conversion(runtime, std::move(value), spec, out));
  }
  if (!arguments.all_used()) return runtime.fail("not all arguments converted in formatting");
  return out.finish();
}

Result brace_format(Runtime& runtime, const Text& format, const CallArgs& args) {
  return BraceFormatter(runtime, format, args).run();
}

}  // namespace sluice::jinja
