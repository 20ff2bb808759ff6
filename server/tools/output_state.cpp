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
  return roles(Role::kSectionBegin, Role::kCallBegin);
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
  if (!has_content_ || is_behind_call_) set |= roles(Role::kReasoningEnd);
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
    is_long_space_ = is_behind_call_ = false;
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
    is_long_space_ = is_behind_call_ = false;
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
  is_behind_call_ = calls.had_call();
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
  CallContext call_context = context();
  if (turns_) {
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

}  // namespace sluice
