// SPDX-License-Identifier: Apache-2.0
#include "server/tools/output_state.h"

#include <algorithm>
#include <utility>

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

bool is_whole_special(const OutputFormat::Marker& marker) {
  return marker.symbols.size() == 1 && marker.symbols[0] >= kFirstSpecial;
}

// `role`: of the marker that begins calls.
template <typename Reader>
Reader first_reader(const CallFamily& family, Role role, bool parse_calls) {
  return std::visit(
      [&]<typename Form>(const Form& form) -> Reader {
        if constexpr (std::is_constructible_v<typename Form::Reader, Role, const Form&>) {
          return typename Form::Reader(role, form);
        } else {
          return typename Form::Reader(form, parse_calls);
        }
      },
      family.mechanism);
}

}  // namespace

OutputState::OutputState(std::shared_ptr<const OutputFormat> format_,
                         std::shared_ptr<const ToolSchemas> tools_,
                         const ParserOptions& options_)
    : format(std::move(format_)), tools(std::move(tools_)), options(options_) {
  if (format == nullptr) return;
  family = format->calls();
  if (has_channels()) {
    mode_ = Mode::kCalls;
    reader_ = first_reader<Reader>(*family, Role::kHeaderBegin, options.parse_calls);
  } else if (!options.parse_calls && family != nullptr && !family->prompt_begins_call()) {
    family = nullptr;
  }
}

// Families whose readers tell reasoning and content as well.
bool OutputState::has_channels() const { return family != nullptr && family->has_channels(); }

bool OutputState::calls_end_reasoning() const {
  return family != nullptr && family->ends_reasoning && options.calls_end_reasoning;
}

bool OutputState::in_reasoning() const {
  if (const auto* messages = std::get_if<HarmonyMessages>(&reader_))
    return messages->in_reasoning();
  if (const auto* tags = std::get_if<TurnTags>(&reader_)) return tags->in_reasoning();
  return mode_ == Mode::kReasoning;
}

// Only a call that has begun has values; earlier text may be read again as content.
ValueState OutputState::value_state() const {
  if (mode_ != Mode::kCalls || !out.call_is_open()) return {};
  return std::visit(
      [](const auto& reader) {
        if constexpr (std::is_same_v<decltype(reader), const std::monostate&>) {
          return ValueState{};
        } else {
          return reader.value_state();
        }
      },
      reader_);
}

bool OutputState::is_undecided() const {
  if (const auto* messages = std::get_if<HarmonyMessages>(&reader_)) {
    return messages->is_undecided() || !pending_.empty();
  }
  if (const auto* tags = std::get_if<TurnTags>(&reader_)) {
    return tags->is_undecided() || !pending_.empty();
  }
  return !pending_.empty() || !thought_.empty();
}

Roles OutputState::call_roles() const {
  if (family == nullptr || out.num_begun() >= kMaxCalls) return roles();
  return roles(Role::kSectionBegin, Role::kCallBegin);
}

Roles OutputState::live() const {
  switch (mode_) {
    case Mode::kCalls:
      return std::visit(
          [](const auto& reader) {
            if constexpr (std::is_same_v<decltype(reader), const std::monostate&>) {
              return roles();
            } else {
              return reader.live();
            }
          },
          reader_);
    case Mode::kReasoning: {
      Roles set = roles(Role::kReasoningEnd);
      if (!has_reasoning_) set |= roles(Role::kReasoningBegin);
      if (calls_end_reasoning()) set |= call_roles();
      return set;
    }
    case Mode::kContent: {
      Roles set = call_roles();
      if (!has_content_) set |= roles(Role::kReasoningBegin, Role::kWrapBegin);
      if (!has_content_ || is_behind_call_) set |= roles(Role::kReasoningEnd);
      if (is_wrapped_) set |= roles(Role::kWrapEnd);
      return set;
    }
  }
  return roles();
}

void OutputState::append_text_of(std::u16string_view symbols, std::string& text) const {
  for (const Symbol symbol : symbols) {
    if (symbol < kFirstSpecial) {
      text += static_cast<char>(symbol);
    } else if (!options.skip_special_tokens) {
      text += format->text_of(symbol);
    }
  }
}

void OutputState::give_space(PieceKind kind) {
  out.text(kind, space_);
  space_.clear();
}

void OutputState::reasoning_byte(char c) {
  if (c == '\n' && num_newlines_ > 0) {
    --num_newlines_;
    return;
  }
  num_newlines_ = 0;
  const ReasoningFamily& reasoning = *format->reasoning();
  if (c == '\n' && space_.size() < reasoning.before_end) {
    space_ += c;
    return;
  }
  if (c == '\n' && !space_.empty()) {
    out.text(PieceKind::kReasoning, {&c, 1});  // the held ones are those at the end
    return;
  }
  if (!is_json_space(c)) has_reasoning_ = true;
  give_space(PieceKind::kReasoning);
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
    give_space(PieceKind::kContent);
    return;
  }
  if (!is_json_space(c)) {
    has_content_ = true;
    is_long_space_ = is_behind_call_ = false;
  }
  give_space(PieceKind::kContent);
  out.text(PieceKind::kContent, {&c, 1});
}

