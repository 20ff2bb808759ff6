// SPDX-License-Identifier: Apache-2.0
// Filters that lay out text: widths, wrapping, markup, addresses.
#include <algorithm>
#include <array>
#include <cstdio>

#include "server/jinja/case_map.h"
#include "server/jinja/char_class.h"
#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/ops.h"
#include "server/jinja/print.h"

namespace sluice::jinja {
namespace {

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

Result wordcount(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "wordcount", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  int64_t words = 0;
  bool inside = false;
  const std::string_view view = text.view();
  for (size_t pos = 0; pos < view.size(); pos += decode_at(view, pos).size) {
    const bool word = in_class(decode_at(view, pos).value, CharClass::kWord);
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return Value(words);
}

Result center(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "center", args, {"width"}));
  SLUICE_TRY(const Value text, to_text(runtime, self));
  const MethodEntry* method = find_method(text, "center");
  SLUICE_TRY(Value centered,
             method->function(runtime, text, CallArgs{{bound.get(0, Value(int64_t{80}))}, {}}));
  centered.set_markup(self.markup());
  return centered;
}

// What has a length but is no string passes when it is short enough.
Result truncate_other(Runtime& runtime, const Value& self, int64_t limit, int64_t leeway) {
  if (self.is(Kind::kUndefined)) return self;
  SLUICE_TRY(const int64_t size, length(runtime, self));
  if (size - limit <= leeway) return self;
  return runtime.fail("truncate cannot cut a " + std::string(type_name(self)));
}

Result truncate(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound,
             bind(runtime, "truncate", args, {"length", "killwords", "end", "leeway"}));
  int64_t limit = 255;
  int64_t leeway = 5;
  if (bound.has(0)) {
    SLUICE_TRY(limit, to_integer(runtime, bound[0], "length"));
  }
  if (bound.has(3) && !bound[3].is(Kind::kNone)) {
    SLUICE_TRY(leeway, to_integer(runtime, bound[3], "leeway"));
  }
  SLUICE_TRY(const Value dots, runtime.text("...", Origin::kTemplate));
  SLUICE_TRY(const Value end, to_text(runtime, bound.get(2, dots)));
  const auto end_size = static_cast<int64_t>(count_characters(end.view()));
  if (limit < end_size) {
    return runtime.fail("expected length >= " + std::to_string(end_size) + ", got " +
                        std::to_string(limit));
  }
  if (leeway < 0) return runtime.fail("expected leeway >= 0, got " + std::to_string(leeway));
  if (!self.is(Kind::kString)) return truncate_other(runtime, self, limit, leeway);
  const Value& text = self;
  const auto size = static_cast<int64_t>(count_characters(text.view()));
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

// Bytes outside `safe` and the unreserved ones as %XX.
void append_quoted_url(const Text& text, std::string_view safe, bool plus, TextBuilder& out) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  for (size_t i = 0; i < text.size() && !out.overflowed(); ++i) {
    const auto byte = static_cast<unsigned char>(text.view()[i]);
    const char c = static_cast<char>(byte);
    const bool is_plain = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
                          (byte >= 'a' && byte <= 'z') ||
                          std::string_view("_.-~").find(c) != std::string_view::npos ||
                          safe.find(c) != std::string_view::npos;
    if (is_plain) {
      out.append(text, i, i + 1);
    } else if (plus && c == ' ') {
      out.append("+", text.origin_at(i));
    } else {
      const char escaped[] = {'%', kDigits[byte >> 4], kDigits[byte & 15]};
      out.append(std::string_view(escaped, 3), text.origin_at(i));
    }
  }
}

