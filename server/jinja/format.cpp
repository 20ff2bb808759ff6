// SPDX-License-Identifier: Apache-2.0
// The parts of Python's two format languages that chat templates use: '%5.1f' % values and
// '{:5.1f}'.format(values), with s, d, i, f and x, a width, a precision and padding zeros. Any
// other specification is refused.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <span>

#include "server/jinja/print.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxWidth = 100'000;
constexpr int64_t kMaxPrecision = 300;

struct Spec {
  std::string_view fill = " ";
  char align = '\0';  // < or >; = pads between the sign and the digits
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';  // s, d, x or f; none: a float as str() has it
};

Expected<int64_t> parse_count(Runtime& runtime, std::string_view text, size_t& pos, int64_t cap) {
  int64_t value = 0;
  for (; pos < text.size() && text[pos] >= '0' && text[pos] <= '9'; ++pos) {
    value = value * 10 + (text[pos] - '0');
    if (value > cap) return runtime.fail("format width or precision is too large");
  }
  return value;
}

bool is_negative(const Value& value) {
  if (value.integral()) return value.integer() < 0;
  return std::signbit(value.real()) && !std::isnan(value.real());
}

// The number without its sign.
std::string digits_of(const Value& value, const Spec& spec) {
  if (spec.type == '\0') return float_repr(std::fabs(value.real()));
  if (spec.type == 'f') {
    std::array<char, 700> buffer{};
    const auto precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
    const int size = std::snprintf(
        buffer.data(), buffer.size(), "%.*f", precision, std::fabs(value.as_double()));
    return {buffer.data(), static_cast<size_t>(size)};
  }
  const auto bits = static_cast<uint64_t>(value.integer());
  std::array<char, 20> buffer{};
  const auto end = std::to_chars(buffer.data(),
                                 buffer.data() + buffer.size(),
                                 is_negative(value) ? 0 - bits : bits,
                                 spec.type == 'x' ? 16 : 10);
  std::string digits(buffer.data(), end.ptr);
  const auto wanted = static_cast<size_t>(std::max<int64_t>(spec.precision, 0));
  if (digits.size() < wanted) digits.insert(0, wanted - digits.size(), '0');
  return digits;
}

Expected<void> append_formatted(Runtime& runtime,
                                const Value& value,
                                const Spec& spec,
                                TextBuilder& out) {
  std::string_view sign;
  Text body;
  if (spec.type == 's') {
    SLUICE_TRY(const Value text, to_text(runtime, value));
    body = text.text();
    if (spec.precision >= 0) {
      body = body.substr(0, byte_offset(body.view(), static_cast<size_t>(spec.precision)));
    }
  } else {
    sign = is_negative(value) ? "-" : "";
    body = Text(digits_of(value, spec), value.origin());
  }
  const auto size = static_cast<int64_t>(sign.size() + count_characters(body.view()));
  const int64_t padding = std::max<int64_t>(spec.width - size, 0);
  const auto pad = [&](char align) {
    if (spec.align == align) out.fill(spec.fill, Origin::kTemplate, padding);
  };
  pad('>');
  out.append(sign, value.origin());
  pad('=');
  out.append(body);
  pad('<');
  return {};
}

// Parses what follows a percent sign.
Expected<Spec> parse_percent_spec(Runtime& runtime, std::string_view view, size_t& pos) {
  Spec spec{.align = '>'};
  for (; pos < view.size() && (view[pos] == '-' || view[pos] == '0'); ++pos) {
    if (view[pos] == '-') {
      spec.align = '<';
    } else if (spec.align == '>') {
      spec.align = '=';
    }
  }
  SLUICE_TRY(spec.width, parse_count(runtime, view, pos, kMaxWidth));
  if (pos < view.size() && view[pos] == '.') {
    ++pos;
    SLUICE_TRY(spec.precision, parse_count(runtime, view, pos, kMaxPrecision));
  }
  if (pos >= view.size()) return runtime.fail("incomplete format");
  const std::string_view type = view.substr(pos, decode_at(view, pos).size);
  pos += type.size();
  if (std::string_view("sdixf").find(type) == std::string_view::npos) {
    return runtime.fail("unsupported format character '" + std::string(type) + "'");
  }
  spec.type = type[0] == 'i' ? 'd' : type[0];
  if (spec.align == '=' && spec.type == 's') spec.align = '>';
  if (spec.align == '=') spec.fill = "0";
  return spec;
}

// The value as the number that d, x or f print.
Result percent_number(Runtime& runtime, const Value& value, char type) {
  const bool hexadecimal = type == 'x';
  // Python asks an undefined value for a number, which raises; for %x it does not ask.
  if (value.is(Kind::kUndefined) && !hexadecimal) return undefined_error(runtime, value);
  if (!value.number() || (hexadecimal && !value.integral())) {
    return runtime.fail(std::string("%") + type +
                        " format: " + (hexadecimal ? "an integer" : "a real number") +
                        " is required, not " + std::string(type_name(value)));
  }
  if (type == 'f' || value.integral()) return value;
  if (!(value.real() > -9e18 && value.real() < 9e18)) return runtime.fail("integer overflow");
  Value whole(static_cast<int64_t>(value.real()));
  whole.set_origin(value.origin());
  return whole;
}