bool OutputState::takes_runs() const {
  if (num_newlines_ > 0 || mode_ == Mode::kCalls) return false;
  return mode_ == Mode::kReasoning || has_content_ || family == nullptr || family->bare == '\0';
}

void OutputState::read_run(std::string_view bytes) {
  if (mode_ == Mode::kReasoning) {
    has_reasoning_ = true;
  } else {
    has_content_ = true;
    is_long_space_ = is_behind_call_ = false;
  }
  const PieceKind kind = mode_ == Mode::kReasoning ? PieceKind::kReasoning : PieceKind::kContent;
  give_space(kind);
  out.text(kind, bytes);
}

void OutputState::end_reasoning() {
  mode_ = Mode::kContent;
  num_newlines_ = format->reasoning()->after_end;
  space_.clear();
  has_reasoning_ = false;
  // If no marker begins content, the end of reasoning does.
  const auto has = [&](Role role) {
    return std::ranges::any_of(format->markers(),
                               [role](const Marker& marker) { return marker.role == role; });
  };
  is_wrapped_ = has(Role::kWrapEnd) && !has(Role::kWrapBegin);
}

void OutputState::begin_calls(Role role, std::string_view marker_text) {
  if (mode_ != Mode::kReasoning) num_newlines_ = 0;
  mode_ = Mode::kCalls;
  is_bare_ = had_call_ = false;
  kept_ = marker_text;
  reader_ = first_reader<Reader>(*family, role, options.parse_calls);
}

void OutputState::return_to_thought() {
  std::u16string read = std::exchange(thought_, {});
  mode_ = Mode::kReasoning;
  reader_ = std::monostate();
  kept_.clear();
  // The marker is text, what follows may hold another, or the thought's end.
  const auto marker = std::ranges::max(format->markers(), {}, [&](const Marker& candidate) {
    const bool counts = contains(call_roles(), candidate.role);
    return counts && read.starts_with(candidate.symbols) ? candidate.symbols.size() : 0;
  });
  std::string text;
  append_text_of(std::u16string_view(read).substr(0, marker.symbols.size()), text);
  for (const char c : text) reasoning_byte(c);
  pending_.insert(0, read, marker.symbols.size());
}

void OutputState::leave_calls(bool is_content, bool gives_space) {
  if (!thought_.empty()) return return_to_thought();
  mode_ = Mode::kContent;
  reader_ = std::monostate();
  std::string kept = std::exchange(kept_, {});
  is_behind_call_ = had_call_;
  if (!is_content) {
    // White space after the last call and its markers belongs to the content, if content follows.
    if (had_call_ && gives_space) space_ = kept.substr(kept.find_last_not_of(" \t\r\n") + 1);
    return;
  }
  if (had_call_) {
    kept.erase(0, std::min(kept.find_first_not_of(" \t\r\n,;"), kept.size()));
  }
  for (const char c : kept) content_byte(c);
  // Nothing before it counts as a beginning any more, even if it was hidden.
  has_content_ = true;
}

void OutputState::take_step(Step step,
                            std::u16string_view symbols,
                            std::string_view text,
                            int32_t num_before,
                            bool may_be_content) {
  if (out.num_begun() != num_before) {
    kept_.clear();
    space_.clear();
    had_call_ = true;
    if (!thought_.empty()) {
      thought_.clear();
      end_reasoning();
      mode_ = Mode::kCalls;
      num_newlines_ = 0;
    }
    has_content_ = true;
  } else if (may_be_content && (step == Step::kGoOn || step == Step::kFail)) {
    const bool is_marker = symbols.size() > 1 || (!symbols.empty() && symbols[0] >= kFirstSpecial);
    if (is_marker && had_call_ && without_space_around(kept_).empty()) kept_.clear();
    kept_ += text;
  }
  if (!thought_.empty() && (step == Step::kGoOn || step == Step::kDone || step == Step::kFail)) {
    thought_ += symbols;
  }
  const bool is_too_long = kept_.size() > kMaxBufferedBytes || thought_.size() > kMaxHeldSymbols;
  if (step == Step::kGoOn && is_too_long) step = Step::kFail;
  if (step == Step::kGoOn) return;
  if (step != Step::kDone && step != Step::kFail) pending_.insert(0, symbols);
  switch (step) {
    case Step::kGoOn:
      return;
    case Step::kDone:
      leave_calls(is_bare_ && !had_call_, false);
      return;
    case Step::kFail:
      leave_calls(true, false);
      return;
    case Step::kDoneBefore:
      leave_calls(is_bare_ && !had_call_, true);
      break;
    case Step::kFailBefore:
      leave_calls(true, false);
      break;
    case Step::kJson:
      reader_ = JsonCall(Role::kCallBegin, JsonCalls{});
      break;
    case Step::kCode:
      reader_ = LiteralCall::code();
      break;
  }
}

