// SPDX-License-Identifier: Apache-2.0
#include "server/jinja/print.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "server/jinja/ast.h"
#include "server/jinja/char_class.h"
#include "server/jinja/protocols.h"

namespace sluice::jinja {
namespace {

std::string hex(char32_t value, size_t width) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out(width, '0');
  for (size_t i = width; i > 0; --i, value >>= 4) out[i - 1] = kDigits[value & 15];
  return out;
}

void append_quoted(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool single =
      view.find('\'') == std::string_view::npos || view.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  out.append(std::string_view(&quote, 1), text.overall());
  size_t start = 0;
  for (size_t pos = 0; pos < view.size();) {
    const CodePoint point = decode_at(view, pos);
    std::string escaped;
    const char32_t c = point.value;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      escaped = {'\\', static_cast<char>(c)};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      escaped = c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (!in_class(c, CharClass::kPrintable)) {
      escaped = c < 0x100 ? "\\x" + hex(c, 2) : c < 0x10000 ? "\\u" + hex(c, 4) : "\\U" + hex(c, 8);
    }
    if (!escaped.empty()) {
      out.append(text, start, pos);
      out.append(escaped, text.origin_at(pos));
      start = pos + point.size;
    }
    pos += point.size;
  }
  out.append(text, start, view.size());
  out.append(std::string_view(&quote, 1), text.overall());
}

struct Brackets {
  std::string_view open;
  std::string_view close;
};

Brackets brackets_of(SequenceKind kind) {
  switch (kind) {
    case SequenceKind::kTuple:
      return {"(", ")"};
    case SequenceKind::kDictKeys:
      return {"dict_keys([", "])"};
    case SequenceKind::kDictValues:
      return {"dict_values([", "])"};
    case SequenceKind::kDictItems:
      return {"dict_items([", "])"};
    default:
      return {"[", "]"};
  }
}

Expected<void> repr_sequence(Runtime& runtime, const Sequence& sequence, TextBuilder& out) {
  if (sequence.kind == SequenceKind::kGenerator) {
    out.append("<generator object>", Origin::kTemplate);
    return {};
  }
  if (sequence.kind == SequenceKind::kRange) {
    out.append("range(" + std::to_string(sequence.range[0]) + ", " +
                   std::to_string(sequence.range[1]) +
                   (sequence.range[2] == 1 ? "" : ", " + std::to_string(sequence.range[2])) + ")",
               Origin::kTemplate);
    return {};
  }
  const Brackets brackets = brackets_of(sequence.kind);
  out.append(brackets.open, sequence.origin);
  for (size_t i = 0; i < sequence.items.size(); ++i) {
    if (i > 0) out.append(", ", sequence.origin);
    SLUICE_TRY_VOID(append_repr(runtime, sequence.items[i], out));
  }
  if (sequence.kind == SequenceKind::kTuple && sequence.items.size() == 1) {
    out.append(",", sequence.origin);
  }
  out.append(brackets.close, sequence.origin);
  return {};
}

Expected<void> repr_dict(Runtime& runtime, const Dict& dict, TextBuilder& out) {
  out.append("{", dict.origin);
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out.append(", ", dict.origin);
    first = false;
    SLUICE_TRY_VOID(append_repr(runtime, key, out));
    out.append(": ", dict.origin);
    SLUICE_TRY_VOID(append_repr(runtime, value, out));
  }
  out.append("}", dict.origin);
  return {};
}

