// SPDX-License-Identifier: Apache-2.0
// Messages with headers (gpt-oss): <|channel|>analysis<|message|>...<|end|><|start|>assistant...
// The channel says what a message is, a recipient makes it a call. Or (Muse) the recipient alone
// decides, and calls are tags in the text: <|start|>assistant to=self<|message|>... All of the
// answer; a value, see call_reader.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/tools/call_reader.h"
#include "server/tools/json_text.h"
#include "server/tools/tagged_call.h"

namespace sluice {

class HarmonyMessages {
 public:
  // `parse_calls` false: a message to a tool is content.
  HarmonyMessages(const HarmonyTurns& form, bool parse_calls)
      : parse_calls_(parse_calls), has_tags_(form.tagged_body) {}

  // The input so far was the prompt's.
  void begin_output();

  [[nodiscard]] Roles live() const;
  Step text(char c, CallContext& context);
  Step marker(Role role, CallContext& context);
  Step end(CallContext& context);

  [[nodiscard]] ValueState value_state() const {
    if (tags_) return tags_->value_state();
    const bool is_call = state_ == State::kBody && kind_ == PieceKind::kArguments;
    return {is_call && span_.in_string() ? ValuePlace::kLiteral : ValuePlace::kNone};
  }

  [[nodiscard]] bool in_reasoning() const {
    return state_ == State::kBody && kind_ == PieceKind::kReasoning;
  }

  // The kind of the tokens so far is not known yet.
  [[nodiscard]] bool is_undecided() const { return state_ == State::kHeader; }

 private:
  enum class State : uint8_t { kHeader, kBody, kOutside };
  enum class Part : uint8_t { kRole, kChannel, kConstrain };

  void begin_body(CallContext& context);
  // The header is invalid: its text is content.
  void header_is_text(CallContext& context);
  void end_message(CallContext& context);

  [[nodiscard]] bool takes_tags() const {
    return has_tags_ && parse_calls_ && state_ == State::kBody && is_to_tool_;
  }

  // Handles a verdict of the reader of tags; false: the symbol belongs to the body.
  bool take_tags_step(Step step, std::string_view text, CallContext& context);
  // The tags are over; `is_content`: text that is not of a call becomes content.
  void leave_tags(bool is_content, CallContext& context);

  bool parse_calls_;
  bool has_tags_;
  State state_ = State::kHeader;
  Part part_ = Part::kRole;
  bool is_first_ = true;  // the header whose beginning the prompt wrote
  bool has_arguments_ = false;
  bool is_to_tool_ = false;               // where calls are tags
  JsonSpan span_;                         // a call's arguments
  PieceKind kind_ = PieceKind::kContent;  // of the body; kArguments: a call
  std::string role_;                      // header up to the channel
  std::string channel_;                   // from there to the constraint
  std::optional<TaggedCall> tags_;        // where they are read
  std::string kept_;                      // read by it and may turn out to be content
};

}  // namespace sluice
