// SPDX-License-Identifier: Apache-2.0
// A model file read, the devices chosen and every byte planned, before anything of size is
// allocated: what `serve --dry-run` and `inspect` show and ModelRunner::create carries out. Called
// on the thread that starts the engine.
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
#include "engine/draft_plan.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/sampling/device_sampling.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/packed_cache.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace sluice {

// A model file read and planned, nothing of size allocated yet; `serve --dry-run` and `inspect`
// stop here.
struct PlannedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  const ModelSpec* spec = nullptr;
  ModelConfig model;
  StepBounds bounds;
  kernels::LargestMatrices largest;  // of any rank
  PackedPlace packed;
  std::optional<PlannedDraft> draft;  // --speculative-config with a model
  MemoryPlan plan;
};

// --load-format.
LoadFormat load_format(const Config& config);

// --numa and --cpu-strict on this machine, for the calling thread: once for an engine, as the
// thread may move to another node.
Placement placement_of(const Config& config);

// Compute threads of each rank.
int32_t threads_per_rank(const Config& config, const Placement& placement);

// What a plan is for.
struct PlanTarget {
  DeviceType device = DeviceType::kCpu;
  int32_t num_threads = 1;  // of a rank
  int64_t free_bytes = 0;   // of each rank's device with memory of its own
};

// Layers of the model whose inputs a head reads; none: nothing does.
std::vector<int32_t> taps_of(const PlannedModel& planned);

Expected<PlannedModel> plan_model(const Config& config, const PlanTarget& target);

// What --device asks for, one for each rank, and the model planned on them. With auto the CPU, and
// a line in the log, where there are not so many GPUs or the model has what their backend lacks.
struct PlannedDevices {
  std::vector<std::unique_ptr<kernels::Device>> devices;  // by rank
  PlannedModel model;
  Placement placement;  // of all ranks
};

Expected<PlannedDevices> plan_on_devices(const Config& config);

// Rows of a step behind which tokens are chosen, at most: one of each request, and its drafts.
int32_t max_chosen_rows(const Config& config);

// What a step's arrays are sized for.
InputBatch::Bounds batch_bounds_of(const StepBounds& bounds,
                                   int32_t max_model_len,
                                   int32_t block_size,
                                   std::span<const KvGroupSpec> groups);
// Rows of the largest step that a device may have recorded: a token is chosen behind each.
int32_t most_recorded_rows(const StepBounds& bounds);
// Bytes of so many rows that come from a device: of logits, or of states where these are longer.
int64_t host_rows_bytes(const ModelConfig& model, int64_t num_rows);
DeviceSampling::Bounds sampling_bounds_of(const Config& config, int32_t vocab_size);

// Flags that ask for what a mapped file of packed weights does not obey: its pages are the system's
// cache, shared by whoever maps it. Empty: none.
std::string ignored_by_mapped_weights(const Config& config);

// MemoryPlan::placement.
std::string placement_text(const Config& config,
                           const Placement& placement,
                           const MemoryPlan& plan);

}  // namespace sluice
