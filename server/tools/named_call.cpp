// SPDX-License-Identifier: Apache-2.0
#include "server/tools/named_call.h"

namespace sluice {
namespace {

// "functions.NAME:IDX" to NAME.
std::string_view name_of_header(std::string_view header) {
  constexpr std::string_view kPrefix = "functions.";
  const size_t colon = header.rfind(':');
  if (colon != std::string_view::npos) header = header.substr(0, colon);
  if (header.starts_with(kPrefix)) header.remove_prefix(kPrefix.size());
  return header;
}

}  // namespace

Roles NamedCall::live() const {
  constexpr Roles kOutside = kBegins | kEnds;
  switch (state_) {
    case State::kType:
    case State::kName:
    case State::kId:
      return kOutside | roles(Role::kNameEnd, Role::kIdBegin);
    case State::kArguments:
      return span_.in_string() ? roles() : kOutside;
    case State::kArgumentStart:
    case State::kAfter:
      return kOutside | roles(Role::kFence, Role::kNameEnd);
    default:
      return kOutside;
  }
}

Step NamedCall::begin(CallContext& context, State next) {
  const std::string header(without_space_around(name_));
  std::string_view name = header;
  if (form_.header == NamedCalls::Header::kNameAndIdx) {
    id_ = header;
    name = name_of_header(header);
    const bool is_known = context.tools == nullptr || context.tools->has(name);
    const std::string_view meant = is_known ? std::string_view() : context.tools->meant_by(header);
    if (!meant.empty()) name = meant;
  }
  if (!name.empty() && name == form_.no_call_name) return Step::kDone;
  if (!context.parses_calls || !is_plain_name(name) ||
      !context.begin_call(name, without_space_around(id_)))
    return Step::kFail;
  had_call_ = true;
  has_arguments_ = false;
  state_ = next;
  return Step::kGoOn;
}

void NamedCall::start_name() {
  state_ = form_.has_two_parts() ? State::kType : State::kName;
  name_.clear();
  id_.clear();
}

Step NamedCall::name_text(char c, CallContext& context) {
  const bool is_empty = without_space_around(name_).empty();
  if (form_.or_json && is_empty && (c == '[' || c == '{')) return Step::kJson;
  const bool ends = form_.has_two_parts() || form_.name_ends_at_newline;
  if (ends && c == '\n' && !is_empty) {
    return begin(context, State::kArgumentStart);
  }
  // What was taken for a type is the name where the arguments follow it.
  const bool is_type_name =
      form_.header == NamedCalls::Header::kTypeAndName && is_empty && c == '{';
  if (is_type_name) name_ = type_;
  if (is_type_name || (form_.name_ends_at_brace && c == '{')) {
    const Step step = begin(context, State::kArgumentStart);
    return step == Step::kGoOn ? text(c, context) : step;
  }
  return keep(c, name_);
}

Step NamedCall::text(char c, CallContext& context) {
  switch (state_) {
    case State::kSection:
      if (is_json_space(c)) return Step::kGoOn;
      return had_call_ ? Step::kDoneBefore : Step::kFail;
    case State::kType:
      return keep(c, name_);
    case State::kName:
      return name_text(c, context);
    case State::kId:
      if (form_.name_ends_at_brace && c == '{') {
        const Step step = begin(context, State::kArgumentStart);
        return step == Step::kGoOn ? text(c, context) : step;
      }
      return keep(c, id_);
    case State::kArgumentStart:
      if (is_json_space(c)) return Step::kGoOn;
      span_ = JsonSpan();
      state_ = c == '{' || c == '[' ? State::kArguments : State::kRaw;
      if (state_ == State::kRaw && !context.has_end_marker()) {
        context.end_call(has_arguments_);
        return Step::kDoneBefore;
      }
      has_arguments_ = true;
      (void)span_.feed(c);
      context.out.arguments({&c, 1});
      return Step::kGoOn;
    case State::kArguments:
      context.out.arguments({&c, 1});
      if (span_.feed(c) != JsonSpan::Place::kLast) return Step::kGoOn;
      context.end_call(has_arguments_);
      state_ = State::kAfter;
      return Step::kGoOn;
    case State::kRaw:
      context.out.arguments({&c, 1});
      return Step::kGoOn;
    case State::kAfter:
      return is_json_space(c) ? Step::kGoOn : Step::kDoneBefore;
  }
  return Step::kFail;
}

Step NamedCall::marker(Role role, CallContext& context) {
  const bool names = state_ == State::kName || state_ == State::kId || state_ == State::kType;
  if (role == Role::kFence) return Step::kGoOn;
  if (role == Role::kNameEnd && names) {
    if (state_ != State::kType) return begin(context, State::kArgumentStart);
    type_ = name_;
    if (form_.header == NamedCalls::Header::kIdAndName) id_ = name_;
    name_.clear();
    state_ = State::kName;
    return Step::kGoOn;
  }
  if (role == Role::kIdBegin && state_ == State::kName && !without_space_around(name_).empty()) {
    state_ = State::kId;
    return Step::kGoOn;
  }
  const bool is_end = contains(kEnds, role);
  if (names) {
    // A call that ends at its name has no arguments; a type alone names nothing.
    if (!is_end || state_ == State::kType) return is_end ? Step::kFail : Step::kFailBefore;
    const Step step = begin(context, State::kAfter);
    if (step != Step::kGoOn) return step;
  }
  if (context.is_open()) context.end_call(has_arguments_);
  switch (role) {
    case Role::kCallBegin:
      start_name();
      return Step::kGoOn;
    case Role::kSectionBegin:
    case Role::kCallEnd:
      state_ = State::kSection;
      return Step::kGoOn;
    case Role::kSectionEnd:
      return had_call_ ? Step::kDone : Step::kFail;
    default:
      return had_call_ ? Step::kDoneBefore : Step::kFailBefore;
  }
}

Step NamedCall::end(CallContext& context) {
  if (context.is_open()) context.end_call(has_arguments_);
  const bool is_between = state_ == State::kSection || state_ == State::kAfter ||
                          state_ == State::kArguments || state_ == State::kRaw ||
                          state_ == State::kArgumentStart;
  return is_between && had_call_ ? Step::kDoneBefore : Step::kFailBefore;
}

}  // namespace sluice
