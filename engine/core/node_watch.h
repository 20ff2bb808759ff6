// SPDX-License-Identifier: Apache-2.0
// What the nodes of a model (--nnodes) and the components of their processes that answer probes and
// take signals know of each other; global to the process, like the log.
#pragma once

#include <cstdint>

namespace sluice {

// The stages of a node above 0, in order.
enum class NodeStage : uint8_t {
  kMeeting,  // node 0 has not been met
  kLoading,
  kReady,    // it computes what node 0 says
};

// Any thread.
void tell_node_stage(NodeStage stage);
NodeStage node_stage();

// A node that is to leave asks for the end of all in order; node 0 then has the same wish. Any
// thread.
void ask_nodes_to_end();
bool are_nodes_asked_to_end();

}  // namespace sluice
