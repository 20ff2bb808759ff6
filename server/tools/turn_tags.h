// SPDX-License-Identifier: Apache-2.0
// Kimi K3: everything is in tags, <|open|>NAME key="value"<|sep|>...<|close|>NAME<|sep|>:
// think, response, and tools with calls and their arguments. All of the answer; a value, see
// call_reader.h.
#pragma once

#include <string>

#include "server/tools/argument_writer.h"
#include "server/tools/call_reader.h"

namespace sluice {

class TurnTags {
 public:
  // `parse_calls` false: calls and their arguments are content.
  TurnTags(const TagTurns& /*form*/, bool parse_calls) : parse_calls_(parse_calls) {}

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    return {place_ == Place::kArgument && !in_tag_ ? ValuePlace::kTurnTag : ValuePlace::kNone};
  }

  [[nodiscard]] bool in_reasoning() const { return place_ == Place::kThink && !in_tag_; }

  [[nodiscard]] bool is_undecided() const { return in_tag_; }

 private:
  enum class Place : uint8_t { kText, kThink, kTools, kCall, kArgument };

  void end_tag(CallContext& context);
  void open(std::string_view name, CallContext& context);
  void close(std::string_view name, CallContext& context);
  void end_argument(CallContext& context);
  void end_call(CallContext& context);

  bool parse_calls_;
  Place place_ = Place::kText;
  bool in_tag_ = false;
  bool is_closing_ = false;
  bool is_string_ = false;
  JsonTypes types_ = kJsonAny;
  std::string tag_;
  std::string name_;
  std::string value_;
  ArgumentWriter arguments_;
};

}  // namespace sluice
