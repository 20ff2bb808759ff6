// SPDX-License-Identifier: Apache-2.0
// What TaggedCall and ElementCall share: sections, calls and names. They add the parameters, and
// close open ones before they pass on a marker or the end of calls.
#pragma once

#include <string>

#include "server/tools/argument_writer.h"
#include "server/tools/call_reader.h"

namespace sluice {

class CallTags {
 protected:
  enum class State : uint8_t {
    kSection,  // between calls
    kType,     // text before the name and not part of it
    kName,
    kCall,      // between parameters
    kKey,       // a parameter's key, or the tag that begins an element
    kAfterKey,  // before the value's begin marker
    kValue,
    kEndTag,  // in the tag that ends an element
  };

  // `role`: of the marker that was read, kSectionBegin or kCallBegin.
  CallTags(Role role, const TaggedCalls& form) : form_(form) {
    if (role == Role::kCallBegin) start_call();
  }

  // Text in kSection, kType or kName.
  Step outer_text(char c, CallContext& context);
  void add_to_value(char c, CallContext& context);
  // Begins the call whose name `role` ends, if it does.
  Step end_name(Role role, CallContext& context);
  // A marker of a call or a section, or one that ends the calls.
  Step outer_marker(Role role, CallContext& context);
  Step end_calls(CallContext& context);

  TaggedCalls form_;
  State state_ = State::kSection;
  bool is_string_ = false;  // the value is written as it arrives
  std::string name_;
  std::string value_;  // its text so far
  ArgumentWriter arguments_;

 private:
  void start_call();
  Step begin(CallContext& context);
  void finish_call(CallContext& context);

  bool had_call_ = false;
};

}  // namespace sluice
