// SPDX-License-Identifier: Apache-2.0
// Calls whose arguments are elements (MiniMax M3): <city>Paris</city><tags><item>a</item></tags>.
// An element that holds others is an object, or an array where the tool's schema says so, or where
// its first one is an <item> and the schema says nothing. Which element an end tag names counts for
// nothing: it ends the innermost. A value; see call_reader.h.
#pragma once

#include <string>
#include <vector>

#include "server/parse/argument_writer.h"
#include "server/parse/call_reader.h"

namespace sluice {

class ElementCall {
 public:
  explicit ElementCall(Role role)
      : state_(role == Role::kCallBegin ? State::kName : State::kSection) {}

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

 private:
  enum class State : uint8_t {
    kSection,  // between calls
    kName,
    kCall,    // between arguments
    kTag,     // in the tag that begins an element
    kValue,   // in an element
    kEndTag,  // in the tag that ends one
  };

  // An element that is open.
  struct Element {
    size_t outer_path_size;
    JsonTypes types;
    bool holds_elements = false;
    bool is_array = false;
  };

  Step begin(CallContext& context);
  void begin_element(CallContext& context);
  void end_element(CallContext& context);
  void value_text(char c, CallContext& context);
  void finish_call(CallContext& context);

  State state_;
  bool had_call_ = false;
  bool is_open_ = false;
  bool is_string_ = false;  // the innermost element's text goes out as it comes
  std::string name_;
  std::string tag_;
  std::string path_;   // of the innermost element, as ToolSchemas takes it
  std::string value_;  // its text so far
  std::vector<Element> elements_;
  ArgumentWriter arguments_;
};

}  // namespace sluice
