// SPDX-License-Identifier: Apache-2.0
// Calls in tags: a name, then keys with values as plain text, from which the arguments' JSON is
// written with the types of the tool's schema. Values that can only be strings go out as they come,
// others when they are whole. A value ends at its first end marker. A value type; see
// call_reader.h.
#pragma once

#include <string>

#include "server/parse/argument_writer.h"
#include "server/parse/call_reader.h"

namespace sluice {

class TaggedCall {
 public:
  TaggedCall(Role role, const CallFamily& family);

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

 private:
  enum class State : uint8_t {
    kSection,  // between calls
    kType,     // text before the name that is none of it
    kName,
    kCall,  // between parameters
    kKey,
    kKeyBehind,  // before the value's begin marker
    kValue,
  };

  void start_call(const CallFamily& family);
  Step begin(CallContext& context);
  void begin_value(JsonTypes types, CallContext& context);
  void value_text(char c, CallContext& context);
  void end_value(CallContext& context);
  void finish_call(CallContext& context);

  State state_ = State::kSection;
  bool had_call_ = false;
  bool is_open_ = false;
  bool is_string_ = false;  // the value goes out as it comes
  bool is_raw_ = false;     // it ends at kRawEnd
  bool at_value_start_ = false;
  bool holds_newline_ = false;  // of a string, which may be the one before the end marker
  JsonTypes types_ = kJsonAny;
  std::string name_;
  std::string key_;
  std::string value_;
  ArgumentWriter arguments_;
};

}  // namespace sluice
