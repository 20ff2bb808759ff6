// SPDX-License-Identifier: Apache-2.0
// Drafts by a second model: a smaller language model with the target's vocabulary, or a head that
// reads the target's hidden states (models/eagle.h, eagle3.h, mtp.h). It guesses a token as
// the target chooses one, by the same sampler with the request's own seed, position, temperature,
// filters and edits, over its own logits: noise of which both have the same makes them agree more
// often than independent draws would, also at temperatures above 0.
//
// Its KV lies beside the target's, indexed by the block ids of one of the target's groups, and is
// advisory: it takes no block, keeps none and shortens no prefix hit. What there is of it in a
// request's blocks is found by the request's tokens (DraftKvIndex). Behind a prefix hit without it,
// the last kMaxDraftCatchUp tokens are computed alone, and the model sees the sequence begin there.
// A head computes what the target's last step has states of, and sees it begin where they do: it is
// asked after every step, for every request that was in it.
//
// It runs where its target does, on rank 0's device: its weights, its KV, the states that a head
// reads and the rows that it can sample there are in that memory, and the host sees the tokens of a
// pass before the next one.
//
// The engine's thread, while no step is in flight: operators of both run on the same compute
// threads, or in the same queue of a device. No call allocates but those with requests or lengths
// that are new.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/draft.h"
#include "engine/core/numa.h"
#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/decode_buckets.h"
#include "engine/draft_choice.h"
#include "engine/draft_kv_index.h"
#include "engine/draft_plan.h"
#include "engine/head_rows.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/model_rank.h"
#include "engine/sampling/sampler.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request that would have a draft. Spans live as long as the call.
struct DraftTask {
  RequestId id;
  std::span<const TokenId> known;   // prompt and committed tokens, not empty
  std::span<const BlockId> blocks;  // of the target's group DraftPlan::kv_group, from the first;
                                    // of all known tokens but the last, or more
  int32_t num_prompt_tokens = 0;    // of `known`
  int32_t num_cached_tokens = 0;    // the first ones, which the target took from its cache
  int32_t max = 0;                  // tokens wanted, at most; 0: only what is known is computed
  // Of a head: rows [first_row, first_row + num_rows) of the target's last step are those of the
  // tokens before the last one of `known`.
  int32_t first_row = 0;
  int32_t num_rows = 0;
};

class DraftModel {
 public:
  // `device` must outlive it, as `target` must a head, which reads its states. Weights and buffers
  // are as planned: `plan` has a draft.
  static Expected<std::unique_ptr<DraftModel>> create(const kernels::Device& device,
                                                      const Model* target,
                                                      PlannedDraft planned,
                                                      const MemoryPlan& plan,
                                                      const Placement& placement,
                                                      const Config& config);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // The target's, ascending, which min_tokens keeps from being drafted. Before the first propose().
  void use_end_tokens(std::vector<TokenId> end_tokens) {
    choice_->use_end_tokens(std::move(end_tokens));
  }

  // Before the first task of a request, and when it is over; it stays begun while it is preempted.
  void begin(RequestId id, const SamplingParams& params) {
    requests_.try_emplace(id, params, block_size_);
  }

  void end(RequestId id);

  // drafts[i]: what may follow tasks[i].known; at most max_num_seqs tasks, each of another request.
  // Empty, with this source, where a request was not begun, is beyond the model's context, or has
  // not been caught up with: a call computes no more tokens than a pass has room for, those of
  // tasks with few of them first.
  void propose(std::span<const DraftTask> tasks, std::span<Draft> drafts);

  // The target's group whose blocks tasks are to have.
  [[nodiscard]] int32_t kv_group() const { return plan_.kv_group; }

  // Whether it is a head, which is to be asked after every step.
  [[nodiscard]] bool is_head() const { return source_ >= DraftSource::kEagle; }

 private:
  // What is kept of a request.
  struct Known {
    Known(const SamplingParams& sampling, int32_t block_size);

    SamplingParams params;  // with the log-probability of what is chosen
    DraftTokenChain chain;
    int32_t floor = 0;   // what the model has not computed before this position it will not
    bool is_new = true;  // no call has caught up with it yet
    // Of a head: the target's state before this position, whose row may have to be made again, is
    // kept in this place.
    int32_t carried = -1;
    int32_t place = -1;
    uint64_t call = 0;             // that it was last in
    std::vector<TokenId> history;  // where the choice reads it: known tokens and those drafted
  };

  // A task in this call.
  struct Row {
    size_t task = 0;
    Known* request = nullptr;
    int32_t first = 0;  // position where the sequence begins for the model
    int32_t begin = 0;  // [begin, end): positions to compute in the first pass
    int32_t end = 0;
    int32_t covered = 0;  // positions that the request's blocks hold
    int32_t max = 0;      // drafted tokens
    int32_t tapped = 0;   // of a head: the first position whose row has a state
    int32_t last = 0;     // its last row in the pass that ran
    bool is_caught_up = false;

    [[nodiscard]] bool is_drafting() const { return is_caught_up && max > 0; }
  };

  DraftModel(const MemoryPlan& plan, const PlannedDraft& planned);
  Expected<void> allocate(const kernels::Device& device,
                          const Model* target,
                          PlannedDraft planned,
                          const MemoryPlan& plan,
                          const Placement& placement,
                          const Config& config);
  Expected<void> record_passes(const Config& config);

  Row row_of(const DraftTask& task, Known& request) const;
  void place(const DraftTask& task, Row& row) const;
  void place_head(const DraftTask& task, Row& row) const;
  void add_states(const DraftTask& task, const Row& row);
  int32_t place_of(Known& request);
  void plan_rows(std::span<const DraftTask> tasks);
  void claim_rows(std::span<const DraftTask> tasks);
  void begin_batch();
  void add_to_batch(const DraftTask& task, Row& row, int32_t begin, int32_t end);

  void add_token(TokenId token) {
    decision_.token_ids.push_back(token < num_known_ids_ ? token : 0);
  }

  void run_batch(const HiddenRows& hidden, bool may_replay);
  void first_pass(std::span<const DraftTask> tasks);
  void next_pass(std::span<const DraftTask> tasks, std::span<const Draft> drafts);
  void choose(std::span<const DraftTask> tasks, std::span<Draft> drafts);
  static uint8_t bin_of(const SamplingParams& params, float logprob);

  const DraftSource source_;
  const DraftPlan plan_;
  const int32_t block_size_;
  const int32_t num_known_ids_;  // rows of its embedding
  const int32_t num_tokens_;
  const StepBounds bounds_;
  const int32_t num_target_blocks_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<ModelRank> rank_;
  std::optional<DraftChoice> choice_;
  std::optional<HeadRows> head_rows_;
  std::optional<DecodeBuckets> buckets_;  // of a device that records passes
  DraftKvIndex index_;
  std::unordered_map<RequestId, Known> requests_;
  std::vector<Known*> kept_;  // by place of a kept state: whose it is; null: nobody's

  // Of a call.
  uint64_t num_calls_ = 0;
  std::vector<Row> rows_;
  std::vector<BlockId> own_blocks_;
  // Of a pass.
  SchedulerOutput decision_;
  InputBatch batch_;
  std::vector<int32_t> positions_;
  std::vector<InputBatch::SlotRows> no_slots_;
  std::vector<int32_t> last_rows_;
  std::vector<SamplerInput> inputs_;
};

}  // namespace sluice
