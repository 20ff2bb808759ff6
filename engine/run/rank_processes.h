// SPDX-License-Identifier: Apache-2.0
// What the nodes of a model (--nnodes) agree on before they load it and before the first step. Node
// 0 decides the size of the KV cache and the context; all must have been started with equal values
// of what shapes a step. The start runs on the engine thread, or a follower's main thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/parallel/rank_group.h"
#include "engine/plan/memory_plan.h"

namespace sluice {

// The group of these settings, of this build.
RankGroupOptions group_options(const Config& config);

// A text of at most a MiB from one rank to another of which one is rank 0. False, or kUnavailable:
// the group has failed.
bool send_text(RankGroup& group, int32_t rank, const std::string& text);
Expected<std::string> receive_text(RankGroup& group, int32_t rank, std::chrono::seconds within);

// Node 0: sends the settings of a step to the others, beside `plan`, if any.
Expected<void> send_settings(RankGroup& group, const Config& config, const std::string& plan = "");
// Another node: compares them with its own, and returns the plan. kInvalidArgument: one differs,
// which both ends then name.
Expected<std::string> agree_on_settings(RankGroup& group, const Config& config);

// Every rank, once the settings agree: those of a stage above the first one, if it has several,
// meet each other, for what does not concern rank 0. kUnavailable: the group has failed.
Expected<void> meet_in_stages(RankGroup& group, int32_t num_stages);

// Node 0: meets the others and sends them the plan.
Expected<std::unique_ptr<RankGroup>> lead_nodes(const Config& config, const MemoryPlan& plan);
// What a node has loaded. Where it has one stage of several, the fingerprint is of the file's
// headers, without the tensors, of which it has the hash of its own alone.
struct LoadedModel {
  std::string fingerprint;
  uint64_t part_content = 0;  // WeightStore::content_hash(); 0: nothing is left out
};

// Node 0: waits until all others have loaded the model that has this fingerprint; returns the sum
// of the parts of all stages, of which the ranks of one have the same. kUnavailable: one could not;
// kInvalidArgument: one has another.
Expected<uint64_t> hear_nodes(RankGroup& group, const LoadedModel& own, int32_t num_stages);

// How each of those texts is read. kDataLoss: no node of this build wrote it.
// Node 0's settings beside a plan, which is returned; kInvalidArgument: one differs from `config`.
Expected<std::string> read_settings(const std::string& text, const Config& config);
struct SharedPlan {
  int64_t max_model_len = 0;
  std::vector<int32_t> num_blocks;  // by KV group
  bool on_device = false;           // GPUs, on all nodes
};
Expected<SharedPlan> read_shared_plan(const std::string& text);
Expected<LoadedModel> read_loaded_model(const std::string& text);
Expected<RankGroup::Address> read_address(const std::string& text);

// What another node knows after meeting node 0.
struct JoinedNodes {
  std::unique_ptr<RankGroup> group;
  Config config;                    // with node 0's context, and the kind of device that it took
  std::vector<int32_t> num_blocks;  // node 0's, by KV group

  // Gives the plan node 0's cache. kResourceExhausted: this node has not the memory for it.
  Expected<void> apply_blocks(MemoryPlan& plan) const;
};

// kInvalidArgument: a value differs from node 0's; the message names it.
Expected<JoinedNodes> join_nodes_of(const Config& config);
// Says that this node has loaded that model.
Expected<void> tell_node_0(RankGroup& group, const LoadedModel& own);

}  // namespace sluice
