// SPDX-License-Identifier: Apache-2.0
// Calls as a name followed by JSON: NAME[ARGS]{...}, with a section around them in some families.
// The JSON is passed on as the model writes it. A value; see call_reader.h.
#pragma once

#include <string>

#include "server/tools/call_reader.h"
#include "server/tools/json_text.h"

namespace sluice {

class NamedCall {
 public:
  // `role`: of the marker that was read, kSectionBegin or kCallBegin.
  NamedCall(Role role, const NamedCalls& form) : form_(form) {
    if (role == Role::kCallBegin) start_name();
  }

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    return {state_ == State::kArguments && span_.in_string() ? ValuePlace::kLiteral
                                                             : ValuePlace::kNone};
  }

 private:
  enum class State : uint8_t {
    kSection,  // in the section, between calls
    kType,     // the word before a name, not part of it
    kName,
    kId,
    kArgumentStart,
    kArguments,  // until their brackets are even
    kRaw,        // arguments without a bracket, until a marker
    kAfter,      // after arguments
  };

  Step begin(CallContext& context, State next);
  Step name_text(char c, CallContext& context);
  void start_name();

  NamedCalls form_;
  State state_ = State::kSection;
  bool had_call_ = false;
  bool has_arguments_ = false;
  JsonSpan span_;
  std::string type_;
  std::string name_;
  std::string id_;
};

}  // namespace sluice
