// SPDX-License-Identifier: Apache-2.0
#include "server/tools/harmony_messages.h"

#include <algorithm>

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

constexpr size_t kMaxHeaderBytes = 512;
constexpr std::string_view kRecipient = "to=";
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kSelf = "self";  // recipient of thoughts where calls are tags

std::string_view text_of(Role role, const CallFamily& family) {
  const auto found = std::ranges::find(family.markers, role, &MarkerText::role);
  return found == family.markers.end() ? std::string_view() : found->text;
}

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

// A header may continue like this before its channel: a role, then a recipient.
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
  if (state_ == State::kHeader) return kAny | roles(Role::kHeaderEnd, Role::kConstrain);
  if (tags_) return kAny | tags_->live();
  return takes_tags() ? kAny | kBegins : kAny;
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
  if (has_tags_) {
    const bool is_thought = recipient == kSelf;
    kind_ = is_thought ? PieceKind::kReasoning : PieceKind::kContent;
    is_to_tool_ =
        !is_thought && !is_person && recipient != "commentary" && recipient != "developer";
    return;
  }
  if (is_person) return;
  if (recipient.starts_with(kFunctions)) recipient.remove_prefix(kFunctions.size());
  if (!parse_calls_ || recipient.empty() || !context.begin_call(recipient, {})) {
    kind_ = PieceKind::kContent;
    return;
  }
  kind_ = PieceKind::kArguments;
  span_ = JsonSpan();
  has_arguments_ = false;
}

void HarmonyMessages::leave_tags(bool is_content, CallContext& context) {
  tags_.reset();
  if (is_content) context.out.text(PieceKind::kContent, kept_);
  kept_.clear();
}

bool HarmonyMessages::take_tags_step(Step step, std::string_view text, CallContext& context) {
  if (context.out.call_is_open()) {
    kept_.clear();
  } else if (step == Step::kGoOn || step == Step::kFail) {
    kept_ += text;
  }
  if (step == Step::kGoOn && kept_.size() <= kMaxBufferedBytes) return true;
  const bool is_after = step == Step::kDoneBefore || step == Step::kFailBefore;
  leave_tags(step == Step::kGoOn || step == Step::kFail || step == Step::kFailBefore, context);
  return !is_after;
}

void HarmonyMessages::end_message(CallContext& context) {
  if (tags_) {
    const Step step = tags_->end(context);
    leave_tags(step == Step::kFail || step == Step::kFailBefore, context);
  }
  if (state_ == State::kBody && kind_ == PieceKind::kArguments) {
    context.end_call(has_arguments_);
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
      if (tags_ && take_tags_step(tags_->text(c, context), {&c, 1}, context)) return Step::kGoOn;
      if (kind_ != PieceKind::kArguments) {
        context.out.text(kind_, {&c, 1});
      } else if (has_arguments_ || !is_json_space(c)) {
        has_arguments_ = true;
        (void)span_.feed(c);
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
  const bool is_of_tags = role != Role::kHeaderBegin && role != Role::kMessageEnd;
  if (tags_ && is_of_tags) {
    const std::string_view text = text_of(role, context.family);
    if (take_tags_step(tags_->marker(role, context), text, context)) return Step::kGoOn;
  }
  if (takes_tags() && contains(kBegins, role)) {
    tags_.emplace(role, TaggedCalls{});
    kept_ = text_of(role, context.family);
    return Step::kGoOn;
  }
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
