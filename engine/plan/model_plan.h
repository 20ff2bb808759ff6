// SPDX-License-Identifier: Apache-2.0
// Reads a model file, chooses devices and plans every byte before anything large is allocated:
// `serve --dry-run` and `inspect` show the plan, ModelRunner::create carries it out. Called on the
// thread that starts the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/draft/draft_plan.h"
#include "engine/models/model_spec.h"
#include "engine/plan/memory_plan.h"
#include "engine/rank/input_batch.h"
#include "engine/sampling/device_sampling.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/packed_cache.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace sluice {

// A model file, read and planned; nothing large is allocated yet.
struct PlannedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  const ModelSpec* spec = nullptr;
  ModelConfig model;
  StepBounds bounds;
  kernels::LargestMatrices largest;  // over all ranks
  PackedPlace packed;
  std::optional<PlannedDraft> draft;  // set if --speculative-config names a model
  MemoryPlan plan;
};

// Parses --load-format.
LoadFormat load_format(const Config& config);

// The placement by --numa and --cpu-strict, from the calling thread's node; determined once per
// engine, as the thread may move to another node.
Placement placement_of(const Config& config);

// The ranks of a model that this process has: all of them, or with --nnodes those of its node.
// Ranks are numbered stage by stage.
struct LocalRanks {
  int32_t first = 0;
  int32_t count = 1;
  int32_t at_once = 1;  // that run at the same time: those of one stage
};

LocalRanks local_ranks(const Config& config);
// Stages that nodes are divided among; 1: all have all layers.
int32_t num_node_stages(const Config& config);

// The part of a model that a rank runs. kUnsupported: it does not divide.
Expected<ModelConfig> model_of_rank(const ModelConfig& whole, const Config& config, int32_t rank);

// What this process keeps of its CPU ranks' weights: all for ranks that share a process.
WeightStore::Kept kept_weights(const Config& config);

// Compute threads per rank; stages of one process take turns.
int32_t threads_per_rank(const Config& config, const Placement& placement);

// The devices that a plan is made for.
struct PlanTarget {
  DeviceType device = DeviceType::kCpu;
  int32_t num_threads = 1;  // per rank
  int64_t free_bytes = 0;   // per rank, on a device with memory of its own
};

// Layers whose inputs a draft head reads; empty without a head.
std::vector<int32_t> taps_of(const PlannedModel& planned);

// The most tokens of one step. An encoder computes a text in one step, so that it has at least
// those of its longest text.
int32_t max_step_tokens(const Config& config, const ModelConfig& model);

Expected<PlannedModel> plan_model(const Config& config, const PlanTarget& target);

// The devices that --device asks for, one per rank, and the model planned on them. With auto this
// is the CPU, with a log line, when there are too few GPUs or their backend cannot run the model.
struct PlannedDevices {
  std::vector<std::unique_ptr<kernels::Device>> devices;  // by rank
  PlannedModel model;
  Placement placement;  // over all ranks
};

Expected<PlannedDevices> plan_on_devices(const Config& config);

// The most rows of a step that choose a token: one per request, plus its drafts.
int32_t max_chosen_rows(const Config& config);

// Array sizes of a step.
InputBatch::Bounds batch_bounds_of(const StepBounds& bounds,
                                   int32_t max_model_len,
                                   int32_t block_size,
                                   std::span<const KvGroupSpec> groups);
// Rows of the largest recordable step; each chooses a token.
int32_t most_recorded_rows(const StepBounds& bounds);
// Bytes of `num_rows` rows copied from a device: logits, or states if these are larger.
int64_t host_rows_bytes(const ModelConfig& model, int64_t num_rows);
DeviceSampling::Bounds sampling_bounds_of(const Config& config, int32_t vocab_size);

// Names the flags that a mapped file of packed weights cannot obey, since its pages are the
// system's shared cache. Empty: none.
std::string ignored_by_mapped_weights(const Config& config);

// Builds MemoryPlan::placement.
std::string placement_text(const Config& config,
                           const Placement& placement,
                           const MemoryPlan& plan);

}  // namespace sluice
