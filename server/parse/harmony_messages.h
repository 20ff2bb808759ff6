// SPDX-License-Identifier: Apache-2.0
// Messages with headers (gpt-oss): <|channel|>analysis<|message|>...<|end|><|start|>assistant...
// The channel says what a message is, a recipient makes it a call. All of the answer; a value, see
// call_reader.h.
#pragma once

#include <string>

#include "server/parse/call_reader.h"

namespace sluice {

class HarmonyMessages {
 public:
  // `parse_calls` false: a message to a tool is content.
  explicit HarmonyMessages(bool parse_calls) : parse_calls_(parse_calls) {}

  // What was read so far was the prompt's.
  void begin_output();

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] bool in_reasoning() const {
    return state_ == State::kBody && kind_ == PieceKind::kReasoning;
  }

  // What the tokens so far are is not known yet.
  [[nodiscard]] bool is_undecided() const { return state_ == State::kHeader; }

 private:
  enum class State : uint8_t { kHeader, kBody, kOutside };
  enum class Part : uint8_t { kRole, kChannel, kConstrain };

  void begin_body(CallContext& context);
  // The header is none: what was read is content.
  void header_is_text(CallContext& context);
  void end_message(CallContext& context);

  bool parse_calls_;
  State state_ = State::kHeader;
  Part part_ = Part::kRole;
  bool is_first_ = true;  // the header whose beginning the prompt wrote
  bool has_arguments_ = false;
  PieceKind kind_ = PieceKind::kContent;  // of the body; kArguments: a call
  std::string role_;                      // header up to the channel
  std::string channel_;                   // from there to the constraint
};

}  // namespace sluice
