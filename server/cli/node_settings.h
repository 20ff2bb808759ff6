// SPDX-License-Identifier: Apache-2.0
// Which nodes share a model (--nnodes, --node-rank, --master-addr, --master-port), from what was
// given and from the variables of who started the process: LeaderWorkerSet, Slurm's srun, Open MPI
// or torchrun. What was given wins; a launcher fills in the rest.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;

using Environment = std::map<std::string, std::string, std::less<>>;

// Returns the process's own.
Environment process_environment();

// Empties the four values, which then are none that can be given.
void clear_nodes(Config& config);

// Takes --dist-init-addr, SGLang's host:port in one. kInvalidArgument: it is no such text.
Expected<void> set_dist_init_addr(Config& config, const std::string& text);

// Fills the values that are still empty: from a launcher that started several processes where
// pipeline-parallel-size, or with one stage tensor-parallel-size, is as many, else with their
// defaults. With both 1, or --nnodes 1, each process has the whole model, whatever started it.
// Returns a sentence on where the values come from; empty: nothing is shared, and no launcher
// started several processes. kInvalidArgument: two sources contradict each other, or a launcher's
// values are not whole; the message names both, with their values.
Expected<std::string> settle_nodes(Config& config, const Environment& environment);

}  // namespace sluice
