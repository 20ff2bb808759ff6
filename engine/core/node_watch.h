// SPDX-License-Identifier: Apache-2.0
// What a node above 0 of a model (--nnodes) has come to, for the component of this process that
// answers probes; global to the process, like the log.
#pragma once

#include <cstdint>

namespace sluice {

// Each follows on the one before.
enum class NodeStage : uint8_t {
  kMeeting,  // node 0 has not been met
  kLoading,
  kReady,    // it computes what node 0 says
};

// Any thread.
void tell_node_stage(NodeStage stage);
NodeStage node_stage();

}  // namespace sluice
