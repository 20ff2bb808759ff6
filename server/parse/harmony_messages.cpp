// SPDX-License-Identifier: Apache-2.0
#include "server/parse/harmony_messages.h"

#include "server/parse/json_text.h"

namespace sluice {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";

std::string_view trimmed_left(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  return text;
}

std::string_view first_word(std::string_view text) {
  text = trimmed_left(text);
  return text.substr(0, text.find_first_of(" \n\r\t"));
}

// What "to=" names in a part of a header; empty: nothing.
std::string_view recipient_of(std::string_view text) {
  for (std::string_view rest = trimmed_left(text); !rest.empty();) {
    const std::string_view word = first_word(rest);
    if (word.starts_with(kRecipient)) return word.substr(kRecipient.size());
    rest = trimmed_left(rest.substr(word.size()));
  }
  return {};
}

// A header may go on like this before its channel: a role, then a recipient.
bool may_begin_header(std::string_view text) {
  const std::string_view word = trimmed_left(text);
  for (const std::string_view begin : {std::string_view("assistant"), kRecipient}) {
    if (begin.starts_with(word) || word.starts_with(begin)) return true;
  }
  return false;
}

}  // namespace

Roles HarmonyMessages::live() const {
  constexpr Roles kAny = roles(Role::kHeaderBegin, Role::kMessageEnd, Role::kChannel);
  return state_ == State::kHeader ? kAny | roles(Role::kHeaderEnd, Role::kConstrain) : kAny;
}

void HarmonyMessages::begin_output() {
  is_first_ = true;
  if (state_ == State::kHeader && part_ == Part::kRole) role_.clear();
}

void HarmonyMessages::header_is_text(CallContext& context) {
  state_ = State::kBody;
  kind_ = PieceKind::kContent;
  context.out.text(kind_, role_ + channel_);
}

void HarmonyMessages::begin_body(CallContext& context) {
  state_ = State::kBody;
  kind_ = first_word(channel_) == "analysis" ? PieceKind::kReasoning : PieceKind::kContent;
  std::string_view recipient = recipient_of(channel_);
  if (recipient.empty()) recipient = recipient_of(role_);
  const bool is_person =
      recipient.empty() || recipient == "user" || recipient == "assistant" || recipient == "all";
  if (is_person) return;
  if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
  if (!parse_calls_ || recipient.empty() || !context.out.begin_call(recipient, {})) {
    kind_ = PieceKind::kContent;
    return;
  }
  kind_ = PieceKind::kArguments;
  has_arguments_ = false;
}

void HarmonyMessages::end_message(CallContext& context) {
  if (state_ == State::kBody && kind_ == PieceKind::kArguments) {
    if (!has_arguments_) context.out.arguments("{}");
    context.out.end_call();
  }
  state_ = State::kOutside;
}

Step HarmonyMessages::text(char c, CallContext& context) {
  switch (state_) {
    case State::kHeader:
      if (part_ == Part::kConstrain) return Step::kGoOn;
      (part_ == Part::kRole ? role_ : channel_) += c;
      if (role_.size() + channel_.size() > kMaxHeaderBytes ||
          (is_first_ && part_ == Part::kRole && !may_begin_header(role_))) {
        header_is_text(context);
      }
      return Step::kGoOn;
    case State::kBody:
      if (kind_ != PieceKind::kArguments) {
        context.out.text(kind_, {&c, 1});
      } else if (has_arguments_ || !is_json_space(c)) {
        has_arguments_ = true;
        context.out.arguments({&c, 1});
      }
      return Step::kGoOn;
    case State::kOutside:
      if (!is_json_space(c)) context.out.text(PieceKind::kContent, {&c, 1});
      return Step::kGoOn;
  }
  return Step::kGoOn;
}

Step HarmonyMessages::marker(Role role, CallContext& context) {
  const bool in_header = state_ == State::kHeader;
  switch (role) {
    case Role::kHeaderEnd:
      if (in_header) begin_body(context);
      return Step::kGoOn;
    case Role::kConstrain:
      if (in_header) part_ = Part::kConstrain;
      return Step::kGoOn;
    case Role::kChannel:
      if (!in_header) {
        end_message(context);
        role_.clear();
      }
      channel_.clear();
      state_ = State::kHeader;
      part_ = Part::kChannel;
      return Step::kGoOn;
    case Role::kHeaderBegin:
      end_message(context);
      state_ = State::kHeader;
      part_ = Part::kRole;
      is_first_ = false;
      role_.clear();
      channel_.clear();
      return Step::kGoOn;
    default:
      end_message(context);
      return Step::kGoOn;
  }
}

Step HarmonyMessages::end(CallContext& context) {
  const bool is_role_alone =
      channel_.empty() && part_ == Part::kRole && first_word(role_) == "assistant";
  if (state_ == State::kHeader && is_first_ && part_ == Part::kRole && !is_role_alone) {
    header_is_text(context);
  }
  end_message(context);
  return Step::kGoOn;
}

}  // namespace sluice
