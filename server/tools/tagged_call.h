// SPDX-License-Identifier: Apache-2.0
// Calls in tags: a name, then keys with values as plain text, from which the arguments' JSON is
// written with the types of the tool's schema. Values that can only be strings are written as they
// arrive, others when they are whole. A value type; see call_reader.h.
#pragma once

#include <string>

#include "server/tools/call_reader.h"
#include "server/tools/call_tags.h"

namespace sluice {

class TaggedCall : CallTags {
 public:
  TaggedCall(Role role, const TaggedCalls& form) : CallTags(role, form) {}

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    // A number holds no markup.
    const bool may_hold = (types_ & (kJsonString | kJsonObject | kJsonArray)) != 0;
    return {state_ == State::kValue && may_hold ? ValuePlace::kTagged : ValuePlace::kNone};
  }

 private:
  void begin_value(JsonTypes types, CallContext& context);
  void value_text(char c, CallContext& context);
  void end_value(CallContext& context);

  bool is_raw_ = false;  // the value ends at kRawEnd
  bool at_value_start_ = false;
  bool holds_newline_ = false;  // of a string, which may be the one before the end marker
  JsonTypes types_ = kJsonAny;
  std::string key_;
};

}  // namespace sluice
