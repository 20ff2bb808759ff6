// SPDX-License-Identifier: Apache-2.0
// The names that --tool-call-parser and --reasoning-parser take.
#pragma once

#include "engine/core/status.h"

namespace sluice {

struct Config;

// kInvalidArgument: one of the two names an unknown family; the message lists all.
Expected<void> check_family_names(const Config& config);

}  // namespace sluice
