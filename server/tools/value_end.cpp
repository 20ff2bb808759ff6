// SPDX-License-Identifier: Apache-2.0
#include "server/tools/value_end.h"

#include <algorithm>

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

constexpr Roles kOfTurns =
    roles(Role::kHeaderBegin, Role::kMessageEnd, Role::kReasoningBegin, Role::kReasoningEnd);
constexpr Roles kValueEnds = roles(Role::kValueEnd, Role::kRawEnd, Role::kQuote);

constexpr std::string_view kArgument = "argument";
constexpr size_t kMaxTagName = 4096;  // with its attributes

}  // namespace

ValueEnd::ValueEnd(const ValueState& value, Role role, size_t num_symbols)
    : at_(num_symbols), tag_(value.place == ValuePlace::kTurnTag ? kArgument : value.tag) {
  switch (value.place) {
    case ValuePlace::kElement:
      if (role == Role::kValueEnd) stage_ = Stage::kTag;
      return;
    case ValuePlace::kTurnTag:
      if (role == Role::kMessageEnd) stage_ = Stage::kTag;
      return;
    case ValuePlace::kTagged:
      if (role == Role::kValueEnd || role == Role::kRawEnd) stage_ = Stage::kParameters;
      break;
    case ValuePlace::kQuoted:
      if (role == Role::kQuote) stage_ = Stage::kQuote;
      break;
    default:
      break;
  }
  if (stage_ != Stage::kNever) return;
  // A control token where the value cannot end: the answer may be broken there, and end with it.
  is_strict_ = true;
  if (role == Role::kCallEnd) stage_ = Stage::kSection;
  if (role == Role::kSectionEnd || role == Role::kMessageEnd) stage_ = Stage::kAfter;
}

Roles ValueEnd::looked_for() const {
  if (stage_ == Stage::kTag || stage_ == Stage::kTurn) {
    return roles(Role::kKeyEnd, Role::kHeaderEnd);
  }
  return kBegins | kEnds | kOfTurns | kValueEnds | roles(Role::kKeyBegin);
}

ValueEnd::Verdict ValueEnd::quoted(char c) {
  switch (stage_) {
    case Stage::kQuote:
    case Stage::kBracket:
      if (c == ',') {
        stage_ = Stage::kComma;
      } else if (c == '}' || c == ']') {
        stage_ = Stage::kBracket;
      } else if (c != ':' || stage_ == Stage::kBracket) {
        return Verdict::kText;
      } else {
        return Verdict::kEnd;
      }
      return Verdict::kUndecided;
    case Stage::kComma:
      if (c == '{' || c == '[') return Verdict::kEnd;
      if (std::string_view(",:}]\"").find(c) != std::string_view::npos) return Verdict::kText;
      stage_ = Stage::kKey;
      return Verdict::kUndecided;
    default:
      return std::string_view(":,}]").find(c) != std::string_view::npos ? Verdict::kEnd
                                                                        : Verdict::kUndecided;
  }
}

ValueEnd::Verdict ValueEnd::content(Role role) {
  stage_ = contains(kValueEnds, role) ? Stage::kAgain : Stage::kContent;
  name_.clear();
  return Verdict::kUndecided;
}

// An argument is followed by another one, or by the ends of its call and of the calls; these are
// followed by other calls, or another part of the turn.
ValueEnd::Verdict ValueEnd::turn_tag() {
  const std::string_view name = std::string_view(name_).substr(0, name_.find(' '));
  const bool is_argument = name == kArgument;
  if (!is_closing_) return is_argument && has_closed_ ? Verdict::kText : Verdict::kEnd;
  if (is_argument) return Verdict::kText;
  if (name != "call" && name != "tools") return has_closed_ ? Verdict::kEnd : Verdict::kText;
  has_closed_ = true;
  stage_ = Stage::kArguments;
  return Verdict::kUndecided;
}

