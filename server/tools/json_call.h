// SPDX-License-Identifier: Apache-2.0
// Calls as JSON: {"name": ..., "arguments": ...}, alone, in an array, or with ';' between. The call
// begins when its name is whole; arguments are passed on as the model writes them, and are kept
// only if they precede the name. A value; see call_reader.h.
#pragma once

#include <cstdint>
#include <string>

#include "server/tools/call_reader.h"
#include "server/tools/json_text.h"

namespace sluice {

class JsonCall {
 public:
  JsonCall(Role /*role*/, const JsonCalls& form) : form_(form) {}

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    return {is_in_string() ? ValuePlace::kLiteral : ValuePlace::kNone};
  }

 private:
  enum class State : uint8_t {
    kStart,   // before the array or object
    kArray,   // between objects of the array
    kObject,  // before a key or the object's end
    kKey,
    kColon,
    kValue,  // before a value
    kName,
    kId,
    kArguments,
    kArgumentText,  // arguments that are a string
    kOther,         // a value that is ignored
    kBroken,        // a call that began; its rest is not JSON
    kAfter,         // after the last object or array
  };
  enum class Field : uint8_t { kName, kId, kArguments, kNested, kOther };

  [[nodiscard]] Field field_of_key() const;
  Step start(char c);
  Step object(char c, CallContext& context);
  Step key(char c);
  Step name(char c, CallContext& context);
  Step value(char c, CallContext& context);
  Step argument_text(char c, CallContext& context);
  Step end_object(CallContext& context);
  Step after(char c);
  Step after_value(JsonSpan::Place place, char c, CallContext& context);
  // False: no further call fits the answer, or too much is kept.
  bool begin(CallContext& context);
  bool give_arguments(std::string_view json, CallContext& context);
  Step broken(CallContext& context);
  void begin_object();
  [[nodiscard]] bool is_in_string() const;

  JsonCalls form_;
  State state_ = State::kStart;
  bool in_array_ = false;
  bool had_call_ = false;
  bool has_arguments_ = false;
  bool decides_text_ = false;  // the first visible character of arguments in a string is due
  bool has_keys_ = false;
  int32_t num_nested_ = 0;  // objects around the one that is read, inside the call's
  JsonSpan span_;
  JsonString string_;
  std::string key_;
  std::string name_;
  std::string id_;
  std::string kept_;  // arguments that preceded the name
};

}  // namespace sluice
