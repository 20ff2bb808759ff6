// SPDX-License-Identifier: Apache-2.0
// What a line that is typed into `sluice chat` means: a command, or text for the model.
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
  std::string argument;  // the text; of a command, what follows it; of an unknown one, its name
};

// A command is a slash, letters, and nothing or a space behind them: "/etc/hosts says" is text.
ChatLine parse_chat_line(std::string_view line);

// All commands, a line for each.
std::string_view chat_help();

// "temperature 0.7", "top-p=0.9": sets the field of that name. kInvalidArgument: there is no such
// field, or the value is no number or beyond the field's range.
Expected<void> set_by_text(SamplingParams& params, std::string_view text);

// "temperature 0.7, top_p 0.95, ...": what decides how answers are chosen.
std::string describe_sampling(const SamplingParams& params);

// The defaults of a chat: the model's own (its generation_config's), or, of a model that says
// nothing, temperature 0.7 and top_p 0.95. Such a model's are 1 and nothing cut off, with which
// small models talk noise; so a model that asks for just these is taken for one that does not.
SamplingParams chat_defaults(const SamplingParams& of_model);

}  // namespace sluice