template <typename Read>
void OutputState::with_reader(std::u16string_view symbols, Read read) {
  const int32_t num_before = out.num_begun();
  const bool may_be_content = !out.call_is_open() && !has_channels();
  CallContext call_context = context();
  const Step step = std::visit(
      [&](auto& reader) {
        if constexpr (std::is_same_v<decltype(reader), std::monostate&>) {
          return Step::kDoneBefore;
        } else {
          return read(reader, call_context);
        }
      },
      reader_);
  std::string text;
  if (may_be_content) append_text_of(symbols, text);
  take_step(step, symbols, text, num_before, may_be_content);
}

void OutputState::read_byte(char c) {
  if (mode_ == Mode::kReasoning) {
    reasoning_byte(c);
    return;
  }
  if (mode_ == Mode::kContent) {
    const bool begins =
        family != nullptr && family->bare != '\0' && c == family->bare && !has_content_;
    if (!begins || call_roles() == roles()) {
      content_byte(c);
      return;
    }
    begin_calls(Role::kCallBegin, {});
    is_bare_ = true;
  }
  const Symbol symbol = static_cast<uint8_t>(c);
  with_reader({&symbol, 1}, [c](auto& reader, CallContext& call_context) {
    return reader.text(c, call_context);
  });
}

void OutputState::read_stray(std::string_view text, bool is_special) {
  if (is_special && options.skip_special_tokens) return;
  if (mode_ == Mode::kCalls && !has_channels()) return;
  for (const char c : text) read_byte(c);
}

void OutputState::read_marker(const Marker& marker) {
  if (mode_ == Mode::kCalls) {
    with_reader(marker.symbols, [&](auto& reader, CallContext& call_context) {
      return reader.marker(marker.role, call_context);
    });
    return;
  }
  const bool is_call =
      contains(call_roles(), marker.role) && (mode_ == Mode::kContent || calls_end_reasoning());
  if (is_call) {
    std::string text;
    append_text_of(marker.symbols, text);
    if (mode_ == Mode::kReasoning) thought_ = marker.symbols;
    begin_calls(marker.role, text);
    return;
  }
  switch (marker.role) {
    case Role::kReasoningBegin:
      if (mode_ == Mode::kContent) {
        space_.clear();
        mode_ = Mode::kReasoning;
        has_reasoning_ = false;
      }
      num_newlines_ = format->reasoning()->after_begin;
      return;
    case Role::kReasoningEnd:
      if (mode_ == Mode::kReasoning) {
        end_reasoning();
      } else if (contains(live(), Role::kReasoningEnd)) {
        space_.clear();
        num_newlines_ = format->reasoning()->after_end;
      }
      return;
    case Role::kWrapBegin:
      space_.clear();
      is_wrapped_ = true;
      num_newlines_ = format->reasoning()->after_begin;
      return;
    case Role::kWrapEnd:
      space_.clear();
      is_wrapped_ = false;
      return;
    default:
      return;  // a special token that means nothing here
  }
}

// Text of a thought that was not a call is read again, and may begin another call.
void OutputState::end_reader() {
  do {
    with_reader({},
                [](auto& reader, CallContext& call_context) { return reader.end(call_context); });
    drain(true);
  } while (!thought_.empty());
}

bool OutputState::decide_in_value(const Marker& marker, bool at_end, bool& is_text) {
  const ValueState value = value_state();
  if (value.place == ValuePlace::kNone) return true;
  if (!value_end_) value_end_.emplace(value, marker.role, marker.symbols.size());
  const ValueEnd::Verdict verdict = value_end_->read(*format, pending_, at_end || is_over_);
  if (verdict == ValueEnd::Verdict::kUndecided) return false;
  value_end_.reset();
  is_text = verdict == ValueEnd::Verdict::kText;
  return true;
}

void OutputState::drain(bool at_end) {
  while (!pending_.empty()) {
    const Roles counting = live();
    const Marker* found = nullptr;
    bool is_live = false;
    bool may_grow = false;
    for (const Marker& marker : format->markers()) {
      const bool counts = contains(counting, marker.role);
      if (!counts && !is_whole_special(marker)) continue;
      if (pending_.starts_with(marker.symbols)) {
        const bool is_better = found == nullptr || (counts && !is_live) ||
                               (counts == is_live && marker.symbols.size() > found->symbols.size());
        if (!is_better) continue;
        found = &marker;
        is_live = counts;
      } else if (marker.symbols.starts_with(pending_)) {
        may_grow = true;
      }
    }
    if (may_grow && !at_end) return;
    const Symbol first = pending_.front();
    bool is_text = false;
    if (found != nullptr && !decide_in_value(*found, at_end, is_text)) return;
    pending_.erase(0, found != nullptr ? found->symbols.size() : 1);
    if (is_text) {
      for (const char c : found->text) read_byte(c);
    } else if (found != nullptr) {
      read_marker(*found);
    } else if (first < kFirstSpecial) {
      read_byte(static_cast<char>(first));
    } else if (value_state().place != ValuePlace::kNone) {
      for (const char c : format->text_of(first)) read_byte(c);  // a part of no whole marker
    } else {
      read_stray(format->text_of(first), true);
    }
  }
}

}  // namespace sluice
