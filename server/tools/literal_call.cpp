// SPDX-License-Identifier: Apache-2.0
#include "server/tools/literal_call.h"

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"

namespace sluice {
namespace {

using Dialect = LiteralValue::Dialect;
using Place = LiteralValue::Place;

bool begins_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}

bool continues_name(char c) {
  return begins_name(c) || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

constexpr std::string_view kCallWord = "call:";  // before Gemma's names

}  // namespace

Roles LiteralCall::live() const {
  if (state_ == State::kValue && value_.in_string()) {
    return dialect_ == Dialect::kGemma ? roles(Role::kQuote) : roles();
  }
  return kBegins | kEnds | roles(Role::kQuote);
}

void LiteralCall::finish_call(CallContext& context) {
  if (state_ == State::kValue) value_.close(arguments_, context.out);
  arguments_.end(context.out);
  context.out.end_call();
}

Step LiteralCall::broken(CallContext& context) {
  if (!context.is_open()) return Step::kFail;
  if (!context.has_end_marker()) {
    finish_call(context);
    return Step::kDoneBefore;
  }
  if (state_ == State::kValue) value_.close(arguments_, context.out);
  state_ = State::kBroken;
  return Step::kGoOn;
}

Step LiteralCall::name(char c, CallContext& context) {
  const bool is_python = dialect_ == Dialect::kPython;
  if (c != (is_python ? '(' : '{')) {
    if (keep(c, name_) == Step::kFail) return Step::kFail;
    const bool fits = is_python || name_.size() > kCallWord.size() ? continues_name(c)
                                                                   : kCallWord.starts_with(name_);
    return fits ? Step::kGoOn : Step::kFail;
  }
  if (!is_python && name_.size() <= kCallWord.size()) return Step::kFail;
  std::string_view name = std::string_view(name_).substr(is_python ? 0 : kCallWord.size());
  constexpr std::string_view kCallMethod = ".call";
  if (needs_call_) {
    if (!name.ends_with(kCallMethod) || name.size() == kCallMethod.size()) return Step::kFail;
    name.remove_suffix(kCallMethod.size());
  }
  if (!context.begin_call(name, {})) return Step::kFail;
  had_call_ = true;
  arguments_ = ArgumentWriter();
  state_ = State::kParameter;
  return Step::kGoOn;
}

Step LiteralCall::parameter(char c, CallContext& context) {
  if (is_json_space(c) || c == ',') return Step::kGoOn;
  if (c == (dialect_ == Dialect::kPython ? ')' : '}')) {
    finish_call(context);
    state_ = State::kAfter;
    return Step::kGoOn;
  }
  if (!begins_name(c) && dialect_ == Dialect::kPython) return broken(context);
  state_ = State::kKey;
  key_ = c;
  return Step::kGoOn;
}

Step LiteralCall::key(char c, CallContext& context) {
  const bool is_python = dialect_ == Dialect::kPython;
  if (c == (is_python ? '=' : ':')) {
    while (is_json_space(key_.back())) key_.pop_back();
    arguments_.begin_value(key_, context.out);
    value_ = LiteralValue(dialect_);
    state_ = State::kValue;
    return Step::kGoOn;
  }
  const bool fits =
      is_json_space(c) ||
      (is_python ? continues_name(c) && !is_json_space(key_.back()) : c != '{' && c != '}');
  if (!fits || key_.size() > kMaxBufferedBytes) return broken(context);
  key_ += c;
  return Step::kGoOn;
}

Step LiteralCall::value(Place place, char c, CallContext& context) {
  switch (place) {
    case Place::kInside:
      return Step::kGoOn;
    case Place::kLast:
      state_ = State::kParameter;
      return Step::kGoOn;
    case Place::kAfter:
      state_ = State::kParameter;
      return parameter(c, context);
    case Place::kBroken:
      return broken(context);
  }
  return Step::kFail;
}

// Between the calls of a list, or after it.
Step LiteralCall::after(char c, CallContext& context) {
  if (is_json_space(c)) return Step::kGoOn;
  const bool goes_on = in_list_ || is_lines_ || dialect_ == Dialect::kGemma;
  if (c == ',' && goes_on) return Step::kGoOn;
  if (c == ']' && in_list_) {
    state_ = State::kEnded;
    return Step::kGoOn;
  }
  if (!goes_on || !begins_name(c)) return Step::kDoneBefore;
  state_ = State::kName;
  name_.clear();
  return name(c, context);
}

Step LiteralCall::text(char c, CallContext& context) {
  switch (state_) {
    case State::kStart:
      if (is_json_space(c)) return Step::kGoOn;
      if (c == '[' && !in_list_ && dialect_ == Dialect::kPython) {
        in_list_ = true;
        return Step::kGoOn;
      }
      if (!begins_name(c)) return Step::kFail;
      state_ = State::kName;
      name_.clear();
      return name(c, context);
    case State::kName:
      return name(c, context);
    case State::kParameter:
      return parameter(c, context);
    case State::kKey:
      return key(c, context);
    case State::kValue:
      return value(value_.feed(c, arguments_, context.out), c, context);
    case State::kAfter:
      return after(c, context);
    case State::kBroken:
      return Step::kGoOn;
    case State::kEnded:
      return is_json_space(c) ? Step::kGoOn : Step::kDoneBefore;
  }
  return Step::kFail;
}

Step LiteralCall::marker(Role role, CallContext& context) {
  if (role == Role::kQuote) {
    if (state_ == State::kValue) {
      return value(value_.quote(arguments_, context.out), '\0', context);
    }
    return context.is_open() ? Step::kGoOn : Step::kFail;
  }
  const bool is_end = contains(kEnds, role);
  if (context.is_open()) {
    finish_call(context);
  } else if (state_ == State::kName || !had_call_) {
    return is_end ? Step::kFail : Step::kFailBefore;
  }
  return is_end ? Step::kDone : Step::kDoneBefore;
}

Step LiteralCall::end(CallContext& context) {
  if (context.is_open()) {
    finish_call(context);
    return Step::kDoneBefore;
  }
  return had_call_ && state_ != State::kName ? Step::kDoneBefore : Step::kFailBefore;
}

}  // namespace sluice
