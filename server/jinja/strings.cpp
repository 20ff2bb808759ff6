// SPDX-License-Identifier: Apache-2.0
// String operations that methods and filters share, each carrying the origin of its bytes.
#include <algorithm>

#include "server/jinja/case_map.h"
#include "server/jinja/char_class.h"
#include "server/jinja/methods.h"
#include "server/jinja/runtime.h"

namespace sluice::jinja {
namespace {

Expected<void> push_piece(
    Runtime& runtime, std::vector<Value>& out, const Text& text, size_t begin, size_t end) {
  SLUICE_TRY(Value piece, runtime.text(text.substr(begin, end)));
  out.push_back(std::move(piece));
  return {};
}

Result split_space(Runtime& runtime, const Text& text, int64_t max_splits) {
  const std::string_view view = text.view();
  std::vector<Value> out;
  size_t pos = skip_space(view, 0);
  while (pos < view.size()) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) == max_splits) {
      SLUICE_TRY_VOID(push_piece(runtime, out, text, pos, view.size()));
      break;
    }
    size_t end = pos;
    while (end < view.size() && !is_space(decode_at(view, end).value)) {
      end += decode_at(view, end).size;
    }
    SLUICE_TRY_VOID(push_piece(runtime, out, text, pos, end));
    pos = skip_space(view, end);
  }
  return runtime.sequence(std::move(out));
}

// A sigma that ends a word: after a cased character, before none; ignorable ones do not count.
bool is_final_sigma(std::string_view view, size_t pos) {
  bool after = false;
  for (size_t at = pos; at > 0 && !after;) {
    do --at;
    while (at > 0 && (static_cast<unsigned char>(view[at]) & 0xC0) == 0x80);
    const char32_t c = decode_at(view, at).value;
    after = in_class(c, CharClass::kCased);
    if (!after && !in_class(c, CharClass::kIgnorable)) return false;
  }
  for (size_t at = pos + 2; at < view.size(); at += decode_at(view, at).size) {
    const char32_t c = decode_at(view, at).value;
    if (in_class(c, CharClass::kCased)) return false;
    if (!in_class(c, CharClass::kIgnorable)) break;
  }
  return after;
}

LetterCase letter_case(CaseMap map, bool first, bool inside_word) {
  switch (map) {
    case CaseMap::kUpper:
      return LetterCase::kUpper;
    case CaseMap::kLower:
      return LetterCase::kLower;
    case CaseMap::kTitle:
      return inside_word ? LetterCase::kLower : LetterCase::kTitle;
    case CaseMap::kCapitalize:
      return first ? LetterCase::kTitle : LetterCase::kLower;
  }
  return LetterCase::kLower;
}

}  // namespace

Result split_text(Runtime& runtime, const Text& text, const Text* separator, int64_t max_splits) {
  if (separator == nullptr) return split_space(runtime, text, max_splits);
  if (separator->empty()) return runtime.fail("empty separator");
  std::vector<Value> out;
  size_t pos = 0;
  while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
    const size_t found = text.view().find(separator->view(), pos);
    if (found == std::string_view::npos) break;
    SLUICE_TRY_VOID(push_piece(runtime, out, text, pos, found));
    pos = found + separator->size();
  }
  SLUICE_TRY_VOID(push_piece(runtime, out, text, pos, text.size()));
  return runtime.sequence(std::move(out));
}

Result strip_text(Runtime& runtime, const Text& text, const Text* characters, StripSide side) {
  const std::string_view view = text.view();
  const auto strips = [&](size_t pos) {
    const CodePoint point = decode_at(view, pos);
    if (characters == nullptr) return is_space(point.value);
    const std::string_view set = characters->view();
    for (size_t i = 0; i < set.size(); i += decode_at(set, i).size) {
      if (set.compare(i, decode_at(set, i).size, view.substr(pos, point.size)) == 0) return true;
    }
    return false;
  };
  const auto set_size = static_cast<int64_t>(characters == nullptr ? 1 : characters->size());
  int64_t work = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(view.size() / 16), set_size, &work)) {
    return runtime.exhausted("strip() has too much to compare");
  }
  SLUICE_TRY_VOID(runtime.charge(work));
  size_t begin = 0;
  if (side != StripSide::kRight) {
    while (begin < view.size() && strips(begin)) begin += decode_at(view, begin).size;
  }
  size_t end = view.size();
  if (side != StripSide::kLeft) {
    end = begin;
    for (size_t pos = begin; pos < view.size();) {
      const size_t next = pos + decode_at(view, pos).size;
      if (!strips(pos)) end = next;
      pos = next;
    }
  }
  return runtime.text(text.substr(begin, end));
}

Result replace_text(
    Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t count) {
  TextBuilder out(runtime);
  const std::string_view view = text.view();
  size_t pos = 0;
  if (from.empty()) {
    while (count != 0 && !out.overflowed()) {
      out.append(to);
      if (count > 0) --count;
      if (pos >= view.size()) break;
      const size_t next = pos + decode_at(view, pos).size;
      out.append(text, pos, next);
      pos = next;
    }
  } else {
    for (; count != 0 && !out.overflowed(); count -= count > 0 ? 1 : 0) {
      const size_t found = view.find(from.view(), pos);
      if (found == std::string_view::npos) break;
      out.append(text, pos, found);
      out.append(to);
      pos = found + from.size();
    }
  }
  out.append(text, pos, view.size());
  return out.finish();
}

Result map_case(Runtime& runtime, const Text& text, CaseMap map) {
  TextBuilder out(runtime);
  const std::string_view view = text.view();
  bool inside_word = false;
  constexpr char32_t kSigma = 0x3A3;
  for (size_t pos = 0; pos < view.size() && !out.overflowed();) {
    const CodePoint point = decode_at(view, pos);
    std::string bytes;
    const LetterCase to = letter_case(map, pos == 0, inside_word);
    constexpr char32_t kMalformed = 0xFFFD;
    if (point.value == kMalformed) {
      bytes = view.substr(pos, point.size);
    } else if (point.value == kSigma && to == LetterCase::kLower && is_final_sigma(view, pos)) {
      bytes = "\xCF\x82";
    } else {
      append_case(bytes, point.value, to);
    }
    inside_word = in_class(point.value, CharClass::kCased);
    if (bytes == view.substr(pos, point.size)) {
      out.append(text, pos, pos + point.size);
    } else {
      out.append(bytes, text.origin_at(pos));
    }
    pos += point.size;
  }
  return out.finish();
}

}  // namespace sluice::jinja