bool is_tuple(const Value& value) {
  return value.is(Kind::kSequence) && value.as<Sequence>().kind == SequenceKind::kTuple;
}

// Whether Python accepts a format string that does not use `values`.
bool may_stay_unused(const Value& values) {
  if (is_tuple(values)) return values.as<Sequence>().items.empty();
  if (values.is(Kind::kDict) || values.is(Kind::kUndefined)) return true;
  if (!values.is(Kind::kSequence)) return false;
  const SequenceKind kind = values.as<Sequence>().kind;
  return kind == SequenceKind::kList || kind == SequenceKind::kRange;
}

// Parses what follows the colon of a format field: [< or >][0][width][.precision][type].
Expected<Spec> parse_brace_spec(Runtime& runtime, std::string_view text, const Value& value) {
  const bool is_text = value.is(Kind::kString);
  if (!is_text && !value.number()) {
    return runtime.fail("unsupported format string passed to " + std::string(type_name(value)) +
                        ".__format__");
  }
  Spec spec{.align = is_text ? '<' : '>'};
  size_t pos = 0;
  const bool aligned = text.starts_with('<') || text.starts_with('>');
  if (aligned) spec.align = text[pos++];
  if (pos < text.size() && text[pos] == '0') {
    spec.fill = "0";
    if (!aligned && !is_text) spec.align = '=';
    ++pos;
  }
  SLUICE_TRY(spec.width, parse_count(runtime, text, pos, kMaxWidth));
  if (pos < text.size() && text[pos] == '.') {
    const size_t begin = ++pos;
    SLUICE_TRY(spec.precision, parse_count(runtime, text, pos, kMaxPrecision));
    if (pos == begin) return runtime.fail("Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  const bool plain_float = spec.type == '\0' && value.is(Kind::kFloat);
  if (spec.type == '\0' && !plain_float) spec.type = is_text ? 's' : 'd';
  const std::string_view types = is_text ? "s" : value.integral() ? "dfx" : "f";
  const bool known = plain_float ? spec.precision < 0 : types.find(spec.type) != types.npos;
  if (pos != text.size() || !known) {
    return runtime.fail("unsupported format specifier '" + std::string(text) + "' for object of " +
                        "type '" + std::string(type_name(value)) + "'");
  }
  if (value.integral() && spec.type != 'f' && spec.precision >= 0) {
    return runtime.fail("Precision not allowed in integer format specifier");
  }
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
      const size_t close = view.find('}', brace);
      if (view[brace] == '}' || close == std::string_view::npos) {
        return runtime_.fail("unbalanced brace in format string");
      }
      SLUICE_TRY_VOID(append_field(view.substr(brace + 1, close - brace - 1)));
      pos = close + 1;
    }
    return out_.finish();
  }

 private:
  Expected<void> append_field(std::string_view field) {
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view name = field.substr(0, colon);
    if (name.find_first_of(".[!") != name.npos || field.find('{') != field.npos) {
      return runtime_.fail("unsupported format field '" + std::string(field) + "'");
    }
    SLUICE_TRY(const Value value, find(name));
    if (colon + 1 >= field.size()) return append_str(runtime_, value, out_);
    SLUICE_TRY(const Spec spec, parse_brace_spec(runtime_, field.substr(colon + 1), value));
    return append_formatted(runtime_, value, spec, out_);
  }

  // An argument by its position, by the next position or by its name.
  Result find(std::string_view name) {
    if (name.find_first_not_of("0123456789") == std::string_view::npos) {
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
  const std::span<const Value> arguments = is_tuple(values)
                                               ? std::span<const Value>(values.as<Sequence>().items)
                                               : std::span(&values, 1);
  TextBuilder out(runtime);
  size_t used = 0;
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
    SLUICE_TRY(const Spec spec, parse_percent_spec(runtime, view, pos));
    if (used == arguments.size()) return runtime.fail("not enough arguments for format string");
    Value value = arguments[used++];
    if (spec.type != 's') {
      SLUICE_TRY(value, percent_number(runtime, value, spec.type));
    }
    SLUICE_TRY_VOID(append_formatted(runtime, value, spec, out));
  }
  if (used < arguments.size() && (used > 0 || !may_stay_unused(values))) {
    return runtime.fail("not all arguments converted in formatting");
  }
  return out.finish();
}

Result brace_format(Runtime& runtime, const Text& format, const CallArgs& args) {
  return BraceFormatter(runtime, format, args).run();
}

}  // namespace sluice::jinja