ValueEnd::Verdict ValueEnd::step(const OutputFormat& format, char c) {
  if (stage_ == Stage::kTag || stage_ == Stage::kTurn) {
    name_ += c;
    const bool fits = stage_ == Stage::kTag ? tag_.starts_with(name_) : name_.size() <= kMaxTagName;
    return fits ? Verdict::kUndecided : Verdict::kText;
  }
  if (is_json_space(c)) return stage_ == Stage::kKey ? Verdict::kText : Verdict::kUndecided;
  switch (stage_) {
    case Stage::kSection:
      if (format.calls()->has_marker(Role::kSectionEnd)) return Verdict::kText;
      [[fallthrough]];
    case Stage::kAfter:
      if (is_strict_) return Verdict::kText;
      stage_ = Stage::kContent;
      content_begin_ = at_;
      return Verdict::kUndecided;
    case Stage::kAgain:
      name_ += c;
      if (c == '}' || c == ']' || (tag_ + '>').starts_with(name_)) return Verdict::kUndecided;
      stage_ = Stage::kContent;
      return Verdict::kUndecided;
    case Stage::kContent:
      return Verdict::kUndecided;
    case Stage::kQuote:
    case Stage::kComma:
    case Stage::kKey:
    case Stage::kBracket:
      return quoted(c);
    default:
      return Verdict::kText;
  }
}

ValueEnd::Verdict ValueEnd::step(const OutputFormat& format, Role role) {
  const bool is_of_turn = contains(kOfTurns, role);
  switch (stage_) {
    case Stage::kTag:
      if (name_ != tag_) return Verdict::kText;
      stage_ = role == Role::kHeaderEnd ? Stage::kArguments : Stage::kParameters;
      return Verdict::kUndecided;
    case Stage::kTurn:
      return turn_tag();
    case Stage::kArguments:
      if (role != Role::kHeaderBegin && role != Role::kMessageEnd) return Verdict::kText;
      stage_ = Stage::kTurn;
      is_closing_ = role == Role::kMessageEnd;
      name_.clear();
      return Verdict::kUndecided;
    case Stage::kParameters:
      if (role == Role::kCallEnd) stage_ = Stage::kSection;
      if (role == Role::kSectionEnd) stage_ = Stage::kAfter;
      if (contains(kEnds, role)) return Verdict::kUndecided;
      if (role == Role::kValueEnd && !tag_.empty()) return Verdict::kEnd;  // of the outer element
      return role == Role::kKeyBegin || is_of_turn ? Verdict::kEnd : Verdict::kText;
    case Stage::kSection:
    case Stage::kAfter:
      if (is_strict_ && role == Role::kMessageEnd) return Verdict::kUndecided;
      if (contains(kBegins, role) || is_of_turn) return Verdict::kEnd;
      if (role == Role::kSectionEnd) stage_ = Stage::kAfter;
      if (contains(kEnds, role)) return Verdict::kUndecided;
      if (is_strict_ ||
          (stage_ == Stage::kSection && format.calls()->has_marker(Role::kSectionEnd))) {
        return Verdict::kText;
      }
      content_begin_ = at_;
      return content(role);
    case Stage::kContent:
      if (contains(kBegins, role) || is_of_turn) return Verdict::kEnd;
      return content(role);
    case Stage::kAgain:
      if (role == Role::kCallEnd || role == Role::kKeyBegin) return Verdict::kText;
      stage_ = Stage::kContent;
      return Verdict::kUndecided;
    case Stage::kQuote:
    case Stage::kBracket:
      if (role == Role::kQuote) return Verdict::kText;
      if (role != Role::kCallEnd) return Verdict::kEnd;
      stage_ = Stage::kAfter;
      return Verdict::kUndecided;
    case Stage::kComma:
      return role == Role::kQuote ? Verdict::kEnd : Verdict::kText;
    case Stage::kKey:
    case Stage::kNever:
      return Verdict::kText;
  }
  return Verdict::kText;
}

ValueEnd::Verdict ValueEnd::read(const OutputFormat& format,
                                 std::u16string_view held,
                                 bool is_whole) {
  if (stage_ == Stage::kNever) return Verdict::kText;
  while (at_ < held.size()) {
    if (stage_ == Stage::kContent && at_ - content_begin_ > kMaxHeldSymbols) return Verdict::kEnd;
    const std::u16string_view rest = held.substr(at_);
    const auto [found, may_grow] = format.find(rest, looked_for());
    if (may_grow && !is_whole) return Verdict::kUndecided;
    if (may_grow && found == nullptr) break;
    at_ += found != nullptr ? found->symbols.size() : 1;
    // A control token that means nothing here is text.
    const char byte = rest[0] < kFirstSpecial ? static_cast<char>(rest[0]) : '\x7f';
    const Verdict verdict = found != nullptr ? step(format, found->role) : step(format, byte);
    if (verdict != Verdict::kUndecided) return verdict;
  }
  return is_whole ? Verdict::kEnd : Verdict::kUndecided;
}

}  // namespace sluice
