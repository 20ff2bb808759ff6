// SPDX-License-Identifier: Apache-2.0
// Communicators between GPU ranks in processes of their own (--nnodes) over NCCL, one rank each.
// The processes have met (rank_group.h); rank 0 makes the id by which NCCL's own connections find
// each other, and sends it by the group's. No run on two GPUs has tested this: tests run processes
// of the GPU shim against a library with the same interface (tests/support/fake_nccl_nodes.cpp).
#pragma once

#include <chrono>
#include <string>

#include "engine/core/status.h"
#include "engine/parallel/parallel.h"
#include "kernels/nccl_library.h"

namespace sluice {

struct NcclNodeOptions {
  std::string library = kernels::kNcclLibrary;
  std::chrono::seconds within{600};  // until NCCL has connected all (--rank-init-timeout)
  std::chrono::seconds abort_within{10};
};

// Turns NCCL's port for its own monitor off, which two engines on one machine would both want,
// unless the environment has a setting of it (NCCL_RAS_ENABLE, NCCL_RAS_ADDR). Before the process
// has threads, which may read the environment.
void prepare_nccl_environment();

// Returns how to connect, which fails on all ranks alike, and names the rank that has not come or
// has another version of NCCL, a GPU of another name, or another rank's GPU, unless all ranks have
// NCCL_MULTI_RANK_GPU_ENABLE=1. kUnavailable names the missing library or function.
//
// NCCL notices no peer that is gone: the group does, and a thread of each rank then aborts what is
// on its stream; an error that NCCL's own threads find, polled ten times a second, fails the group.
// all_gather() returns when the call is on the stream, and waits for that for at most
// RankGroup::kExchange. Until the destructor returns, the GPU may use the memory of gathers that
// were given up: it waits for the abort, which in turn waits until recorded work is destroyed, and
// ends the process with 1 if that takes longer than `abort_within`. Nothing ends the group because
// of a GPU that stalls while its process lives: node 0's step then takes too long, and its /health
// fails (--unhealthy-after-s).
Expected<ConnectNode> open_nccl_node(const NcclNodeOptions& options);

}  // namespace sluice
