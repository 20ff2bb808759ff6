// SPDX-License-Identifier: Apache-2.0
// The rule for --worker-secret, which opens workers to routers and to each other.
#pragma once

#include "engine/core/status.h"

namespace sluice {

struct Config;

// kInvalidArgument: there is a secret, and it is so short that it could be guessed.
Expected<void> check_worker_secret(const Config& config);

}  // namespace sluice
