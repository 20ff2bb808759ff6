// SPDX-License-Identifier: Apache-2.0
// Runs steps: owns the model's ranks (rank 0 as ModelRank, the others through RankLinks), their
// weights and the sampling buffers, all allocated at creation. execute() and compute_logits() run
// on the thread that runs the steps, which is worker 0 of the compute pool; the rest on the engine
// thread.
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
#include "engine/draft/draft_model.h"
#include "engine/models/model_config.h"
#include "engine/parallel/parallel.h"
#include "engine/plan/memory_plan.h"
#include "engine/plan/model_plan.h"
#include "engine/rank/decode_buckets.h"
#include "engine/rank/input_batch.h"
#include "engine/rank/model_rank.h"
#include "engine/rank/rank_links.h"
#include "engine/sampling/device_sampling.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/packed_cache.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kvcache/store/kv_ranks.h"

namespace sluice {

class RankGroup;
struct JoinedNodes;
struct LoadedModel;

class ModelRunner {
 public:
  // `groups` connects several ranks. --device auto falls back to the CPU if GPUs cannot run the
  // model.
  static Expected<std::unique_ptr<ModelRunner>> create(const Config& config,
                                                       const RankGroups& groups);
  // Runs the ranks of a node above 0 until node 0 ends, in order or not (--nnodes). kUnavailable:
  // the group of nodes has failed.
  static Expected<void> follow(const Config& config, const RankGroups& groups);
  ~ModelRunner();
  ModelRunner(const ModelRunner&) = delete;
  ModelRunner& operator=(const ModelRunner&) = delete;

  // Copies the blocks of one step, then runs its layers. Pending tokens are read from sampling().
  void execute(std::span<const KvBlockCopy> copies, const InputBatch& batch);
  // Computes logits() of at most max_rows() rows of that step. No other step is in flight.
  void compute_logits(std::span<const int32_t> rows);
  // Compute logits() of all rows of that step that choose a token. end_logits() is called in the
  // order of the steps; where steps_in_flight() > 1, that is where they are awaited and computed,
  // and other steps may have been executed since.
  void begin_logits();
  void end_logits(const InputBatch& batch);

  // Returns the states after the last norm of at most max_rows() rows of that step, [rows][hidden]
  // in host memory, valid until the next call; null: a rank has failed.
  const float* embed(std::span<const int32_t> rows);

  // [rows][vocab] in operators' memory. The caller may change it until the next call.
  [[nodiscard]] float* logits() const { return ranks_.front()->logits(); }

  // Starts copying rows [first, first + count) of logits() to the host and returns their address,
  // readable after wait_for_host_copies(); no copy is made where the host reads logits() itself.
  // The caller may change them.
  float* begin_host_copy(size_t first, size_t count);
  void wait_for_host_copies();

  // Whether a rank has failed: nothing computed since then is valid, and nothing will be.
  [[nodiscard]] bool has_failed() const { return ranks_.front()->has_failed(); }

  // The ranks in other processes, if there are any, end with this error; without it the destructor
  // ends them in order.
  void fail_group(const std::string& why);

  // Why ranks in other processes are lost; empty: they are not. Any thread.
  [[nodiscard]] std::string group_failure() const;

  // The context of operators on rank 0's device, with its workspace.
  [[nodiscard]] const kernels::ExecContext& exec() const { return ranks_.front()->exec(); }

  // Sampling on rank 0's device.
  [[nodiscard]] DeviceSampling& sampling() { return *sampling_; }

  [[nodiscard]] const DeviceSampling& sampling() const { return *sampling_; }

  // Steps that may have begun before the oldest one's logits are awaited: with stages in other
  // processes as many as there are, so that each has one to compute; else 1.
  [[nodiscard]] int32_t steps_in_flight() const { return steps_in_flight_; }

  // Steps that the device's queue, or the other stages, hold after the running one.
  [[nodiscard]] int32_t queue_depth() const {
    return sampling_->chooses() ? 1 : steps_in_flight_ - 1;
  }

  // Whether rows may be queued after drafts that the running step judges: the device then corrects
  // their positions. Needs a single rank.
  [[nodiscard]] bool places_rows() const {
    return sampling_->chooses() && model().share.size == 1 &&
           plan_.kv_groups.size() <= kernels::PlaceFollowingArgs::kMostGroups;
  }

  // Lets the system give the next piece of the KV cache's memory ahead of its first use, if little
  // is backed after `num_filled` blocks of the group: milliseconds at most. False: there is enough,
  // or the memory is a device's. Engine thread, while no step runs.
  bool back_ahead(int32_t group, int32_t num_filled);

