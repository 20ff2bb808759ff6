// SPDX-License-Identifier: Apache-2.0
// Runs steps: owns the device, the model, the bytes of the KV cache and every buffer, all sized and
// allocated at creation; of several ranks, those of rank 0, and the others as Followers. execute()
// and logits() on one thread, which runs the steps and is worker 0 of the compute pool; the rest on
// the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/config.h"
#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/followers.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/parallel.h"
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

// --numa and --cpu-strict on this machine, for the calling thread.
Placement placement_of(const Config& config);

// Compute threads of each rank.
int32_t threads_per_rank(const Config& config);

// `num_threads`: of a rank.
Expected<PlannedModel> plan_model(const Config& config, int32_t num_threads);

class ModelRunner {
 public:
  static Expected<std::unique_ptr<ModelRunner>> create(const Config& config);

  // Copies the blocks of one step, then runs its layers.
  void execute(std::span<const KvBlockCopy> copies, const InputBatch& batch);
  // Logits of at most max_rows() rows of that step, [rows][vocab]. The caller's to change until the
  // next call.
  std::span<float> logits(const InputBatch& batch, std::span<const int32_t> rows);

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

  // Rank 0's.
  [[nodiscard]] KvStorage& kv_storage() { return kv_storage_; }

  // Hash of the determinism key: model file, build, backend class, activation and KV dtypes.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

  [[nodiscard]] int64_t num_parameters() const { return weights_->num_parameters(); }

 private:
  Expected<void> add_followers(const Config& config, const PlannedModel& planned);
  [[nodiscard]] ForwardContext context(const ForwardBatch& batch) const;

  ModelRunner(const InputBatch::Bounds& bounds, KvStorage storage)
      : batch_bounds_(bounds), kv_storage_(std::move(storage)) {}

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  CheckpointText text_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<PackedCacheWriter> cache_writer_;
  std::unique_ptr<Model> model_;
  MemoryPlan plan_;
  InputBatch::Bounds batch_bounds_;
  KvStorage kv_storage_;
  std::unique_ptr<Prefault> prefault_;
  AlignedBuffer arena_;
  size_t max_rows_ = 0;
  AlignedBuffer logits_;  // floats [max_rows_][vocab]
  std::vector<LayerCache> caches_;
  std::string fingerprint_;
  std::unique_ptr<Communicator> communicator_;  // of several ranks, rank 0's
  std::unique_ptr<Followers> followers_;        // the same
};

}  // namespace sluice
