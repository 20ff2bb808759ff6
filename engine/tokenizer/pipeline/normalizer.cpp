// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pipeline/normalizer.h"

#include <algorithm>

#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

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
  if (step.spares_ascii && std::ranges::all_of(text, is_ascii)) return false;
  out = std::get<Regex>(step.pattern).replaced(text, step.content, step.keeps_match, scanner);
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
  change_valid_utf8(text, out, [&](std::string_view part, std::string& result) {
    append_unicode_form(part, step.form, result);
  });
  return true;
}

bool apply(const LowercaseStep& /*step*/,
           std::string_view text,
           Regex::Scanner&,
           std::string& out) {
  change_valid_utf8(text, out, append_lowercase);
  return true;
}

bool apply(const OmitStep& step, std::string_view text, Regex::Scanner&, std::string& out) {
  // No mark is an ASCII character.
  const bool may_hold =
      step.characters == OmittedCharacters::kBertControls || !std::ranges::all_of(text, is_ascii);
  if (!may_hold) return false;
  change_valid_utf8(text, out, [&](std::string_view part, std::string& result) {
    append_without(part, step.characters, result);
  });
  return true;
}

bool apply(const StripStep& step, std::string_view text, Regex::Scanner&, std::string& out) {
  const std::string_view whole = text;
  if (step.left) text.remove_prefix(leading_space_bytes(text));
  if (step.right) text.remove_suffix(trailing_space_bytes(text));
  out = text;
  return text.size() != whole.size();
}

// Returns the end of the leading ASCII characters that are whole graphemes and unchanged. A
// non-ASCII character may belong to the grapheme of the last ASCII one.
size_t plain_end(const Charsmap& map, std::string_view text) {
  size_t end = 0;
  while (end < text.size() && is_ascii(text[end]) && text[end] != '\r' && map.keeps(text[end]))
    ++end;
  return end > 0 && end < text.size() && !is_ascii(text[end]) ? end - 1 : end;
}

bool apply(const CharsmapStep& step,
           std::string_view text,
           Regex::Scanner& scanner,
           std::string& out) {
  static const Regex kGrapheme = Regex::grapheme();
  out.reserve(text.size());
  change_valid_utf8(text, out, [&](std::string_view part, std::string& result) {
    if (!step.by_grapheme) return step.map.append_longest(part, result);
    Regex::Range found;
    while (!part.empty()) {
      const size_t plain = plain_end(step.map, part);
      result += part.substr(0, plain);
      part.remove_prefix(plain);
      // The searched text begins at the grapheme: PCRE2 looks back from regional indicators.
      if (part.empty() || !kGrapheme.find(part, 0, scanner, found)) break;
      step.map.append_grapheme(part.substr(0, found.end), result);
      part.remove_prefix(found.end);
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
