// SPDX-License-Identifier: Apache-2.0
#include "server/tools/tagged_call.h"

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"
#include "server/tools/plain_value.h"

namespace sluice {

Roles TaggedCall::live() const {
  switch (state_) {
    case State::kSection:
      return kBegins | kEnds;
    case State::kType:
      return kEnds | roles(Role::kNameEnd);
    case State::kName:
      return kEnds | roles(Role::kNameEnd, Role::kKeyBegin);
    case State::kCall:
      return kBegins | kEnds | roles(Role::kKeyBegin);
    case State::kKey:
      return roles(Role::kKeyEnd, Role::kKeyEndString, Role::kKeyEndJson, Role::kKeyEndRaw);
    case State::kAfterKey:
      return kEnds | roles(Role::kValueBegin, Role::kKeyBegin);
    case State::kValue:
      return roles(is_raw_ ? Role::kRawEnd : Role::kValueEnd);
    default:
      return roles();
  }
}

void TaggedCall::begin_value(JsonTypes types, CallContext& context) {
  state_ = State::kValue;
  types_ = types;
  is_string_ = types == kJsonString;
  is_raw_ = false;
  at_value_start_ = true;
  holds_newline_ = false;
  value_.clear();
  arguments_.begin_value(
      form_.strips_newlines ? without_space_around(key_) : std::string_view(key_), context.out);
  if (is_string_) arguments_.raw("\"", context.out);
}

void TaggedCall::value_text(char c, CallContext& context) {
  const bool was_at_start = at_value_start_;
  at_value_start_ = false;
  if (form_.strips_newlines) {
    if (was_at_start && c == '\n') return;
    if (holds_newline_) {
      holds_newline_ = false;
      if (is_string_) {
        arguments_.escaped("\n", context.out);
      } else {
        value_ += '\n';
      }
    }
    if (c == '\n') {
      holds_newline_ = true;
      return;
    }
  }
  add_to_value(c, context);
}

void TaggedCall::end_value(CallContext& context) {
  if (state_ != State::kValue) return;
  if (is_string_) {
    arguments_.raw("\"", context.out);
  } else {
    write_plain(value_, types_, arguments_, context.out);
  }
  state_ = State::kCall;
}

Step TaggedCall::text(char c, CallContext& context) {
  switch (state_) {
    case State::kCall:
    case State::kAfterKey:
      return Step::kGoOn;
    case State::kKey:
      if (key_.size() < kMaxBufferedBytes) key_ += c;
      return Step::kGoOn;
    case State::kValue:
      value_text(c, context);
      return Step::kGoOn;
    default:
      return outer_text(c, context);
  }
}

Step TaggedCall::marker(Role role, CallContext& context) {
  if (role == Role::kFence) return Step::kGoOn;  // between a call's type and its name
  const Step step = end_name(role, context);
  if (step != Step::kGoOn) return step;
  switch (role) {
    case Role::kNameEnd:
      if (state_ == State::kType) state_ = State::kName;
      return Step::kGoOn;
    case Role::kKeyBegin:
      if (!context.is_open()) return Step::kFailBefore;
      end_value(context);
      state_ = State::kKey;
      key_.clear();
      return Step::kGoOn;
    case Role::kKeyEnd:
      if (state_ != State::kKey) return Step::kGoOn;
      if (context.family.has_marker(Role::kValueBegin)) {
        state_ = State::kAfterKey;
      } else {
        begin_value(context.types_of(name_, without_space_around(key_)), context);
      }
      return Step::kGoOn;
    case Role::kKeyEndString:
    case Role::kKeyEndJson:
      if (state_ != State::kKey) return Step::kGoOn;
      begin_value(role == Role::kKeyEndString ? kJsonString : kJsonAny, context);
      return Step::kGoOn;
    case Role::kKeyEndRaw:
      if (state_ != State::kKey) return Step::kGoOn;
      begin_value(kJsonString, context);
      is_raw_ = true;
      return Step::kGoOn;
    case Role::kValueBegin:
      if (state_ == State::kAfterKey)
        begin_value(context.types_of(name_, without_space_around(key_)), context);
      return Step::kGoOn;
    case Role::kValueEnd:
    case Role::kRawEnd:
      end_value(context);
      return Step::kGoOn;
    default:
      end_value(context);
      return outer_marker(role, context);
  }
}

Step TaggedCall::end(CallContext& context) {
  end_value(context);
  return end_calls(context);
}

}  // namespace sluice
