// SPDX-License-Identifier: Apache-2.0
// A node above 0 of a model (--nnodes) as a process: it computes for node 0, and answers probes at
// the same address and port that a server would have.
#pragma once

#include "engine/core/status.h"

namespace sluice {

struct Config;

// Runs the node until node 0 ends. /health is 503 until the node computes, then 200. A port in use
// is a warning: several nodes may be on one machine. kUnavailable: as run_follower_node() says.
Expected<void> run_follower(const Config& config);

}  // namespace sluice