Result urlencode(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "urlencode", args, {}).map([](const Bound&) {}));
  TextBuilder out(runtime);
  if (!self.is(Kind::kDict) && !self.is(Kind::kSequence)) {
    SLUICE_TRY(const Value text, to_text(runtime, self));
    append_quoted_url(text.text(), "/", /*plus=*/false, out);
    return out.finish();
  }
  Value pairs = self;
  if (self.is(Kind::kDict)) {
    SLUICE_TRY(pairs, find_method(self, "items")->function(runtime, self, {}));
  }
  SLUICE_TRY(const std::vector<Value> items, iterate(runtime, pairs));
  for (size_t i = 0; i < items.size(); ++i) {
    SLUICE_TRY(const std::vector<Value> pair, iterate(runtime, items[i]));
    if (pair.size() != 2) return runtime.fail("urlencode needs pairs");
    if (i > 0) out.append("&", Origin::kTemplate);
    SLUICE_TRY(const Value key, to_text(runtime, pair[0]));
    append_quoted_url(key.text(), "", /*plus=*/true, out);
    out.append("=", Origin::kTemplate);
    SLUICE_TRY(const Value value, to_text(runtime, pair[1]));
    append_quoted_url(value.text(), "", /*plus=*/true, out);
  }
  return out.finish();
}

Result file_size(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "filesizeformat", args, {"binary"}));
  SLUICE_TRY(const Value number, find_filter("float")(runtime, self, CallArgs{{Value()}, {}}));
  if (!number.is(Kind::kFloat)) return runtime.fail("filesizeformat needs a number");
  const bool binary = bound.flag(0, false);
  const double base = binary ? 1024 : 1000;
  double bytes = number.real();
  std::string text;
  if (bytes == 1) {
    text = "1 Byte";
  } else if (bytes < base) {
    if (!(bytes > -9e18)) return runtime.fail("filesizeformat: the size is out of range");
    text = std::to_string(static_cast<int64_t>(bytes)) + " Bytes";
  } else {
    constexpr std::string_view kPrefixes = "kMGTPEZY";
    double unit = base;
    size_t which = 0;
    for (unit *= base; which + 1 < kPrefixes.size() && !(bytes < unit); ++which) unit *= base;
    std::array<char, 400> buffer{};
    const int size = std::snprintf(buffer.data(), buffer.size(), "%.1f ", base * bytes / unit);
    text.assign(buffer.data(), static_cast<size_t>(size));
    const char prefix = kPrefixes[which];
    text += binary && prefix == 'k' ? 'K' : prefix;
    text += binary ? "iB" : "B";
  }
  return runtime.text(std::move(text),
                      self.is(Kind::kString) ? self.text().overall() : self.origin());
}

// The items of a mapping as attributes of a tag.
Result xml_attributes(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY(const Bound bound, bind(runtime, "xmlattr", args, {"autospace"}));
  if (!self.is(Kind::kDict)) return runtime.fail("xmlattr needs a mapping");
  TextBuilder out(runtime);
  for (const auto& [key, value] : self.as<Dict>().entries) {
    if (value.is(Kind::kNone) || value.is(Kind::kUndefined)) continue;
    if (!key.is(Kind::kString)) return runtime.fail("xmlattr: the name is not a string");
    if (key.view().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos) {
      return runtime.fail("Invalid character in attribute name: '" + std::string(key.view()) + "'");
    }
    if (out.size() > 0 || bound.flag(0, true)) out.append(" ", Origin::kTemplate);
    SLUICE_TRY(const Value name, escape_html(runtime, key));
    out.append(name.text());
    out.append("=\"", Origin::kTemplate);
    SLUICE_TRY(const Value escaped, escape_html(runtime, value));
    out.append(escaped.text());
    out.append("\"", Origin::kTemplate);
  }
  return out.finish();
}

constexpr std::array kFilters = {
    FilterEntry{"title", title},
    FilterEntry{"wordcount", wordcount},
    FilterEntry{"center", center},
    FilterEntry{"truncate", truncate},
    FilterEntry{"forceescape", force_escape},
    FilterEntry{"urlencode", urlencode},
    FilterEntry{"filesizeformat", file_size},
    FilterEntry{"xmlattr", xml_attributes},
    FilterEntry{"wordwrap", word_wrap},
    FilterEntry{"striptags", strip_tags},
    FilterEntry{"pprint", pretty_print},
};

}  // namespace

NativeFunction find_text_filter(std::string_view name) { return find_entry(kFilters, name); }

}  // namespace sluice::jinja
