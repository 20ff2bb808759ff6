// SPDX-License-Identifier: Apache-2.0
#include "server/tools/json_call.h"

#include "server/tools/parse_limits.h"

namespace sluice {

Roles JsonCall::live() const {
  switch (state_) {
    case State::kKey:
    case State::kName:
    case State::kId:
    case State::kArgumentText:
      return roles();
    case State::kArguments:
    case State::kOther:
      if (span_.in_string()) return roles();
      break;
    case State::kStart:
    case State::kAfter:
      return kBegins | kEnds | roles(Role::kFence);
    default:
      break;
  }
  return kBegins | kEnds;
}

bool JsonCall::is_in_string() const {
  const bool is_span = state_ == State::kArguments || state_ == State::kOther;
  return state_ == State::kArgumentText || (is_span && span_.in_string());
}

void JsonCall::begin_object() {
  state_ = State::kObject;
  has_arguments_ = has_keys_ = false;
  num_nested_ = 0;
  name_.clear();
  id_.clear();
  kept_.clear();
}

bool JsonCall::begin(CallContext& context) {
  if (context.is_open()) return true;
  if (name_.empty() || !context.begin_call(name_, id_)) return false;
  had_call_ = true;
  context.out.arguments(kept_);
  return true;
}

bool JsonCall::give_arguments(std::string_view json, CallContext& context) {
  if (context.is_open()) {
    context.out.arguments(json);
    return true;
  }
  kept_ += json;
  return kept_.size() <= kMaxBufferedBytes;
}

// Text after a call's name that is not JSON belongs to the call, up to its marker.
Step JsonCall::broken(CallContext& context) {
  if (!context.is_open()) return Step::kFail;
  if (!context.has_end_marker()) {
    context.end_call(has_arguments_);
    return Step::kDoneBefore;
  }
  state_ = State::kBroken;
  return Step::kGoOn;
}

JsonCall::Field JsonCall::field_of_key() const {
  if (form_.key_is_name) return Field::kArguments;
  if (key_ == "name" || key_ == "tool_name") return Field::kName;
  if (key_ == "arguments" || key_ == "parameters") return Field::kArguments;
  if (key_ == "id" || key_ == "tool_call_id") return Field::kId;
  return key_ == "function" ? Field::kNested : Field::kOther;
}

Step JsonCall::start(char c) {
  if (is_json_space(c)) return Step::kGoOn;
  if (c == '{') {
    begin_object();
    return Step::kGoOn;
  }
  if (form_.or_code) return had_call_ ? Step::kDoneBefore : Step::kCode;
  if (c != '[' || in_array_) return Step::kFail;
  in_array_ = true;
  state_ = State::kArray;
  return Step::kGoOn;
}

Step JsonCall::object(char c, CallContext& context) {
  if (is_json_space(c) || c == ',') return Step::kGoOn;
  if (c == '}') return end_object(context);
  if (c != '"') return broken(context);
  state_ = State::kKey;
  key_.clear();
  string_ = JsonString();
  return Step::kGoOn;
}

Step JsonCall::end_object(CallContext& context) {
  if (num_nested_ > 0) {
    --num_nested_;
    return Step::kGoOn;
  }
  if (!context.is_open()) {
    // A tool that says that none is called.
    if (name_.empty() || name_ != form_.no_call_name) return Step::kFail;
  } else {
    context.end_call(has_arguments_);
  }
  state_ = in_array_ ? State::kArray : State::kAfter;
  return Step::kGoOn;
}

Step JsonCall::value(char c, CallContext& context) {
  if (is_json_space(c)) return Step::kGoOn;
  const Field field = field_of_key();
  span_ = JsonSpan();
  string_ = JsonString();
  if (form_.key_is_name) {
    name_ = key_;
    if (!begin(context)) return Step::kFail;
  }
  if (field == Field::kNested && c == '{') {
    ++num_nested_;
    state_ = State::kObject;
    return num_nested_ > static_cast<int32_t>(kMaxArgumentDepth) ? Step::kFail : Step::kGoOn;
  }
  if ((field == Field::kName || field == Field::kId) && c == '"') {
    state_ = field == Field::kName ? State::kName : State::kId;
    if (field == Field::kName && !context.is_open()) name_.clear();
    return Step::kGoOn;
  }
  if (field != Field::kArguments || has_arguments_) {
    state_ = State::kOther;
    return after_value(span_.feed(c), c, context);
  }
  if (c == '"') {
    state_ = State::kArgumentText;
    decides_text_ = true;
    return Step::kGoOn;
  }
  if (c == 'n') {  // null: no arguments
    state_ = State::kOther;
    return after_value(span_.feed(c), c, context);
  }
  state_ = State::kArguments;
  const JsonSpan::Place place = span_.feed(c);
  if (place == JsonSpan::Place::kAfter) return after_value(place, c, context);
  has_arguments_ = true;
  if (!give_arguments({&c, 1}, context)) return Step::kFail;
  return after_value(place, c, context);
}

// Handles a byte of a value that is skipped or already written.
Step JsonCall::after_value(JsonSpan::Place place, char c, CallContext& context) {
  if (place == JsonSpan::Place::kInside) return Step::kGoOn;
  state_ = State::kObject;
  return place == JsonSpan::Place::kAfter ? object(c, context) : Step::kGoOn;
}

// A string that spells an object is that object; one that spells nothing is {}; others stay
// strings.
Step JsonCall::argument_text(char c, CallContext& context) {
  std::string decoded;
  const bool is_last = string_.feed(c, decoded);
  if (decides_text_) {
    for (size_t i = 0; i < decoded.size() && decides_text_; ++i) {
      if (is_json_space(decoded[i])) continue;
      decides_text_ = false;
      has_arguments_ = true;
      if (decoded[i] == '{') {
        decoded.erase(0, i);
        return give_arguments(decoded, context) ? Step::kGoOn : Step::kFail;
      }
      // It stays a string and is read as one.
      state_ = State::kArguments;
      span_ = JsonSpan();
      (void)span_.feed('"');
      std::string json = "\"";
      append_json_escaped(decoded, json);
      return give_arguments(json, context) ? Step::kGoOn : Step::kFail;
    }
    if (is_last) state_ = State::kObject;
    return Step::kGoOn;
  }
  if (is_last) state_ = State::kObject;
  return give_arguments(decoded, context) ? Step::kGoOn : Step::kFail;
}

Step JsonCall::after(char c) {
  if (is_json_space(c)) return Step::kGoOn;
  if (form_.or_code) {
    if (c != ';') return Step::kDoneBefore;
    state_ = State::kStart;
    return Step::kGoOn;
  }
  if (c != '{' || in_array_) return Step::kDoneBefore;
  begin_object();
  return Step::kGoOn;
}

Step JsonCall::key(char c) {
  if (key_.size() > kMaxBufferedBytes) return Step::kFail;
  if (!string_.feed(c, key_)) return Step::kGoOn;
  const bool is_known = field_of_key() != Field::kOther || key_ == "type";
  const bool is_bare = form_.or_code;
  if (is_bare && !has_keys_ && !is_known) return Step::kFail;
  has_keys_ = true;
  state_ = State::kColon;
  return Step::kGoOn;
}

Step JsonCall::name(char c, CallContext& context) {
  std::string& text = context.is_open() ? key_ : name_;  // a second name is none
  if (text.size() > kMaxBufferedBytes) return Step::kFail;
  if (!string_.feed(c, text)) return Step::kGoOn;
  state_ = State::kObject;
  if (!name_.empty() && name_ == form_.no_call_name) return Step::kGoOn;
  return begin(context) ? Step::kGoOn : Step::kFail;
}

Step JsonCall::text(char c, CallContext& context) {
  switch (state_) {
    case State::kStart:
      return start(c);
    case State::kArray:
      if (is_json_space(c) || c == ',') return Step::kGoOn;
      if (c == '{') {
        begin_object();
        return Step::kGoOn;
      }
      if (c == ']') {
        state_ = State::kAfter;
        return Step::kGoOn;
      }
      return had_call_ ? Step::kDoneBefore : Step::kFail;
    case State::kObject:
      return object(c, context);
    case State::kKey:
      return key(c);
    case State::kColon:
      if (is_json_space(c)) return Step::kGoOn;
      if (c != ':') return broken(context);
      state_ = State::kValue;
      return Step::kGoOn;
    case State::kValue:
      return value(c, context);
    case State::kName:
      return name(c, context);
    case State::kId:
      if (id_.size() > kMaxBufferedBytes) return Step::kFail;
      if (string_.feed(c, id_)) state_ = State::kObject;
      return Step::kGoOn;
    case State::kArgumentText:
      return argument_text(c, context);
    case State::kArguments: {
      const JsonSpan::Place place = span_.feed(c);
      if (place == JsonSpan::Place::kAfter) return after_value(place, c, context);
      if (!give_arguments({&c, 1}, context)) return Step::kFail;
      return after_value(place, c, context);
    }
    case State::kOther:
      return after_value(span_.feed(c), c, context);
    case State::kBroken:
      return Step::kGoOn;
    case State::kAfter:
      return after(c);
  }
  return Step::kFail;
}

Step JsonCall::marker(Role role, CallContext& context) {
  const bool is_end = contains(kEnds, role);
  if (state_ == State::kStart || state_ == State::kAfter || state_ == State::kArray) {
    if (role == Role::kFence) return Step::kGoOn;
    if (contains(kBegins, role)) {
      if (state_ == State::kStart) return had_call_ ? Step::kGoOn : Step::kFailBefore;
      state_ = State::kStart;
      in_array_ = false;
      return Step::kGoOn;
    }
    const bool is_nothing = state_ == State::kStart && !had_call_;
    if (!is_end) return is_nothing ? Step::kFailBefore : Step::kDoneBefore;
    return is_nothing ? Step::kFail : Step::kDone;
  }
  if (!context.is_open()) return is_end ? Step::kFail : Step::kFailBefore;
  context.end_call(has_arguments_);
  return is_end ? Step::kDone : Step::kDoneBefore;
}

Step JsonCall::end(CallContext& context) {
  if (context.is_open()) {
    context.end_call(has_arguments_);
    return Step::kDoneBefore;
  }
  const bool is_between = state_ == State::kStart || state_ == State::kArray;
  return state_ == State::kAfter || (is_between && had_call_) ? Step::kDoneBefore
                                                              : Step::kFailBefore;
}

}  // namespace sluice
