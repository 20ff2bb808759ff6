// SPDX-License-Identifier: Apache-2.0
// Calls whose arguments are elements (MiniMax M3): <city>Paris</city><tags><item>a</item></tags>.
// An element that holds others is an object, or an array where the tool's schema declares it, or
// where its first one is an <item> and the schema says nothing. An end tag ends the innermost
// element; inside a string it must name it. A value; see call_reader.h.
#pragma once

#include <string>
#include <vector>

#include "server/tools/call_reader.h"
#include "server/tools/call_tags.h"

namespace sluice {

class ElementCall : CallTags {
 public:
  ElementCall(Role role, const ElementCalls& /*form*/) : CallTags(role, {}) {}

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    if (state_ != State::kValue || !is_string_) return {};
    return {ValuePlace::kElement, elements_.back().tag};
  }

 private:
  // An element that is open.
  struct Element {
    std::string tag;
    size_t outer_path_size;
    JsonTypes types;
    bool holds_elements = false;
    bool is_array = false;
  };

  void begin_element(CallContext& context);
  void end_element(CallContext& context);
  void end_elements(CallContext& context);

  std::string tag_;
  std::string path_;  // of the innermost element, as ToolSchemas takes it
  std::vector<Element> elements_;
};

}  // namespace sluice
