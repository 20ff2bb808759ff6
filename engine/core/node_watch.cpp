// SPDX-License-Identifier: Apache-2.0
#include "engine/core/node_watch.h"

#include <atomic>

namespace sluice {
namespace {

std::atomic<NodeStage> g_stage = NodeStage::kMeeting;
std::atomic<bool> g_is_asked_to_end = false;

}  // namespace

void tell_node_stage(NodeStage stage) { g_stage.store(stage); }

NodeStage node_stage() { return g_stage.load(); }

void ask_nodes_to_end() { g_is_asked_to_end.store(true); }

bool are_nodes_asked_to_end() { return g_is_asked_to_end.load(); }

}  // namespace sluice
