// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/normalizer.h"

#include <algorithm>

#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/utf8.h"

namespace sluice {
namespace {

// Runs `change(valid part, out)` on what is UTF-8 and copies the rest.
template <typename Change>
void change_valid(std::string_view text, std::string& out, Change change) {
  for (size_t position = 0; position < text.size();) {
    const size_t invalid = find_invalid_utf8(text, position);
    if (invalid > position) change(text.substr(position, invalid - position), out);
    position = skip_invalid_utf8(text, invalid);
    out += text.substr(invalid, position - invalid);
  }
}

bool is_ascii(std::string_view text) {
  return std::all_of(
      text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

bool apply(const PrependStep& step, std::string_view text, Regex::Scanner&, std::string& out) {
  out = step.text;
  out += text;
  return !step.text.empty();
}

bool apply(const ReplaceStep& step,
           std::string_view text,
           Regex::Scanner& scanner,
           std::string& out) {
  if (const auto* literal = std::get_if<std::string>(&step.pattern)) {
    if (literal->empty() || text.find(*literal) == std::string_view::npos) return false;
    out = replace_all(text, *literal, step.content);
    return true;
  }
  const Regex& regex = std::get<Regex>(step.pattern);
  if (step.spares_ascii && is_ascii(text)) return false;
  change_valid(text, out, [&](std::string_view part, std::string& result) {
    Regex::Range found;
    size_t position = 0;
    while (position < part.size() && regex.find(part, position, scanner, found)) {
      result += part.substr(position, found.begin - position);
      result += step.content;
      position = found.end;
    }
    result += part.substr(position);
  });
  return true;
}

bool apply(const SurroundStep& step,
           std::string_view text,
           Regex::Scanner& scanner,
           std::string& out) {
  if (is_ascii(text)) return false;
  change_valid(text, out, [&](std::string_view part, std::string& result) {
    Regex::Range found;
    size_t position = 0;
    while (position < part.size() && step.pattern.find(part, position, scanner, found)) {
      result += part.substr(position, found.begin - position);
      result += step.content;
      result += part.substr(found.begin, found.end - found.begin);
      result += step.content;
      position = found.end;
    }
    result += part.substr(position);
  });
  return true;
}

bool apply(const SpellBytesStep& /*step*/,
           std::string_view text,
           Regex::Scanner&,
           std::string& out) {
  for (const char c : text) out += spell_byte(static_cast<uint8_t>(c));
  return true;
}

bool apply(const UnicodeFormStep& step, std::string_view text, Regex::Scanner&, std::string& out) {
  if (is_surely_in_form(text, step.form)) return false;
  change_valid(text, out, [&](std::string_view part, std::string& result) {
    append_unicode_form(part, step.form, result);
  });
  return true;
}

bool apply(const LowercaseStep& /*step*/,
           std::string_view text,
           Regex::Scanner&,
           std::string& out) {
  change_valid(text, out, append_lowercase);
  return true;
}

bool apply(const StripStep& step, std::string_view text, Regex::Scanner&, std::string& out) {
  const std::string_view whole = text;
  if (step.left) text.remove_prefix(leading_space_bytes(text));
  if (step.right) text.remove_suffix(trailing_space_bytes(text));
  out = text;
  return text.size() != whole.size();
}

// Where the ASCII characters from `position` on end that are graphemes of their own and stay as
// they are. What follows ASCII may belong to its last character's grapheme.
size_t plain_end(const Charsmap& map, std::string_view text, size_t position) {
  const auto is_ascii = [&](size_t i) { return static_cast<uint8_t>(text[i]) < 0x80; };
  size_t end = position;
  while (end < text.size() && is_ascii(end) && text[end] != '\r' && map.keeps(text[end])) ++end;
  return end > position && end < text.size() && !is_ascii(end) ? end - 1 : end;
}

bool apply(const CharsmapStep& step,
           std::string_view text,
           Regex::Scanner& scanner,
           std::string& out) {
  static const Regex kGrapheme = Regex::grapheme();
  out.reserve(text.size());
  change_valid(text, out, [&](std::string_view part, std::string& result) {
    if (!step.by_grapheme) return step.map.append_longest(part, result);
    Regex::Range found;
    for (size_t position = 0; position < part.size(); position = found.end) {
      const size_t end = plain_end(step.map, part, position);
      result += part.substr(position, end - position);
      position = end;
      if (position == part.size() || !kGrapheme.find(part, position, scanner, found)) break;
      step.map.append_grapheme(part.substr(found.begin, found.end - found.begin), result);
    }
  });
  return true;
}

}  // namespace

bool Normalizer::normalize(std::string_view text,
                           Regex::Scanner& scanner,
                           std::string& out,
                           bool continues) const {
  bool changed = false;
  std::string next;
  for (const NormalizerStep& step : steps_) {
    if (continues && std::holds_alternative<PrependStep>(step)) continue;
    const std::string_view current = changed ? std::string_view(out) : text;
    if (current.empty()) break;
    next.clear();
    const bool changes =
        std::visit([&](const auto& kind) { return apply(kind, current, scanner, next); }, step);
    if (!changes) continue;
    out.swap(next);
    changed = true;
  }
  return changed;
}

}  // namespace sluice
