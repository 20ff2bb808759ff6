// SPDX-License-Identifier: Apache-2.0
// Runs steps: owns the device, the model, the bytes of the KV cache and every buffer, all sized and
// allocated at creation; of several ranks, those of rank 0, and the others as Followers. execute()
// and compute_logits() on one thread, which runs the steps and is worker 0 of the compute pool; the
// rest on the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/config.h"
#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/decode_buckets.h"
#include "engine/device_batch.h"
#include "engine/engine.h"
#include "engine/followers.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/parallel.h"
#include "engine/sampling/device_sampling.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/packed_cache.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kvcache/kv_storage.h"

namespace sluice {

// A model file read and planned, nothing of size allocated yet; `serve --dry-run` and `inspect`
// stop here.
struct PlannedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  const ModelSpec* spec = nullptr;
  ModelConfig model;
  StepBounds bounds;
  PackedPlace packed;
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
  int64_t free_bytes = 0;  // of a device with memory of its own
};

Expected<PlannedModel> plan_model(const Config& config, const PlanTarget& target);

// The device that --device asks for and the model planned on it. With auto the CPU, and a line in
// the log, where there is no GPU or the model has what its backend lacks.
struct PlannedDevice {
  std::unique_ptr<kernels::Device> device;
  PlannedModel model;
  Placement placement;  // of all ranks
};

Expected<PlannedDevice> plan_on_device(const Config& config);

class ModelRunner {
 public:
  // `make_ranks`: of several ranks, their communicators.
  static Expected<std::unique_ptr<ModelRunner>> create(const Config& config,
                                                       const MakeRanks& make_ranks);

  // Copies the blocks of one step, then runs its layers. Tokens that are open are taken from
  // sampling(), which there is then.
  void execute(std::span<const KvBlockCopy> copies, const InputBatch& batch);
  // To logits(): of at most max_rows() rows of that step; of those that choose a token.
  void compute_logits(std::span<const int32_t> rows);
  void compute_logits();

  // [rows][vocab], where operators read them. The caller's to change until the next call.
  [[nodiscard]] float* logits() const { return reinterpret_cast<float*>(logits_.data()); }

  // Rows [first, first + count) of them for the host, there once the copies are waited for; what
  // logits() gives where the host reads that. The caller's to change as well.
  float* begin_host_copy(size_t first, size_t count);
  void wait_for_host_copies();
  // Whether a rank has: then nothing that was computed since means anything, and nothing will.
  [[nodiscard]] bool has_failed() const {
    return communicator_ != nullptr && communicator_->has_failed();
  }

  // Of operators on the device, with its workspace.
  [[nodiscard]] const kernels::ExecContext& exec() const { return exec_; }

  // Of a device with memory of its own; null on others.
  [[nodiscard]] DeviceSampling* sampling() { return sampling_ ? &*sampling_ : nullptr; }

  // As Engine has it.
  void wait_until_backed() const;

  [[nodiscard]] size_t max_rows() const { return max_rows_; }

  // Of any step's batch.
  [[nodiscard]] const InputBatch::Bounds& batch_bounds() const { return batch_bounds_; }

  [[nodiscard]] const kernels::Device& device() const { return *device_; }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }

  // Tokenizer and template, read beside the weights; once.
  [[nodiscard]] CheckpointText take_text() { return std::move(text_); }

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  [[nodiscard]] const ModelConfig& model() const { return model_->config(); }

  [[nodiscard]] std::vector<KvGroupSpec> kv_groups() const;

  [[nodiscard]] KvStorage& kv_storage() { return kv_storage_; }

  // Hash of the determinism key: model file, build, backend class, activation and KV dtypes.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

  [[nodiscard]] int64_t num_parameters() const { return weights_->num_parameters(); }

 private:
  ModelRunner(const InputBatch::Bounds& bounds, KvStorage storage)
      : batch_bounds_(bounds), kv_storage_(std::move(storage)) {}

  // `own`: rank 0's share of the model.
  Expected<void> load_model(PlannedModel& planned, const ModelConfig& own, const Config& config);
  Expected<void> allocate(const StepBounds& bounds, const Config& config);
  Expected<void> add_followers(const Config& config,
                               const PlannedModel& planned,
                               std::vector<std::unique_ptr<Communicator>> communicators);
  // One for each bucket, of its layers and the logits of all its rows.
  Expected<void> record_steps(const Config& config);
  void run_logits(std::span<const int32_t> rows);
  // Of the step that execute() ran last.
  [[nodiscard]] ForwardContext context() const;

  std::unique_ptr<kernels::Device> device_;
  Placement placement_;  // of all ranks
  std::unique_ptr<Checkpoint> checkpoint_;
  CheckpointText text_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<PackedCacheWriter> cache_writer_;
  std::unique_ptr<Model> model_;
  MemoryPlan plan_;
  InputBatch::Bounds batch_bounds_;
  KvStorage kv_storage_;
  std::unique_ptr<Prefault> prefault_;
  kernels::DeviceBuffer arena_;
  size_t max_rows_ = 0;
  kernels::DeviceBuffer logits_;  // floats [max_rows_][vocab]
  // Of a device with memory of its own.
  kernels::DeviceBuffer host_logits_;  // as logits_
  kernels::DeviceBuffer workspace_;
  std::optional<DeviceBatch> device_batch_;
  std::optional<DeviceSampling> sampling_;
  bool is_copying_ = false;  // logits to the host
  std::optional<DecodeBuckets> buckets_;
  std::vector<std::unique_ptr<kernels::RecordedWork>> recorded_;  // by bucket
  bool has_logits_ = false;  // of all rows of that step, which was a recorded one

  kernels::ExecContext exec_;
  ForwardBatch step_;  // that execute() ran last
  std::vector<LayerCache> caches_;
  std::string fingerprint_;
  std::unique_ptr<Communicator> communicator_;  // of several ranks, rank 0's
  std::unique_ptr<Followers> followers_;        // the same
};

}  // namespace sluice
