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
    if (!pending_.empty() || !is_plain(bytes[at])) {
      pending_ += static_cast<uint8_t>(bytes[at++]);
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
    pending_ += symbol;
    drain(false);
    return;
  }
  drain(true);
  if (mode_ == Mode::kCalls && !has_channels()) end_reader();
  read_stray(name, true);
}

void OutputState::drop_cut_call() {
  const auto spells = [](std::string_view kept, const CallText& text) {
    std::string begin = std::string(text.open) + std::string(text.begin);
    std::string found(kept);
    std::erase_if(begin, is_json_space);
    std::erase_if(found, is_json_space);
    return !text.begin.empty() && found.starts_with(begin);
  };
  if (mode_ == Mode::kCalls && !has_channels() && !out.call_is_open()) {
    const bool is_call = !is_bare_ || std::ranges::any_of(family->texts, [&](const CallText& text) {
      return spells(kept_, text);
    });
    if (!is_call) return;
    pending_.clear();
    thought_.clear();
    space_.clear();
    kept_.clear();
    reader_ = std::monostate();
    mode_ = Mode::kContent;
    return;
  }
  // One letter may begin anything.
  const bool is_letter = pending_.size() == 1 && pending_[0] < kFirstSpecial;
  if (mode_ == Mode::kCalls || pending_.empty() || is_letter) return;
  const Roles counting = live() & roles(Role::kSectionBegin, Role::kCallBegin);
  const bool is_cut = std::ranges::any_of(format->markers(), [&](const Marker& marker) {
    return contains(counting, marker.role) && marker.symbols.starts_with(pending_);
  });
  if (is_cut) pending_.clear();
}

// Drops a partial marker at the end of the output if it follows a call, since an output may end
// with its last call, or if it cuts a call short.
void OutputState::drop_cut_marker(FinishReason reason) {
  if (reason != FinishReason::kStop) drop_cut_call();
  if (mode_ != Mode::kCalls || !had_call_ || pending_.empty()) return;
  if (out.call_is_open()) {
    if (reason != FinishReason::kStop) pending_.clear();
    return;
  }
  const Roles counting = live() & roles(Role::kCallEnd, Role::kSectionEnd, Role::kFence);
  const bool is_cut = std::ranges::any_of(format->markers(), [&](const Marker& marker) {
    return contains(counting, marker.role) && marker.symbols.starts_with(pending_);
  });
  if (is_cut) pending_.clear();
}

void OutputState::finish(FinishReason reason) {
  if (format == nullptr) {
    out.flush();
    return;
  }
  is_over_ = true;
  drain(false);
  drop_cut_marker(reason);
  drain(true);
  if (mode_ == Mode::kCalls && (!out.call_is_open() || reason == FinishReason::kStop)) end_reader();
  const bool is_separator = mode_ == Mode::kContent && is_behind_call_;
  if (mode_ != Mode::kCalls && !is_separator) {
    give_space(mode_ == Mode::kReasoning ? PieceKind::kReasoning : PieceKind::kContent);
  }
  out.flush();
}

void OutputState::start(std::string_view prompt_tail) {
  if (format == nullptr) return;
  if (has_channels()) {
    // A message that the prompt began is read, but for pieces of it.
    Role begin = Role::kHeaderBegin;
    size_t at = std::string_view::npos;
    for (const Marker& marker : format->markers()) {
      if (marker.role == begin) at = prompt_tail.rfind(marker.text);
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
    if (auto* messages = std::get_if<HarmonyMessages>(&reader_)) messages->begin_output();
    if (out.call_is_open()) {
      begun_call = std::move(begun);
      begun_call.erase(begun_call.begin(),
                       std::ranges::find(begun_call, PieceKind::kCallBegin, &Piece::kind));
    } else {
      out = PieceWriter();
    }
    return;
  }
  if (family != nullptr && family->prompt_begins_call()) {
    const bool is_begun = std::ranges::any_of(format->markers(), [&](const Marker& marker) {
      return marker.role == Role::kCallBegin && prompt_tail.ends_with(marker.text);
    });
    if (is_begun) begin_calls(Role::kCallBegin, {});
  }
  if (format->reasoning() == nullptr) return;
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
  const ReasoningFamily& reasoning = *format->reasoning();
  if (!is_known) {
    if (reasoning.begins_inside) mode_ = Mode::kReasoning;
    if (reasoning.begins_inside) num_newlines_ = reasoning.after_begin;
    return;
  }
  const std::string_view behind = prompt_tail.substr(last);
  const bool is_text = !without_space_around(behind).empty();
  const auto newlines = static_cast<size_t>(std::ranges::count(behind, '\n'));
  const size_t of_marker = is_begin ? reasoning.after_begin : reasoning.after_end;
  if (is_begin) mode_ = Mode::kReasoning;
  if (!is_text && newlines < of_marker) num_newlines_ = static_cast<uint8_t>(of_marker - newlines);
  (is_begin ? has_reasoning_ : has_content_) = is_text;
}

}  // namespace sluice
