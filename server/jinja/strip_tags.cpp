// SPDX-License-Identifier: Apache-2.0
// The striptags filter: tags and comments go, white space collapses, entities become characters.
#include <algorithm>
#include <array>
#include <optional>

#include "server/jinja/filters.h"
#include "server/jinja/methods.h"
#include "server/jinja/print.h"
#include "server/jinja/runtime.h"

namespace sluice::jinja {
namespace {

struct Entity {
  std::string_view name;
  char32_t value;
};

// HTML's entities that stand without a semicolon too; sorted.
// clang-format off
constexpr std::array kEntities = std::to_array<Entity>({
    {"AElig", 0xC6}, {"AMP", 0x26}, {"Aacute", 0xC1}, {"Acirc", 0xC2}, {"Agrave", 0xC0},
    {"Aring", 0xC5}, {"Atilde", 0xC3}, {"Auml", 0xC4}, {"COPY", 0xA9}, {"Ccedil", 0xC7},
    {"ETH", 0xD0}, {"Eacute", 0xC9}, {"Ecirc", 0xCA}, {"Egrave", 0xC8}, {"Euml", 0xCB},
    {"GT", 0x3E}, {"Iacute", 0xCD}, {"Icirc", 0xCE}, {"Igrave", 0xCC}, {"Iuml", 0xCF},
    {"LT", 0x3C}, {"Ntilde", 0xD1}, {"Oacute", 0xD3}, {"Ocirc", 0xD4}, {"Ograve", 0xD2},
    {"Oslash", 0xD8}, {"Otilde", 0xD5}, {"Ouml", 0xD6}, {"QUOT", 0x22}, {"REG", 0xAE},
    {"THORN", 0xDE}, {"Uacute", 0xDA}, {"Ucirc", 0xDB}, {"Ugrave", 0xD9}, {"Uuml", 0xDC},
    {"Yacute", 0xDD}, {"aacute", 0xE1}, {"acirc", 0xE2}, {"acute", 0xB4}, {"aelig", 0xE6},
    {"agrave", 0xE0}, {"amp", 0x26}, {"aring", 0xE5}, {"atilde", 0xE3}, {"auml", 0xE4},
    {"brvbar", 0xA6}, {"ccedil", 0xE7}, {"cedil", 0xB8}, {"cent", 0xA2}, {"copy", 0xA9},
    {"curren", 0xA4}, {"deg", 0xB0}, {"divide", 0xF7}, {"eacute", 0xE9}, {"ecirc", 0xEA},
    {"egrave", 0xE8}, {"eth", 0xF0}, {"euml", 0xEB}, {"frac12", 0xBD}, {"frac14", 0xBC},
    {"frac34", 0xBE}, {"gt", 0x3E}, {"iacute", 0xED}, {"icirc", 0xEE}, {"iexcl", 0xA1},
    {"igrave", 0xEC}, {"iquest", 0xBF}, {"iuml", 0xEF}, {"laquo", 0xAB}, {"lt", 0x3C},
    {"macr", 0xAF}, {"micro", 0xB5}, {"middot", 0xB7}, {"nbsp", 0xA0}, {"not", 0xAC},
    {"ntilde", 0xF1}, {"oacute", 0xF3}, {"ocirc", 0xF4}, {"ograve", 0xF2}, {"ordf", 0xAA},
    {"ordm", 0xBA}, {"oslash", 0xF8}, {"otilde", 0xF5}, {"ouml", 0xF6}, {"para", 0xB6},
    {"plusmn", 0xB1}, {"pound", 0xA3}, {"quot", 0x22}, {"raquo", 0xBB}, {"reg", 0xAE},
    {"sect", 0xA7}, {"shy", 0xAD}, {"sup1", 0xB9}, {"sup2", 0xB2}, {"sup3", 0xB3}, {"szlig", 0xDF},
    {"thorn", 0xFE}, {"times", 0xD7}, {"uacute", 0xFA}, {"ucirc", 0xFB}, {"ugrave", 0xF9},
    {"uml", 0xA8}, {"uuml", 0xFC}, {"yacute", 0xFD}, {"yen", 0xA5}, {"yuml", 0xFF},
});
// clang-format on

// What bytes of Windows-1252 mean in a numeric reference.
constexpr std::array<char32_t, 32> kWindows = {
    0x20AC, 0x81,   0x201A, 0x192,  0x201E, 0x2026, 0x2020, 0x2021, 0x2C6,  0x2030, 0x160,
    0x2039, 0x152,  0x8D,   0x17D,  0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x2DC,  0x2122, 0x161,  0x203A, 0x153,  0x9D,   0x17E,  0x178};

struct Reference {
  std::string bytes;
  size_t size = 0;  // of the source, with the ampersand; 0: none is here
};

Reference numeric_reference(std::string_view view, size_t pos) {
  size_t at = pos + 2;
  const bool hex = at < view.size() && (view[at] == 'x' || view[at] == 'X');
  at += hex ? 1 : 0;
  const size_t first = at;
  char32_t value = 0;
  for (; at < view.size(); ++at) {
    const char c = view[at];
    const char lower = static_cast<char>(c | 32);
    const bool letter = hex && lower >= 'a' && lower <= 'f';
    if (!(c >= '0' && c <= '9') && !letter) break;
    const auto digit = static_cast<char32_t>(letter ? lower - 'a' + 10 : c - '0');
    value = std::min<char32_t>(value * (hex ? 16 : 10) + digit, 0x110000);
  }
  if (at == first) return {};
  Reference found;
  found.size = at - pos + (at < view.size() && view[at] == ';' ? 1 : 0);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  const bool unassigned = value == 0xB || (value >= 0xFDD0 && value <= 0xFDEF) ||
                          (value & 0xFFFE) == 0xFFFE ||
                          (value < 0x20 && value != '\t' && value != '\n' && value != '\f' &&
                           value != '\r' && value != 0) ||
                          value == 0x7F;
  if (value == 0 || surrogate || value > 0x10FFFF) {
    append_utf8(found.bytes, 0xFFFD);
  } else if (value >= 0x80 && value < 0xA0) {
    append_utf8(found.bytes, kWindows[value - 0x80]);
  } else if (!unassigned) {
    append_utf8(found.bytes, value);
  }
  return found;
}

Expected<Reference> named_reference(Runtime& runtime, std::string_view view, size_t pos) {
  constexpr size_t kLongest = 32;
  const size_t end = std::min(view.find_first_of("\t\n\f <&#;", pos + 1), view.size());
  const std::string_view name = view.substr(pos + 1, std::min(end - pos - 1, kLongest));
  const bool closed = end < view.size() && view[end] == ';' && end - pos - 1 == name.size();
  if (closed && name == "apos") return Reference{"'", name.size() + 2};
  for (size_t size = name.size(); size > 1; --size) {
    for (const Entity& entity : kEntities) {
      if (entity.name != name.substr(0, size)) continue;
      Reference found;
      append_utf8(found.bytes, entity.value);
      found.size = 1 + size + (closed && size == name.size() ? 1 : 0);
      return found;
    }
  }
  if (closed && !name.empty()) {
    return runtime.fail("striptags does not know the entity '&" + std::string(name) + ";'");
  }
  return Reference();
}

Result unescape(Runtime& runtime, const Text& text) {
  const std::string_view view = text.view();
  TextBuilder out(runtime);
  size_t start = 0;
  for (size_t pos = 0; (pos = view.find('&', pos)) != std::string_view::npos;) {
    Reference found;
    if (pos + 1 < view.size() && view[pos + 1] == '#') {
      found = numeric_reference(view, pos);
    } else {
      SLUICE_TRY(found, named_reference(runtime, view, pos));
    }
    SLUICE_TRY_VOID(runtime.charge(8));
    if (found.size == 0) {
      ++pos;
      continue;
    }
    out.append(text, start, pos);
    out.append(found.bytes, text.origin_at(pos));
    pos += found.size;
    start = pos;
  }
  out.append(text, start, view.size());
  return out.finish();
}

}  // namespace

Result strip_tags(Runtime& runtime, const Value& self, const CallArgs& args) {
  SLUICE_TRY_VOID(bind(runtime, "striptags", args, {}).map([](const Bound&) {}));
  SLUICE_TRY(const Value source, to_text(runtime, self));
  const Text& text = source.text();
  const std::string_view view = text.view();
  TextBuilder plain(runtime);
  size_t pos = 0;
  while (true) {
    const size_t start = view.find('<', pos);
    if (start == std::string_view::npos) break;
    const bool comment = view.substr(start).starts_with("<!--");
    const size_t end = comment ? view.find("-->", start + 4) : view.find('>', start);
    if (end == std::string_view::npos) break;
    plain.append(text, pos, start);
    pos = end + (comment ? 3 : 1);
  }
  plain.append(text, pos, view.size());
  SLUICE_TRY(const Value stripped, plain.finish());
  SLUICE_TRY(const Value words, split_text(runtime, stripped.text(), nullptr, -1));
  TextBuilder out(runtime);
  for (const Value& word : words.as<Sequence>().items) {
    if (out.size() > 0) out.append(" ", word.text().origin_at(0));
    out.append(word.text());
  }
  SLUICE_TRY(const Value collapsed, out.finish());
  return unescape(runtime, collapsed.text());
}

}  // namespace sluice::jinja
