// SPDX-License-Identifier: Apache-2.0
#include "engine/core/node_watch.h"

#include <atomic>

namespace sluice {
namespace {

std::atomic<NodeStage> g_stage = NodeStage::kMeeting;

}  // namespace

void tell_node_stage(NodeStage stage) { g_stage.store(stage); }

NodeStage node_stage() { return g_stage.load(); }

}  // namespace sluice
