// SPDX-License-Identifier: Apache-2.0
#include "server/tools/turn_tags.h"

#include "server/tools/json_text.h"
#include "server/tools/parse_limits.h"
#include "server/tools/plain_value.h"

namespace sluice {
namespace {

constexpr size_t kMaxTagBytes = 4096;

// The value of `key="..."` in a tag; empty: none.
std::string_view attribute(std::string_view tag, std::string_view key) {
  for (size_t at = tag.find(key); at != std::string_view::npos; at = tag.find(key, at + 1)) {
    const std::string_view behind = tag.substr(at + key.size());
    if (at == 0 || tag[at - 1] != ' ' || !behind.starts_with("=\"")) continue;
    return behind.substr(2, behind.find('"', 2) - 2);
  }
  return {};
}

}  // namespace

Roles TurnTags::live() const {
  return in_tag_ ? roles(Role::kHeaderEnd) : roles(Role::kHeaderBegin, Role::kMessageEnd);
}

void TurnTags::end_argument(CallContext& context) {
  if (is_string_) {
    arguments_.raw("\"", context.out);
  } else {
    write_plain(value_, types_, arguments_, context.out);
  }
  place_ = Place::kCall;
}

void TurnTags::end_call(CallContext& context) {
  if (place_ == Place::kArgument) end_argument(context);
  arguments_.end(context.out);
  context.out.end_call();
  place_ = Place::kTools;
}

void TurnTags::open(std::string_view name, CallContext& context) {
  if (name == "argument" && place_ == Place::kCall) {
    const std::string_view key = attribute(tag_, "key");
    const std::string_view type = attribute(tag_, "type");
    types_ = type.empty()       ? context.types_of(name_, key)
             : type == "string" ? kJsonString
                                : kJsonAny;
    is_string_ = types_ == kJsonString;
    value_.clear();
    place_ = Place::kArgument;
    arguments_.begin_value(key, context.out);
    if (is_string_) arguments_.raw("\"", context.out);
    return;
  }
  if (context.out.call_is_open()) end_call(context);
  if (name == "think") {
    place_ = Place::kThink;
  } else if (name == "tools" && parse_calls_) {
    place_ = Place::kTools;
  } else if (name == "call" && parse_calls_) {
    name_ = attribute(tag_, "tool");
    arguments_ = ArgumentWriter();
    const bool begins = !name_.empty() && context.begin_call(name_, {});
    place_ = begins ? Place::kCall : Place::kText;
  } else {
    place_ = Place::kText;
  }
}

void TurnTags::close(std::string_view name, CallContext& context) {
  if (name == "argument") {
    if (place_ == Place::kArgument) end_argument(context);
    return;
  }
  if (context.out.call_is_open()) end_call(context);
  if (name != "call") place_ = Place::kText;
}

void TurnTags::end_tag(CallContext& context) {
  in_tag_ = false;
  const std::string name = tag_.substr(0, tag_.find(' '));
  if (is_closing_) {
    close(name, context);
  } else {
    open(name, context);
  }
}

Step TurnTags::text(char c, CallContext& context) {
  if (in_tag_) {
    tag_ += c;
    if (tag_.size() <= kMaxTagBytes) return Step::kGoOn;
    in_tag_ = false;
    if (context.out.call_is_open()) end_call(context);
    place_ = Place::kText;
    context.out.text(PieceKind::kContent, tag_);
    return Step::kGoOn;
  }
  switch (place_) {
    case Place::kText:
      context.out.text(PieceKind::kContent, {&c, 1});
      break;
    case Place::kThink:
      context.out.text(PieceKind::kReasoning, {&c, 1});
      break;
    case Place::kTools:
      if (!is_json_space(c)) context.out.text(PieceKind::kContent, {&c, 1});
      break;
    case Place::kCall:
      break;
    case Place::kArgument:
      if (is_string_) {
        arguments_.escaped({&c, 1}, context.out);
        break;
      }
      value_ += c;
      if (value_.size() <= kMaxBufferedBytes) break;
      is_string_ = true;
      arguments_.raw("\"", context.out);
      arguments_.escaped(value_, context.out);
      break;
  }
  return Step::kGoOn;
}

Step TurnTags::marker(Role role, CallContext& context) {
  if (role == Role::kHeaderEnd) {
    if (in_tag_) end_tag(context);
    return Step::kGoOn;
  }
  in_tag_ = true;
  is_closing_ = role == Role::kMessageEnd;
  tag_.clear();
  return Step::kGoOn;
}

Step TurnTags::end(CallContext& context) {
  if (context.out.call_is_open()) end_call(context);
  if (in_tag_ && place_ == Place::kText) context.out.text(PieceKind::kContent, tag_);
  in_tag_ = false;
  return Step::kGoOn;
}

}  // namespace sluice
