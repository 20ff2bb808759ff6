// SPDX-License-Identifier: Apache-2.0
#include "server/tools/element_call.h"

#include <string_view>

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"
#include "server/tools/plain_value.h"

namespace sluice {
namespace {

constexpr std::string_view kItem = "item";

bool allows_only(JsonTypes types, JsonTypes one, JsonTypes other) {
  return (types & one) != 0 && (types & other) == 0;
}

}  // namespace

Roles ElementCall::live() const {
  switch (state_) {
    case State::kSection:
      return kBegins | kEnds;
    case State::kName:
      return kEnds | roles(Role::kNameEnd);
    case State::kCall:
      return kEnds | roles(Role::kKeyBegin, Role::kValueEnd, Role::kCallBegin);
    case State::kKey:
    case State::kEndTag:
      return roles(Role::kKeyEnd);
    case State::kValue:
      return kEnds | roles(Role::kValueEnd) | (is_string_ ? roles() : roles(Role::kKeyBegin));
    default:
      return roles();
  }
}

void ElementCall::begin_element(CallContext& context) {
  const size_t outer_path_size = path_.size();
  const bool is_item = !elements_.empty();
  if (!is_item) {
    path_ = tag_;
    arguments_.begin_value(tag_, context.out);
  } else {
    Element& outer = elements_.back();
    if (outer.holds_elements) {
      arguments_.raw(", ", context.out);
    } else {
      const bool is_object = allows_only(outer.types, kJsonObject, kJsonArray);
      outer.holds_elements = true;
      outer.is_array =
          allows_only(outer.types, kJsonArray, kJsonObject) || (!is_object && tag_ == kItem);
      arguments_.raw(outer.is_array ? "[" : "{", context.out);
    }
    path_ += ToolSchemas::kPathSeparator;
    if (!outer.is_array) {
      path_ += tag_;
      arguments_.raw("\"", context.out);
      arguments_.escaped(tag_, context.out);
      arguments_.raw("\": ", context.out);
    }
  }
  elements_.push_back({tag_, outer_path_size, context.types_of(name_, path_)});
  is_string_ = elements_.back().types == kJsonString;
  if (is_string_) arguments_.raw("\"", context.out);
  value_.clear();
  state_ = State::kValue;
}

void ElementCall::end_element(CallContext& context) {
  const Element element = elements_.back();
  const bool is_empty = without_space_around(value_).empty() && (element.types & kJsonString) == 0;
  if (element.holds_elements) {
    arguments_.raw(element.is_array ? "]" : "}", context.out);
  } else if (is_string_) {
    arguments_.raw("\"", context.out);
  } else if (is_empty && (element.types & kJsonArray) != 0) {
    arguments_.raw("[]", context.out);
  } else if (is_empty && (element.types & kJsonObject) != 0) {
    arguments_.raw("{}", context.out);
  } else {
    write_plain(value_, element.types, arguments_, context.out);
  }
  path_.resize(element.outer_path_size);
  elements_.pop_back();
  value_.clear();
  is_string_ = false;
  state_ = elements_.empty() ? State::kCall : State::kValue;
}

void ElementCall::end_elements(CallContext& context) {
  while (!elements_.empty()) end_element(context);
}

Step ElementCall::text(char c, CallContext& context) {
  switch (state_) {
    case State::kCall:
      return Step::kGoOn;
    case State::kKey:
    case State::kEndTag:
      if (tag_.size() < kMaxBufferedBytes) tag_ += c;
      return Step::kGoOn;
    case State::kValue:
      if (is_string_ || !elements_.back().holds_elements) add_to_value(c, context);
      return Step::kGoOn;
    default:
      return outer_text(c, context);
  }
}

Step ElementCall::marker(Role role, CallContext& context) {
  const Step step = end_name(role, context);
  if (step != Step::kGoOn) return step;
  switch (role) {
    case Role::kNameEnd:
      return Step::kGoOn;
    case Role::kKeyBegin:
      if (!context.is_open() || elements_.size() == kMaxArgumentDepth) return Step::kGoOn;
      state_ = State::kKey;
      tag_.clear();
      return Step::kGoOn;
    case Role::kKeyEnd:
      if (state_ == State::kKey) begin_element(context);
      if (state_ == State::kEndTag && !elements_.empty()) end_element(context);
      if (state_ == State::kEndTag) state_ = State::kCall;
      return Step::kGoOn;
    case Role::kValueEnd:
      if (!context.is_open()) return Step::kGoOn;
      state_ = State::kEndTag;
      tag_.clear();
      return Step::kGoOn;
    default:
      end_elements(context);
      return outer_marker(role, context);
  }
}

Step ElementCall::end(CallContext& context) {
  end_elements(context);
  return end_calls(context);
}

}  // namespace sluice
