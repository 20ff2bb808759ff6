// SPDX-License-Identifier: Apache-2.0
// What the processes of a model (--nnodes) find out about each other and their links without a
// model: whether they fit together, whether each word of an exchange arrives as it was sent, how
// fast, and whether a rank that differs is found. CPU ranks.
#pragma once

#include <functional>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;

// Runs on each process, with the nodes' settings of a server. `say` gets the report, a line at a
// time, which is whole on node 0. kInvalidArgument: settings that cannot be, or that differ from
// node 0's. kDeadlineExceeded: names the nodes that are missing. kUnavailable: the links do not do
// what they must; the message names the rank.
Expected<void> check_rank_processes(const Config& config,
                                    const std::function<void(const std::string&)>& say);

}  // namespace sluice
