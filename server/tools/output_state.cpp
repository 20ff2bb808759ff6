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

}  // namespace

OutputState::OutputState(std::shared_ptr<const OutputFormat> format_,
                         std::shared_ptr<const ToolSchemas> tools_,
                         const ParserOptions& options_)
    : format(std::move(format_)), tools(std::move(tools_)), options(options_) {
  if (format == nullptr) return;
  family = format->calls();
  if (has_channels()) {
    mode_ = Mode::kCalls;
    if (family->mechanism == Mechanism::kHarmony) {
      reader_ = HarmonyMessages(options.parse_calls, family->tagged_body);
    } else {
      reader_ = TurnTags(options.parse_calls);
    }
  } else if (!options.parse_calls && family != nullptr && !family->prompt_begins_call) {
    family = nullptr;
  }
}

// Families whose readers tell reasoning and content as well.
bool OutputState::has_channels() const {
  return family != nullptr &&
         (family->mechanism == Mechanism::kHarmony || family->mechanism == Mechanism::kTurnTags);
}

bool OutputState::calls_end_reasoning() const {
  return family != nullptr && family->ends_reasoning && options.calls_end_reasoning;
}

bool OutputState::in_reasoning() const {
  if (const auto* messages = std::get_if<HarmonyMessages>(&reader_))
    return messages->in_reasoning();
  if (const auto* tags = std::get_if<TurnTags>(&reader_)) return tags->in_reasoning();
  return mode_ == Mode::kReasoning;
}

bool OutputState::is_undecided() const {
  if (const auto* messages = std::get_if<HarmonyMessages>(&reader_)) {
    return messages->is_undecided() || !pending_.empty();
  }
  if (const auto* tags = std::get_if<TurnTags>(&reader_)) {
    return tags->is_undecided() || !pending_.empty();
  }
  return !pending_.empty();
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
  return mode_ == Mode::kReasoning || has_content_ || family == nullptr || !family->bare;
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
  // Where no marker begins content, reasoning's end does.
  const auto has = [&](Role role) {
    return std::ranges::any_of(format->markers(),
                               [role](const Marker& marker) { return marker.role == role; });
  };
  is_wrapped_ = has(Role::kWrapEnd) && !has(Role::kWrapBegin);
}

void OutputState::begin_calls(Role role, std::string_view marker_text) {
  if (mode_ == Mode::kReasoning) end_reasoning();
  num_newlines_ = 0;
  mode_ = Mode::kCalls;
  is_bare_ = had_call_ = false;
  kept_ = marker_text;
  switch (family->mechanism) {
    case Mechanism::kNamed:
      reader_ = NamedCall(role, *family);
      break;
    case Mechanism::kTagged:
      reader_ = TaggedCall(role, *family);
      break;
    case Mechanism::kElements:
      reader_ = ElementCall(role, *family);
      break;
    case Mechanism::kPython:
      reader_ = LiteralCall(LiteralValue::Dialect::kPython, false);
      break;
    case Mechanism::kGemma:
      reader_ = LiteralCall(LiteralValue::Dialect::kGemma, false);
      break;
    default:
      reader_ = JsonCall();
  }
}

void OutputState::leave_calls(bool is_content, bool gives_space) {
  mode_ = Mode::kContent;
  reader_ = std::monostate();
  std::string kept = std::exchange(kept_, {});
  is_behind_call_ = had_call_;
  if (!is_content) {
    // White space behind the last call and its markers is content's, if content follows.
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
    has_content_ = true;
  } else if (may_be_content && (step == Step::kGoOn || step == Step::kFail)) {
    const bool is_marker = symbols.size() > 1 || (!symbols.empty() && symbols[0] >= kFirstSpecial);
    if (is_marker && had_call_ && trimmed(kept_).empty()) kept_.clear();
    kept_ += text;
  }
  if (step == Step::kGoOn && kept_.size() > kMaxBufferedBytes) step = Step::kFail;
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
      reader_ = JsonCall();
      break;
    case Step::kCode:
      reader_ = LiteralCall(LiteralValue::Dialect::kPython, true);
      break;
  }
  pending_.insert(0, symbols);
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
    const bool begins = family != nullptr && family->bare && !has_content_ &&
                        c == (family->mechanism == Mechanism::kBareJson ? '{' : '[');
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
      if (mode_ == Mode::kReasoning) end_reasoning();
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
    pending_.erase(0, found != nullptr ? found->symbols.size() : 1);
    if (found != nullptr) {
      read_marker(*found);
    } else if (first < kFirstSpecial) {
      read_byte(static_cast<char>(first));
    } else {
      read_stray(format->text_of(first), true);
    }
  }
}

// What the prompt began goes out before all else.
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
  if (mode_ == Mode::kCalls && !has_channels()) {
    with_reader({},
                [](auto& reader, CallContext& call_context) { return reader.end(call_context); });
  }
  read_stray(name, true);
}

// The beginning of a marker at the end of an output is none of the text where it would have stood
// behind calls, since an output may end with its last call, and in a call that is cut short.
void OutputState::drop_cut_marker(FinishReason reason) {
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
  drop_cut_marker(reason);
  drain(true);
  if (mode_ == Mode::kCalls && (!out.call_is_open() || reason == FinishReason::kStop)) {
    with_reader({},
                [](auto& reader, CallContext& call_context) { return reader.end(call_context); });
  }
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
  if (family != nullptr && family->prompt_begins_call) {
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
  const bool is_text = !trimmed(behind).empty();
  const auto newlines = static_cast<size_t>(std::ranges::count(behind, '\n'));
  const size_t of_marker = is_begin ? reasoning.after_begin : reasoning.after_end;
  if (is_begin) mode_ = Mode::kReasoning;
  if (!is_text && newlines < of_marker) num_newlines_ = static_cast<uint8_t>(of_marker - newlines);
  (is_begin ? has_reasoning_ : has_content_) = is_text;
}

}  // namespace sluice
