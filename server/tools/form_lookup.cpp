// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "engine/core/status.h"
#include "server/tools/families.h"
#include "server/tools/output_format.h"

namespace sluice {
namespace {

// The kind that "%d", "%t" and "%k" mean; kFixed: `text` begins with something else.
CallPiece::Kind kind_of(std::string_view text) {
  if (text.starts_with("%d")) return CallPiece::Kind::kNumber;
  if (text.starts_with("%k")) return CallPiece::Kind::kKey;
  return text.starts_with("%t") ? CallPiece::Kind::kJsonType : CallPiece::Kind::kFixed;
}

// Special tokens inside of `text`, the longest that begin first; the rest is text.
CallPieces pieces_of(std::string_view text, const Tokenizer& tokenizer) {
  CallPieces pieces;
  for (size_t begin = 0; begin < text.size();) {
    if (const auto kind = kind_of(text.substr(begin)); kind != CallPiece::Kind::kFixed) {
      pieces.push_back({.kind = kind});
      begin += 2;
      continue;
    }
    size_t length = text.size() - begin;
    TokenId token = kInvalidToken;
    for (; length > 1; --length) {
      token = tokenizer.find_token(text.substr(begin, length));
      if (token != kInvalidToken && tokenizer.is_special(token)) break;
    }
    if (length > 1) {
      pieces.push_back({.token = token});
    } else {
      length = 1;
      const bool goes_on = !pieces.empty() && !pieces.back().text.empty();
      if (!goes_on) pieces.emplace_back();
      pieces.back().text += text[begin];
    }
    begin += length;
  }
  return pieces;
}

// Fills in what announces calls of the family that begin with `start`.
void add_markers(const CallFamily& family,
                 std::string_view start,
                 const Tokenizer& tokenizer,
                 CallForm& form) {
  if (family.bare != '\0') return;
  for (const MarkerText& marker : family.markers) {
    if (marker.role != Role::kSectionBegin && marker.role != Role::kCallBegin) continue;
    CallPieces pieces = pieces_of(marker.text, tokenizer);
    const bool is_one = pieces.size() == 1;
    if (is_one && !form.has_marker() && start.starts_with(marker.text)) {
      form.marker = std::move(pieces.front());
    } else if (!is_one || pieces.front().token == kInvalidToken) {
      form.other_markers.emplace_back(marker.text);
    }
  }
}

ArgumentStyle style_of(const CallFamily& family, const CallText& text) {
  if (std::holds_alternative<PythonCalls>(family.mechanism)) return ArgumentStyle::kPython;
  if (std::holds_alternative<GemmaCalls>(family.mechanism)) return ArgumentStyle::kGemma;
  return text.key_begin.empty() ? ArgumentStyle::kJson : ArgumentStyle::kTagged;
}

CallForm to_form(const CallFamily& family, const CallText& text, const Tokenizer& tokenizer) {
  const auto pieces = [&](std::string_view part) { return pieces_of(part, tokenizer); };
  CallForm form = {.open = pieces(text.open),
                   .begin = pieces(text.begin),
                   .after_name = pieces(text.after_name),
                   .end = pieces(text.end),
                   .separator = pieces(text.separator),
                   .close = pieces(text.close),
                   .is_single = text.is_single};
  add_markers(family, text.open.empty() ? text.begin : text.open, tokenizer, form);
  form.style = style_of(family, text);
  if (form.style == ArgumentStyle::kGemma) {
    const auto quote = std::ranges::find(family.markers, Role::kQuote, &MarkerText::role);
    form.quote = pieces(quote->text);
  }
  if (form.style != ArgumentStyle::kTagged) return form;
  const bool is_same = text.json_key_end.empty();
  form.tagged = {.key_begin = pieces(text.key_begin),
                 .key_end = pieces(text.key_end),
                 .json_key_end = pieces(is_same ? text.key_end : text.json_key_end),
                 .value_end = pieces(text.value_end)};
  return form;
}

}  // namespace

CallForm call_form(const CallFamily& family, const Tokenizer& tokenizer) {
  const auto fits = std::ranges::find_if(family.texts, [&](const CallText& text) {
    return text.needs.empty() || tokenizer.find_token(text.needs) != kInvalidToken;
  });
  CHECK(fits != family.texts.end());  // the last one of a row fits any vocabulary
  return to_form(family, *fits, tokenizer);
}

std::optional<ReasoningForm> reasoning_form(const ReasoningFamily& family,
                                            const Tokenizer& tokenizer) {
  if (!family.text.begin.empty()) {
    return ReasoningForm{.begin = pieces_of(family.text.begin, tokenizer),
                         .end = pieces_of(family.text.end, tokenizer),
                         .answer_begin = pieces_of(family.text.answer_begin, tokenizer),
                         .answer_end = pieces_of(family.text.answer_end, tokenizer)};
  }
  std::vector<std::string_view> begins;
  std::vector<std::string_view> ends;
  for (const MarkerText& marker : family.markers) {
    if (marker.role == Role::kReasoningBegin) begins.push_back(marker.text);
    if (marker.role == Role::kReasoningEnd) ends.push_back(marker.text);
  }
  const size_t num_pairs = std::min(begins.size(), ends.size());
  if (num_pairs == 0) return std::nullopt;
  size_t chosen = 0;
  while (chosen < num_pairs && tokenizer.find_token(ends[chosen]) == kInvalidToken) ++chosen;
  if (chosen == num_pairs) chosen = 0;
  return ReasoningForm{.begin = pieces_of(begins[chosen], tokenizer),
                       .end = pieces_of(ends[chosen], tokenizer),
                       .end_token = tokenizer.find_token(ends[chosen]),
                       .newlines = std::string(family.newlines.after_end, '\n')};
}

bool ends_reasoning(const ReasoningFamily& family, std::string_view prompt_tail) {
  return std::ranges::any_of(family.markers, [&](const MarkerText& marker) {
    return marker.role == Role::kReasoningEnd &&
           prompt_tail.find(marker.text) != std::string_view::npos;
  });
}

}  // namespace sluice
