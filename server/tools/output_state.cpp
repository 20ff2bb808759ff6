// SPDX-License-Identifier: Apache-2.0
#include "server/tools/output_state.h"

#include <algorithm>
#include <utility>

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {

OutputState::OutputState(std::shared_ptr<const OutputFormat> format_,
                         std::shared_ptr<const ToolSchemas> tools_,
                         const ParserOptions& options_)
    : format(std::move(format_)),
      tools(std::move(tools_)),
      options(options_),
      scanner_(format.get()) {
  if (format == nullptr) return;
  family = format->calls();
  if (family == nullptr) return;
  std::visit(
      [this]<typename Form>(const Form& form) {
        if constexpr (requires { typename Form::Turns; }) {
          turns_.emplace(typename Form::Turns(form, options.parse_calls));
        }
      },
      family->mechanism);
  const bool reads = options.parse_calls || family->has_channels() || family->prompt_begins_call();
  if (!reads) family = nullptr;
}

bool OutputState::calls_end_reasoning() const {
  return family != nullptr && family->ends_reasoning && options.calls_end_reasoning;
}

bool OutputState::in_reasoning() const {
  if (!turns_) return in_reasoning_ && !calls_;
  return std::visit([](const auto& turns) { return turns.in_reasoning(); }, *turns_);
}

bool OutputState::is_undecided() const {
  if (!scanner_.held().empty()) return true;
  if (!turns_) return calls_ && calls_->in_thought();
  return std::visit([](const auto& turns) { return turns.is_undecided(); }, *turns_);
}

ValueState OutputState::value_state() const {
  if (calls_) return calls_->value_state(out);
  if (!turns_ || !out.call_is_open()) return {};
  return std::visit([](const auto& turns) { return turns.value_state(); }, *turns_);
}

Roles OutputState::call_roles() const {
  if (family == nullptr || out.num_begun() >= kMaxCalls) return roles();
  return kBegins;
}

Roles OutputState::live() const {
  if (calls_) return calls_->live();
  if (turns_) return std::visit([](const auto& turns) { return turns.live(); }, *turns_);
  if (in_reasoning_) {
    Roles set = roles(Role::kReasoningEnd);
    if (!has_reasoning_) set |= roles(Role::kReasoningBegin);
    if (calls_end_reasoning()) set |= call_roles();
    return set;
  }
  Roles set = call_roles();
  if (!has_content_) set |= roles(Role::kReasoningBegin, Role::kWrapBegin);
  if (!has_content_ || is_after_call_) set |= roles(Role::kReasoningEnd);
  if (is_wrapped_) set |= roles(Role::kWrapEnd);
  return set;
}

std::string OutputState::text_of(std::u16string_view symbols) const {
  std::string text;
  for (const Symbol symbol : symbols) {
    if (symbol < kFirstSpecial) {
      text += static_cast<char>(symbol);
    } else if (!options.skip_special_tokens) {
      text += format->text_of(symbol);
    }
  }
  return text;
}

void OutputState::give_space() {
  out.text(in_reasoning_ ? PieceKind::kReasoning : PieceKind::kContent, space_);
  space_.clear();
}

void OutputState::reasoning_byte(char c) {
  if (c == '\n' && num_newlines_ > 0) {
    --num_newlines_;
    return;
  }
  num_newlines_ = 0;
  const ReasoningFamily& reasoning = *format->reasoning();
  if (c == '\n' && space_.size() < reasoning.newlines.before_end) {
    space_ += c;
    return;
  }
  if (c == '\n' && !space_.empty()) {
    out.text(PieceKind::kReasoning, {&c, 1});  // the held ones are those at the end
    return;
  }
  if (!is_json_space(c)) has_reasoning_ = true;
  give_space();
  out.text(PieceKind::kReasoning, {&c, 1});
}

void OutputState::content_byte(char c) {
  if (c == '\n' && num_newlines_ > 0) {
    --num_newlines_;
    return;
  }
  num_newlines_ = 0;
  if (is_json_space(c) && !is_long_space_ && (family != nullptr || is_wrapped_)) {
    space_ += c;
    if (space_.size() <= kMaxSeparatorBytes) return;
    is_long_space_ = true;
    give_space();
    return;
  }
  if (!is_json_space(c)) {
    has_content_ = true;
    is_long_space_ = is_after_call_ = false;
  }
  give_space();
  out.text(PieceKind::kContent, {&c, 1});
}

bool OutputState::takes_runs() const {
  if (num_newlines_ > 0 || calls_ || turns_) return false;
  return in_reasoning_ || has_content_ || family == nullptr || family->bare == '\0';
}

void OutputState::read_run(std::string_view bytes) {
  if (in_reasoning_) {
    has_reasoning_ = true;
  } else {
    has_content_ = true;
    is_long_space_ = is_after_call_ = false;
  }
  give_space();
  out.text(in_reasoning_ ? PieceKind::kReasoning : PieceKind::kContent, bytes);
}

void OutputState::end_reasoning() {
  in_reasoning_ = false;
  num_newlines_ = format->reasoning()->newlines.after_end;
  space_.clear();
  has_reasoning_ = false;
  // If no marker begins content, the end of reasoning does.
  const auto has = [&](Role role) {
    return std::ranges::any_of(format->markers(),
                               [role](const Marker& marker) { return marker.role == role; });
  };
  is_wrapped_ = has(Role::kWrapEnd) && !has(Role::kWrapBegin);
}

void OutputState::begin_calls(const CallPass::Start& start) {
  if (!in_reasoning_) num_newlines_ = 0;
  calls_.emplace(*family, start);
}

void OutputState::leave_calls(const CallPass::Verdict& verdict) {
  const CallPass calls = std::move(*calls_);
  calls_.reset();
  std::u16string_view tried = calls.tried();
  if (calls.in_thought()) {
    // The marker is text, what follows may hold another, or the thought's end.
    size_t marker_size = 0;
    for (const Marker& marker : format->markers()) {
      if (contains(call_roles(), marker.role) && tried.starts_with(marker.symbols)) {
        marker_size = std::max(marker_size, marker.symbols.size());
      }
    }
    scanner_.put_back(tried.substr(marker_size));
    scanner_.put_back_text(tried.substr(0, marker_size));
    return;
  }
  is_after_call_ = calls.had_call();
  if (verdict.kind == CallPass::Verdict::Kind::kOver) {
    // White space after the last call and its markers belongs to the content, if content follows.
    if (!calls.had_call() || !verdict.reads_again) return;
    const std::string text = text_of(tried);
    space_ = text.substr(text.find_last_not_of(" \t\r\n") + 1);
    return;
  }
  if (calls.had_call()) {
    tried.remove_prefix(std::min(tried.find_first_not_of(u" \t\r\n,;"), tried.size()));
  }
  scanner_.put_back_text(tried);
  // Nothing before it counts as a beginning any more, even if it was hidden.
  has_content_ = true;
}

void OutputState::take(const CallPass::Verdict& verdict, std::u16string_view symbols) {
  if (verdict.begins) {
    if (in_reasoning_) end_reasoning();
    space_.clear();
    num_newlines_ = 0;
    has_content_ = true;
  }
  if (verdict.reads_again) scanner_.put_back(symbols);
  if (verdict.kind != CallPass::Verdict::Kind::kGoOn) leave_calls(verdict);
}

void OutputState::read_byte(char c) {
  if (turns_) {
    CallContext call_context = context();
    std::visit([&](auto& turns) { turns.text(c, call_context); }, *turns_);
    return;
  }
  if (!calls_) {
    if (in_reasoning_) return reasoning_byte(c);
    const bool begins =
        family != nullptr && family->bare != '\0' && c == family->bare && !has_content_;
    if (!begins || call_roles() == roles()) return content_byte(c);
    begin_calls({.is_bare = true, .keeps_specials = !options.skip_special_tokens});
  }
  CallContext call_context = context();
  const Symbol symbol = static_cast<uint8_t>(c);
  take(calls_->text(c, call_context), {&symbol, 1});
}

void OutputState::read_special(std::string_view name) {
  if (!options.skip_special_tokens && !calls_) scanner_.put_back_text(name);
}

void OutputState::read_marker(const Marker& marker) {
  if (turns_) {
    CallContext call_context = context();
    std::visit([&](auto& turns) { turns.marker(marker.role, call_context); }, *turns_);
    return;
  }
  if (calls_) {
    CallContext call_context = context();
    take(calls_->marker(marker, call_context), marker.symbols);
    return;
  }
  if (contains(call_roles(), marker.role) && (!in_reasoning_ || calls_end_reasoning())) {
    begin_calls({.role = marker.role,
                 .marker = marker.symbols,
                 .in_thought = in_reasoning_,
                 .keeps_specials = !options.skip_special_tokens});
    return;
  }
  switch (marker.role) {
    case Role::kReasoningBegin:
      if (!in_reasoning_) {
        space_.clear();
        in_reasoning_ = true;
        has_reasoning_ = false;
      }
      num_newlines_ = format->reasoning()->newlines.after_begin;
      return;
    case Role::kReasoningEnd:
      if (in_reasoning_) {
        end_reasoning();
      } else if (contains(live(), Role::kReasoningEnd)) {
        space_.clear();
        num_newlines_ = format->reasoning()->newlines.after_end;
      }
      return;
    case Role::kWrapBegin:
      space_.clear();
      is_wrapped_ = true;
      num_newlines_ = format->reasoning()->newlines.after_begin;
      return;
    case Role::kWrapEnd:
      space_.clear();
      is_wrapped_ = false;
      return;
    default:
      return;  // a special token that means nothing here
  }
}

void OutputState::drain(bool at_end) {
  while (const auto event = scanner_.next(live(), value_state(), at_end)) {
    switch (event->kind) {
      case ScanEvent::Kind::kByte:
        read_byte(event->byte);
        break;
      case ScanEvent::Kind::kMarker:
        read_marker(*event->marker);
        break;
      case ScanEvent::Kind::kSpecial:
        read_special(event->name);
        break;
    }
  }
}

// Text of a thought that was not a call is read again, and may begin another call.
void OutputState::end_calls() {
  do {
    CallContext call_context = context();
    take(calls_->end(call_context), {});
    drain(true);
  } while (calls_ && calls_->in_thought());
}

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
  const Roles begins = live() & kBegins;
  if (scanner_.holds_beginning_of(begins)) scanner_.drop_held();
}

// Drops a partial marker at the end of the output if it follows a call, since an output may end
// with its last call, or if it cuts a call short.
void OutputState::drop_cut_marker(FinishReason reason) {
  if (reason != FinishReason::kStop) drop_cut_call();
  const bool had_call = calls_ ? calls_->had_call() : turns_ && out.num_begun() > 0;
  if (!had_call || scanner_.held().empty()) return;
  const Roles ends = live() & (kEnds | roles(Role::kFence));
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
  const bool is_separator = !in_reasoning_ && is_after_call_;
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