Expected<void> repr_namespace(Runtime& runtime, const Namespace& names, TextBuilder& out) {
  out.append("<Namespace {", Origin::kTemplate);
  bool first = true;
  for (const auto& [name, value] : names.entries) {
    if (!first) out.append(", ", Origin::kTemplate);
    first = false;
    append_quoted(Text(name, Origin::kTemplate), out);
    out.append(": ", Origin::kTemplate);
    SLUICE_TRY_VOID(append_repr(runtime, value, out));
  }
  out.append("}>", Origin::kTemplate);
  return {};
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style)
      : runtime_(runtime), style_(style), out_(runtime) {}

  Expected<void> write(const Value& value, int32_t level) {
    SLUICE_TRY_VOID(runtime_.charge(1));
    const Runtime::Depth depth(runtime_);
    if (depth.exceeded()) return runtime_.exhausted("values are nested too deeply");
    switch (value.kind()) {
      case Kind::kString:
        write_string(value.text());
        return {};
      case Kind::kDict:
        return write_dict(value.as<Dict>(), level);
      case Kind::kSequence:
        if (value.as<Sequence>().kind == SequenceKind::kList ||
            value.as<Sequence>().kind == SequenceKind::kTuple) {
          return write_list(value.as<Sequence>(), level);
        }
        break;
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_.append(scalar(value), value.origin());
        return {};
      default:
        break;
    }
    return runtime_.fail("Object of type " + std::string(type_name(value)) +
                         " is not JSON serializable");
  }

  Result finish() { return out_.finish(); }

 private:
  static std::string scalar(const Value& value) {
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kBool)) return value.boolean() ? "true" : "false";
    if (value.is(Kind::kInt)) return std::to_string(value.integer());
    if (std::isnan(value.real())) return "NaN";
    if (std::isinf(value.real())) return value.real() < 0 ? "-Infinity" : "Infinity";
    return float_repr(value.real());
  }

  void write_string(const Text& text) {
    const std::string_view view = text.view();
    out_.append("\"", text.overall());
    size_t start = 0;
    for (size_t pos = 0; pos < view.size();) {
      const CodePoint point = decode_at(view, pos);
      if (std::string escaped = escape(point.value); !escaped.empty()) {
        out_.append(text, start, pos);
        out_.append(escaped, text.origin_at(pos));
        start = pos + point.size;
      }
      pos += point.size;
    }
    out_.append(text, start, view.size());
    out_.append("\"", text.overall());
  }

  [[nodiscard]] std::string escape(char32_t c) const {
    constexpr std::string_view kFrom = "\"\\\n\r\t\b\f";
    constexpr std::string_view kTo = "\"\\nrtbf";
    if (c < 0x80) {
      const size_t which = kFrom.find(static_cast<char>(c));
      if (which != std::string_view::npos) return {'\\', kTo[which]};
      return c < 0x20 ? "\\u" + hex(c, 4) : "";
    }
    if (!style_.ensure_ascii) return "";
    if (c < 0x10000) return "\\u" + hex(c, 4);
    return "\\u" + hex(0xD800 + ((c - 0x10000) >> 10), 4) + "\\u" +
           hex(0xDC00 + ((c - 0x10000) & 0x3FF), 4);
  }

  void newline(int32_t level, Origin origin) {
    if (!style_.pretty) return;
    out_.append("\n", origin);
    out_.fill(style_.indent, origin, level);
  }

  void separate(bool first, int32_t level, Origin origin) {
    if (!first) out_.append(style_.item_separator);
    newline(level, origin);
  }

  Expected<void> write_list(const Sequence& list, int32_t level) {
    out_.append("[", list.origin);
    for (size_t i = 0; i < list.items.size(); ++i) {
      separate(i == 0, level + 1, list.origin);
      SLUICE_TRY_VOID(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) newline(level, list.origin);
    out_.append("]", list.origin);
    return {};
  }

  Expected<void> write_dict(const Dict& dict, int32_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) SLUICE_TRY_VOID(sort(entries));
    out_.append("{", dict.origin);
    bool first = true;
    for (const auto* entry : entries) {
      separate(first, level + 1, dict.origin);
      first = false;
      const Value& key = entry->first;
      if (key.is(Kind::kString)) {
        write_string(key.text());
      } else if (key.number() || key.is(Kind::kNone)) {
        out_.append("\"" + scalar(key) + "\"", key.origin());
      } else {
        return runtime_.fail("keys must be str, int, float, bool or None, not " +
                             std::string(type_name(key)));
      }
      out_.append(style_.key_separator);
      SLUICE_TRY_VOID(write(entry->second, level + 1));
    }
    if (!entries.empty()) newline(level, dict.origin);
    out_.append("}", dict.origin);
    return {};
  }

  Expected<void> sort(std::vector<const std::pair<Value, Value>*>& entries) {
    std::vector<Value> keys;
    for (const auto* entry : entries) keys.push_back(entry->first);
    SLUICE_TRY(const std::vector<size_t> sorted,
               stable_order(runtime_, keys, /*descending=*/false));
    std::vector<const std::pair<Value, Value>*> out;
    for (const size_t at : sorted) out.push_back(entries[at]);
    entries = std::move(out);
    return {};
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  const auto end = std::to_chars(
      buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t sign = text[e + 1] == '+' ? 1 : 0;
  std::from_chars(text.data() + e + 1 + sign, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string digits;
  const bool negative = text[0] == '-';
  for (const char c : text.substr(0, e)) {
    if (c != '-' && c != '.') digits.push_back(c);
  }
  if (exponent < 0) {
    digits.insert(0, static_cast<size_t>(-exponent), '0');
    exponent = 0;
  }
  const auto point = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= point) digits.append(point + 1 - digits.size(), '0');
  digits.insert(point, ".");
  return (negative ? "-" : "") + digits;
}

Expected<void> append_repr(Runtime& runtime, const Value& value, TextBuilder& out) {
  SLUICE_TRY_VOID(runtime.charge(1));
  const Runtime::Depth depth(runtime);
  if (depth.exceeded()) return runtime.exhausted("values are nested too deeply");
  switch (value.kind()) {
    case Kind::kUndefined:
      out.append("Undefined", Origin::kTemplate);
      return {};
    case Kind::kNone:
      out.append("None", value.origin());
      return {};
    case Kind::kBool:
      out.append(value.boolean() ? "True" : "False", value.origin());
      return {};
    case Kind::kInt:
      out.append(std::to_string(value.integer()), value.origin());
      return {};
    case Kind::kFloat:
      out.append(float_repr(value.real()), value.origin());
      return {};
    case Kind::kString:
      if (value.markup()) {
        out.append("Markup(", Origin::kTemplate);
        append_quoted(value.text(), out);
        out.append(")", Origin::kTemplate);
      } else {
        append_quoted(value.text(), out);
      }
      return {};
    case Kind::kSequence:
      return repr_sequence(runtime, value.as<Sequence>(), out);
    case Kind::kDict:
      return repr_dict(runtime, value.as<Dict>(), out);
    case Kind::kNamespace:
      return repr_namespace(runtime, value.as<Namespace>(), out);
    case Kind::kMacro:
      if (value.as<Macro>().def->name.empty()) {  // a call block
        out.append("<Macro anonymous>", Origin::kTemplate);
        return {};
      }
      out.append("<Macro ", Origin::kTemplate);
      append_quoted(Text(value.as<Macro>().def->name, Origin::kTemplate), out);
      out.append(">", Origin::kTemplate);
      return {};
    case Kind::kLoop: {
      SLUICE_TRY(const int64_t size, length(runtime, value));
      out.append("<LoopContext " + std::to_string(value.as<Loop>().index + 1) + "/" +
                     std::to_string(size) + ">",
                 Origin::kTemplate);
      return {};
    }
    default:
      break;
  }
  out.append("<" + std::string(type_name(value)) + ">", Origin::kTemplate);
  return {};
}

Expected<void> append_str(Runtime& runtime, const Value& value, TextBuilder& out) {
  if (value.is(Kind::kUndefined)) return {};
  if (!value.is(Kind::kString)) return append_repr(runtime, value, out);
  SLUICE_TRY_VOID(runtime.charge(1 + static_cast<int64_t>(value.text().size() / 16)));
  out.append(value.text());
  return {};
}

Result to_text(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kString)) return value;
  TextBuilder out(runtime);
  SLUICE_TRY_VOID(append_str(runtime, value, out));
  return out.finish();
}

Result to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  JsonWriter writer(runtime, style);
  SLUICE_TRY_VOID(writer.write(value, 0));
  return writer.finish();
}

}  // namespace sluice::jinja
