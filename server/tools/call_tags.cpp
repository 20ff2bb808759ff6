// SPDX-License-Identifier: Apache-2.0
#include "server/tools/call_tags.h"

#include "server/tools/json_text.h"

namespace sluice {

void CallTags::start_call() {
  state_ = form_.type_before_name ? State::kType : State::kName;
  name_.clear();
  arguments_ = ArgumentWriter();
}

Step CallTags::begin(CallContext& context) {
  const std::string name(without_space_around(name_));
  if (!is_plain_name(name) || !context.begin_call(name, {})) return Step::kFail;
  name_ = name;
  had_call_ = true;
  state_ = State::kCall;
  return Step::kGoOn;
}

void CallTags::finish_call(CallContext& context) {
  arguments_.end(context.out);
  context.out.end_call();
}

Step CallTags::outer_text(char c, CallContext& context) {
  if (state_ == State::kType) return Step::kGoOn;
  if (state_ == State::kSection) {
    if (is_json_space(c)) return Step::kGoOn;
    return had_call_ ? Step::kDoneBefore : Step::kFail;
  }
  if (form_.name_ends_at_newline && c == '\n' && !without_space_around(name_).empty()) {
    return begin(context);
  }
  if (!may_go_on(name_, c)) return Step::kFail;
  return keep(c, name_);
}

void CallTags::add_to_value(char c, CallContext& context) {
  if (is_string_) {
    arguments_.escaped({&c, 1}, context.out);
    return;
  }
  value_ += c;
  if (value_.size() <= kMaxBufferedBytes) return;
  // Too long to be looked at as a whole: a string, from here on.
  is_string_ = true;
  arguments_.raw("\"", context.out);
  arguments_.escaped(value_, context.out);
  value_.clear();
}

Step CallTags::end_name(Role role, CallContext& context) {
  return state_ == State::kName && !contains(kBegins, role) ? begin(context) : Step::kGoOn;
}

Step CallTags::outer_marker(Role role, CallContext& context) {
  const bool has_no_name = state_ == State::kName || state_ == State::kType;
  const bool begins_calls = contains(kBegins, role);
  if (has_no_name && (begins_calls || role == Role::kCallEnd)) return Step::kFailBefore;
  if (context.is_open()) finish_call(context);
  switch (role) {
    case Role::kCallBegin:
      start_call();
      return Step::kGoOn;
    case Role::kCallEnd:
    case Role::kSectionBegin:
      state_ = State::kSection;
      return Step::kGoOn;
    case Role::kSectionEnd:
      return had_call_ ? Step::kDone : Step::kFail;
    default:
      return had_call_ && !has_no_name ? Step::kDoneBefore : Step::kFailBefore;
  }
}

Step CallTags::end_calls(CallContext& context) {
  if (context.is_open()) {
    finish_call(context);
    return Step::kDoneBefore;
  }
  return state_ == State::kSection && had_call_ ? Step::kDoneBefore : Step::kFailBefore;
}

}  // namespace sluice
