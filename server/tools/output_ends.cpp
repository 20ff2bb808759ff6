// SPDX-License-Identifier: Apache-2.0
// How an output begins, arrives and ends; output_state.cpp has the meaning of its symbols.
#include <algorithm>
#include <utility>

#include "server/tools/json_text.h"
#include "server/tools/output_state.h"

namespace sluice {

// What the prompt began is emitted before all else.
void OutputState::write_to(Pieces& pieces) {
  pieces.insert(pieces.end(), begun_call.begin(), begun_call.end());
  begun_call.clear();
  out.write_to(&pieces);
}

void OutputState::feed_text(std::string_view bytes) {
  if (format == nullptr) {
    out.text(PieceKind::kContent, bytes);
    return;
  }
  for (size_t at = 0; at < bytes.size();) {
    const Roles counting = live();
    const auto is_plain = [&](char c) {
      return (format->begun_by(static_cast<uint8_t>(c)) & counting) == 0 && !is_json_space(c);
    };
    if (!scanner_.held().empty() || !is_plain(bytes[at])) {
      scanner_.push(static_cast<uint8_t>(bytes[at++]));
    } else if (!takes_runs()) {
      read_byte(bytes[at++]);
    } else {
      size_t end = at + 1;
      while (end < bytes.size() && is_plain(bytes[end])) ++end;
      read_run(bytes.substr(at, end - at));
      at = end;
    }
    drain(false);
  }
}

void OutputState::feed_special(Symbol symbol, std::string_view name) {
  if (format == nullptr) {
    if (!options.skip_special_tokens) out.text(PieceKind::kContent, name);
    return;
  }
  if (symbol != 0) {
    scanner_.push(symbol);
  } else {
    drain(true);
    if (calls_) end_calls();
    read_special(name);
  }
  drain(false);
}

void OutputState::drop_cut_call() {
  const auto spells = [](std::string found, const CallText& text) {
    std::string begin = std::string(text.open) + std::string(text.begin);
    std::erase_if(begin, is_json_space);
    std::erase_if(found, is_json_space);
    return !text.begin.empty() && found.starts_with(begin);
  };
  if (calls_ && !out.call_is_open()) {
    const std::string tried = text_of(calls_->tried());
    const bool is_call =
        !calls_->is_bare() || std::ranges::any_of(family->texts, [&](const CallText& text) {
          return spells(tried, text);
        });
    if (!is_call) return;
    scanner_.drop_held();
    calls_.reset();
    space_.clear();
    in_reasoning_ = false;
    return;
  }
  // One letter may begin anything.
  const std::u16string_view held = scanner_.held();
  const bool is_letter = held.size() == 1 && held[0] < kFirstSpecial;
  if (calls_ || turns_ || held.empty() || is_letter) return;
  const Roles begins = live() & roles(Role::kSectionBegin, Role::kCallBegin);
  if (scanner_.holds_beginning_of(begins)) scanner_.drop_held();
}

// Drops a partial marker at the end of the output if it follows a call, since an output may end
// with its last call, or if it cuts a call short.
void OutputState::drop_cut_marker(FinishReason reason) {
  if (reason != FinishReason::kStop) drop_cut_call();
  const bool had_call = calls_ ? calls_->had_call() : turns_ && out.num_begun() > 0;
  if (!had_call || scanner_.held().empty()) return;
  const Roles ends = live() & roles(Role::kCallEnd, Role::kSectionEnd, Role::kFence);
  const bool is_cut =
      out.call_is_open() ? reason != FinishReason::kStop : scanner_.holds_beginning_of(ends);
  if (is_cut) scanner_.drop_held();
}

void OutputState::finish(FinishReason reason) {
  if (format == nullptr) {
    out.flush();
    return;
  }
  scanner_.finish();
  drain(false);
  drop_cut_marker(reason);
  drain(true);
  const bool ends = !out.call_is_open() || reason == FinishReason::kStop;
  if (calls_ && ends) end_calls();
  if (turns_ && ends) {
    CallContext call_context = context();
    std::visit([&](auto& turns) { turns.end(call_context); }, *turns_);
  }
  const bool is_separator = !in_reasoning_ && is_behind_call_;
  if (!calls_ && !turns_ && !is_separator) give_space();
  out.flush();
}

// A message that the prompt began is read, but for pieces of it.
void OutputState::start_turns(std::string_view prompt_tail) {
  size_t at = std::string_view::npos;
  for (const Marker& marker : format->markers()) {
    if (marker.role == Role::kHeaderBegin) at = prompt_tail.rfind(marker.text);
  }
  if (at == std::string_view::npos) return;
  Pieces begun;
  out.write_to(&begun);
  while (at < prompt_tail.size()) {
    const Marker* found = nullptr;
    for (const Marker& marker : format->markers()) {
      if (prompt_tail.substr(at).starts_with(marker.text)) found = &marker;
    }
    if (found == nullptr) {
      read_byte(prompt_tail[at++]);
    } else {
      read_marker(*found);
      at += found->text.size();
    }
  }
  if (auto* messages = std::get_if<HarmonyMessages>(&*turns_)) messages->begin_output();
  if (out.call_is_open()) {
    begun_call = std::move(begun);
    begun_call.erase(begun_call.begin(),
                     std::ranges::find(begun_call, PieceKind::kCallBegin, &Piece::kind));
  } else {
    out = PieceWriter();
  }
}

void OutputState::start_reasoning(std::string_view prompt_tail) {
  const ReasoningFamily& reasoning = *format->reasoning();
  size_t last = 0;
  bool is_begin = false;
  bool is_known = false;
  for (const Marker& marker : format->markers()) {
    if (marker.role != Role::kReasoningBegin && marker.role != Role::kReasoningEnd) continue;
    const size_t found = prompt_tail.rfind(marker.text);
    if (found == std::string_view::npos || (is_known && found + marker.text.size() <= last))
      continue;
    last = found + marker.text.size();
    is_begin = marker.role == Role::kReasoningBegin;
    is_known = true;
  }
  in_reasoning_ = is_known ? is_begin : reasoning.begins_inside;
  if (in_reasoning_) calls_.reset();
  if (!is_known) {
    if (in_reasoning_) num_newlines_ = reasoning.newlines.after_begin;
    return;
  }
  const std::string_view behind = prompt_tail.substr(last);
  const bool is_text = !without_space_around(behind).empty();
  const auto newlines = static_cast<size_t>(std::ranges::count(behind, '\n'));
  const size_t of_marker = is_begin ? reasoning.newlines.after_begin : reasoning.newlines.after_end;
  if (!is_text && newlines < of_marker) num_newlines_ = static_cast<uint8_t>(of_marker - newlines);
  (is_begin ? has_reasoning_ : has_content_) = is_text;
}

void OutputState::start(std::string_view prompt_tail) {
  if (format == nullptr) return;
  if (turns_) return start_turns(prompt_tail);
  if (family != nullptr && family->prompt_begins_call()) {
    const bool is_begun = std::ranges::any_of(format->markers(), [&](const Marker& marker) {
      return marker.role == Role::kCallBegin && prompt_tail.ends_with(marker.text);
    });
    if (is_begun) begin_calls({.keeps_specials = !options.skip_special_tokens});
  }
  if (format->reasoning() != nullptr) start_reasoning(prompt_tail);
}

}  // namespace sluice