  // Null without a draft model.
  [[nodiscard]] DraftModel* draft_model() { return draft_model_.get(); }

  [[nodiscard]] size_t max_rows() const { return static_cast<size_t>(bounds_.step.max_logits); }

  // Array sizes of any step's batch.
  [[nodiscard]] const InputBatch::Bounds& batch_bounds() const { return bounds_.batch; }

  // Rank 0's device.
  [[nodiscard]] const kernels::Device& device() const { return ranks_.front()->device(); }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }

  // Moves out tokenizer and template, which were read beside the weights; call once.
  [[nodiscard]] CheckpointText take_text() { return std::move(text_); }

  [[nodiscard]] const MemoryPlan& plan() const { return plan_; }

  [[nodiscard]] const ModelConfig& model() const { return ranks_.front()->model().config(); }

  // The KV groups with the planes of all ranks.
  [[nodiscard]] const std::vector<KvGroupSpec>& kv_groups() const { return plan_.kv_groups; }

  // The KV storage of a model with one rank.
  [[nodiscard]] KvStorage& kv_storage() { return ranks_.front()->kv_storage(); }

  // The KV storage of all CPU ranks, or of a single GPU.
  [[nodiscard]] KvRanks kv_ranks() const;

  // Hash of the determinism key: model file, build, backend class, activation and KV dtypes.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

  [[nodiscard]] int64_t num_parameters() const { return weights_.front()->num_parameters(); }

 private:
  ModelRunner() = default;

  // Makes it ready for the first step, together with other nodes, whose group fails if it cannot.
  Expected<void> start(PlannedDevices& planned,
                       const ConnectRanks& connect_ranks,
                       const Config& config,
                       const RankGroups& groups);
  Expected<void> start_following(const JoinedNodes& joined, const RankGroups& groups);
  // Loads every rank's weights and allocates its buffers.
  Expected<void> load(PlannedDevices& planned, const Config& config);
  void back_first();
  Expected<void> make_ranks(const PlannedModel& planned, const Config& config);
  Expected<std::unique_ptr<ModelRank>> make_rank(const PlannedModel& planned,
                                                 const Config& config,
                                                 int32_t index) const;
  Expected<void> allocate_weights(PlannedModel& planned, const Config& config);
  // Must follow the reading of text_.
  Expected<void> load_draft(PlannedDraft& planned, const Config& config);
  Expected<void> connect(const ConnectRanks& connect_ranks, const Config& config) const;
  // To the other ranks of this process, and of a group that this one leads.
  void add_links(RankGroup* group, const Config& config);
  // What this node says of itself to the others.
  [[nodiscard]] LoadedModel loaded(const Config& config) const;
  // Connects this process's rank with those of other nodes and waits until they have loaded the
  // same model.
  Expected<void> join_nodes(const Config& config, const RankGroups& groups);
  // Connects this process's rank, once all have loaded.
  Expected<void> connect_nodes(RankGroup& group, const Config& config, const RankGroups& groups);
  // Joint work of connected ranks before the first step.
  Expected<void> record_steps(const Config& config, RankGroup* group);
  Expected<void> add_sampling(const Config& config);

  // Runs a job on every rank, or those of this process.
  void run(const RankJob& job) { run(job, links_); }

  void run(const RankJob& job, std::span<const std::unique_ptr<RankLinks>> links);

  std::unique_ptr<RankGroup> group_;  // ranks in other processes; null: none
  Placement placement_;  // over all ranks
  std::unique_ptr<Checkpoint> checkpoint_;
  CheckpointText text_;
  MemoryPlan plan_;
  ModelRank::Bounds bounds_;
  std::string fingerprint_;  // with stages in other processes, until all have met, of headers alone
  // These are by rank of this process; weights in host memory are shared, with a single entry.
  std::vector<std::unique_ptr<kernels::Device>> devices_;
  std::vector<std::unique_ptr<WeightStore>> weights_;
  std::vector<std::unique_ptr<ModelRank>> ranks_;
  // To other processes, if any, and then threads; none with one rank.
  std::vector<std::unique_ptr<RankLinks>> links_;
  std::unique_ptr<DraftModel> draft_model_;
  std::unique_ptr<PackedCacheWriter> cache_writer_;
  // Host copies for logits() or embed(); empty where the host reads device memory.
  kernels::DeviceBuffer host_rows_;
  std::optional<DeviceSampling> sampling_;
  int32_t steps_in_flight_ = 1;
  bool is_copying_ = false;  // a copy of logits is under way
  std::optional<DecodeBuckets> buckets_;  // on a device that records steps
  bool has_logits_ = false;  // for all sampling rows of the last step, if any
};

}  // namespace sluice
