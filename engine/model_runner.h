// SPDX-License-Identifier: Apache-2.0
// Runs steps: owns the model's ranks, rank 0's as ModelRank and the others' as Followers, with
// their weights, and what chooses tokens, all sized and allocated at creation. execute() and
// compute_logits() on one thread, which runs the steps and is worker 0 of the compute pool; the
// rest on the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/decode_buckets.h"
#include "engine/draft_model.h"
#include "engine/followers.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/model_plan.h"
#include "engine/model_rank.h"
#include "engine/models/model.h"
#include "engine/parallel.h"
#include "engine/sampling/device_sampling.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/packed_cache.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kvcache/kv_ranks.h"

namespace sluice {

class ModelRunner {
 public:
  // `groups`: how several ranks find each other. With --device auto the CPU where GPUs cannot.
  static Expected<std::unique_ptr<ModelRunner>> create(const Config& config,
                                                       const RankGroups& groups);
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  // Copies the blocks of one step, then runs its layers. Tokens that are open are taken from
  // sampling().
  void execute(std::span<const KvBlockCopy> copies, const InputBatch& batch);
  // To logits(): of at most max_rows() rows of that step; of those that choose a token.
  void compute_logits(std::span<const int32_t> rows);
  void compute_logits();

  // States of at most max_rows() rows of that step behind the last norm, [rows][hidden], for the
  // host to read until the next call; null: a rank has failed.
  const float* embed(std::span<const int32_t> rows);

  // [rows][vocab], where operators read them. The caller's to change until the next call.
  [[nodiscard]] float* logits() const { return ranks_.front()->logits(); }

  // Rows [first, first + count) of them for the host, there once the copies are waited for; what
  // logits() gives where the host reads that. The caller's to change as well.
  float* begin_host_copy(size_t first, size_t count);
  void wait_for_host_copies();

  // Whether a rank has: then nothing that was computed since means anything, and nothing will.
  [[nodiscard]] bool has_failed() const { return ranks_.front()->has_failed(); }

  // Of operators on rank 0's device, with its workspace.
  [[nodiscard]] const kernels::ExecContext& exec() const { return ranks_.front()->exec(); }

  // Of rank 0's device.
  [[nodiscard]] DeviceSampling& sampling() { return *sampling_; }

  [[nodiscard]] const DeviceSampling& sampling() const { return *sampling_; }

  // Steps that the device's queue holds behind the one that runs.
  [[nodiscard]] int32_t queue_depth() const { return sampling_->chooses() ? 1 : 0; }

  // Whether rows may be put into that queue behind drafts that the step in front judges: the device
  // puts them in their places, where it is the only one.
  [[nodiscard]] bool places_rows() const {
    return queue_depth() > 0 && ranks_.size() == 1 &&
           plan_.kv_groups.size() <= kernels::PlaceFollowingArgs::kMostGroups;
  }

  // Null: no second model drafts.
  [[nodiscard]] DraftModel* draft_model() { return draft_model_.get(); }

  // As Engine has it.
  void wait_until_backed() const;

  [[nodiscard]] size_t max_rows() const { return static_cast<size_t>(bounds_.step.max_logits); }

  // Of any step's batch.
  [[nodiscard]] const InputBatch::Bounds& batch_bounds() const { return bounds_.batch; }

  // Rank 0's.
  [[nodiscard]] const kernels::Device& device() const { return ranks_.front()->device(); }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }

  // Tokenizer and template, read beside the weights; once.
  [[nodiscard]] CheckpointText take_text() { return std::move(text_); }

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  [[nodiscard]] const ModelConfig& model() const { return ranks_.front()->model().config(); }

  // With the planes of all ranks.
  [[nodiscard]] const std::vector<KvGroupSpec>& kv_groups() const { return plan_.kv_groups; }

  // Rank 0's, and the only one's.
  [[nodiscard]] KvStorage& kv_storage() { return ranks_.front()->kv_storage(); }

  // Every rank's, on the CPU; of a GPU the only one's.
  [[nodiscard]] KvRanks kv_ranks() const;

  // Hash of the determinism key: model file, build, backend class, activation and KV dtypes.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

  [[nodiscard]] int64_t num_parameters() const { return weights_.front()->num_parameters(); }

 private:
  ModelRunner() = default;

  // Every rank's weights and buffers.
  Expected<void> load(PlannedDevices& planned, const Config& config);
  Expected<void> make_ranks(const PlannedModel& planned, const Config& config);
  Expected<std::unique_ptr<ModelRank>> make_rank(const PlannedModel& planned,
                                                 const Config& config,
                                                 int32_t rank) const;
  Expected<void> allocate_weights(PlannedModel& planned, const Config& config);
  // Once text_ is read.
  Expected<void> load_draft(PlannedDraft& planned, const Config& config);
  Expected<void> connect(const ConnectRanks& connect_ranks) const;
  // What ranks do together before the first step, once they are connected.
  Expected<void> record_steps(const Config& config);
  Expected<void> add_sampling(const Config& config);
  // Every rank.
  void run(const RankJob& job);

  Placement placement_;  // of all ranks
  std::unique_ptr<Checkpoint> checkpoint_;
  CheckpointText text_;
  MemoryPlan plan_;
  ModelRank::Bounds bounds_;
  std::string fingerprint_;
  // By rank; where weights are the host's, one for all.
  std::vector<std::unique_ptr<kernels::Device>> devices_;
  std::vector<std::unique_ptr<WeightStore>> weights_;
  std::vector<std::unique_ptr<ModelRank>> ranks_;
  std::unique_ptr<Followers> followers_;  // of several
  std::unique_ptr<DraftModel> draft_model_;
  std::unique_ptr<PackedCacheWriter> cache_writer_;
  // For logits() or embed() of as many rows; empty where the host reads those.
  kernels::DeviceBuffer host_rows_;
  std::optional<DeviceSampling> sampling_;
  bool is_copying_ = false;  // logits to the host
  std::optional<DecodeBuckets> buckets_;  // of a device that records steps
  bool has_logits_ = false;  // of all rows of the last step that sample, or there are none
};

}  // namespace sluice
