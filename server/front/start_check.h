// SPDX-License-Identifier: Apache-2.0
// What of a configuration a server would refuse, found before there is an engine: before weights
// are read, and by --dry-run.
#pragma once

#include "engine/core/status.h"

namespace sluice {

struct Config;

// Checks the files and values that FrontEnd::create() takes. Its errors are those of the start.
Expected<void> check_front_end(const Config& config);
// Checks --chat-template and the knobs of parsers, as ServedModel::create() does.
Expected<void> check_model_knobs(const Config& config);

}  // namespace sluice
