// SPDX-License-Identifier: Apache-2.0
// Calls as code: [f(a=1), g(b="x")], one call a line, or Gemma's call:f{a:1}. The arguments' JSON
// is written from the literals. A value; see call_reader.h.
#pragma once

#include <string>

#include "server/tools/argument_writer.h"
#include "server/tools/call_reader.h"
#include "server/tools/literal_value.h"

namespace sluice {

class LiteralCall {
 public:
  LiteralCall(Role /*role*/, const PythonCalls& form)
      : dialect_(LiteralValue::Dialect::kPython), is_lines_(form.lines), value_(dialect_) {}

  LiteralCall(Role /*role*/, const GemmaCalls& /*form*/)
      : dialect_(LiteralValue::Dialect::kGemma), value_(dialect_) {}

  // Code that calls NAME as NAME.call(...), and nothing else.
  static LiteralCall code() {
    LiteralCall call(Role::kCallBegin, PythonCalls{});
    call.needs_call_ = true;
    return call;
  }

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    if (state_ != State::kValue || !value_.in_string()) return {};
    return {dialect_ == LiteralValue::Dialect::kGemma ? ValuePlace::kQuoted : ValuePlace::kLiteral};
  }

 private:
  enum class State : uint8_t {
    kStart,  // before a list or a name
    kName,
    kParameter,  // before a key, or the call's end
    kKey,
    kValue,
    kAfter,   // after a call
    kBroken,  // the rest of a call, up to its marker
    kEnded,   // after the list
  };

  Step name(char c, CallContext& context);
  Step parameter(char c, CallContext& context);
  Step key(char c, CallContext& context);
  Step value(LiteralValue::Place place, char c, CallContext& context);
  Step after(char c, CallContext& context);
  Step broken(CallContext& context);
  void finish_call(CallContext& context);

  LiteralValue::Dialect dialect_;
  bool is_lines_ = false;    // calls follow each other without a list
  bool needs_call_ = false;  // only NAME.call(...) is a call
  State state_ = State::kStart;
  bool in_list_ = false;
  bool had_call_ = false;
  std::string name_;
  std::string key_;
  ArgumentWriter arguments_;
  LiteralValue value_;
};

}  // namespace sluice
