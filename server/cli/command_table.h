// SPDX-License-Identifier: Apache-2.0
// The commands of `sluice`, and which knobs each takes and shows.
#pragma once

#include <span>
#include <string>

#include "engine/core/config.h"
#include "server/cli/command.h"

namespace sluice {

struct CommandRow {
  Command command;
  const char* name;
  const char* help;
  bool engine_knobs;  // has the knobs of the model, the cache and the kernels
  bool server_knobs;  // the server's and the log's
  bool model_argument;
};

std::span<const CommandRow> command_rows();

// Tells whether the command takes any knobs, and this one.
bool has_knobs(const CommandRow& row);
bool has_knob(const CommandRow& row, const Knob& knob);
// Tells whether the knob changes what the command does, which makes it part of the command's help.
bool uses_knob(const CommandRow& row, const Knob& knob);

// Returns the command as users write it: bench-serve is `bench serve`.
std::string shown_command(std::string name);

}  // namespace sluice
