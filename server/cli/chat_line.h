// SPDX-License-Identifier: Apache-2.0
// Reads a line that is typed into `sluice chat`: a command, or text for the model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"

namespace sluice {

enum class ChatCommand : uint8_t {
  kText,
  kHelp,
  kSystem,
  kRegenerate,
  kSet,
  kSave,
  kClear,
  kQuit,
  kUnknown
};

struct ChatLine {
  ChatCommand command = ChatCommand::kText;
  std::string argument;  // the text, the rest after a command, or the name of an unknown one
};

// A command is a slash and letters, then the end or a space: "/etc/hosts says" is text.
ChatLine parse_chat_line(std::string_view line);

// Returns what a terminal shows of an answer, in UTF-8, and obeys nothing of: U+FFFD for control
// characters but tabs and line ends.
std::string shown_on_terminal(std::string_view answer);

// Returns all commands, a line for each.
std::string_view chat_help();

// Sets a field by name: "temperature 0.7", "top-p=0.9". kInvalidArgument: no such field, or the
// value is not a number or beyond the field's range.
Expected<void> set_by_text(SamplingParams& params, std::string_view text);

// Returns the settings that decide how answers are chosen: "temperature 0.7, top_p 0.95, ...".
std::string describe_sampling(const SamplingParams& params);

// Returns a chat's defaults: the model's own (of its generation_config) or, if it has none,
// temperature 0.7 and top_p 0.95. A model without any is read as 1 and nothing cut off, with which
// small models talk noise; so a model that asks for just these counts as one without.
SamplingParams chat_defaults(const SamplingParams& of_model);

}  // namespace sluice
