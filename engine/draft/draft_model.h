// SPDX-License-Identifier: Apache-2.0
// Drafts by a second model: a smaller language model with the target's vocabulary, or a head that
// reads the target's hidden states (models/eagle.h, eagle3.h, mtp.h). It chooses a token as the
// target does: the same sampler with the request's own seed, position, temperature, filters and
// edits, over its own logits. Sharing the noise makes both agree more often than independent draws
// would, also at temperatures above 0.
//
// Its KV is stored beside the target's, indexed by the block ids of one of the target's groups, and
// is advisory: it takes no block, keeps none and shortens no prefix hit. DraftKvIndex finds by a
// request's tokens what its blocks hold. After a prefix hit without draft KV only the last
// kMaxDraftCatchUp tokens are computed, and the model's sequence begins there. A head computes the
// rows for which the target's last step has states and begins there; it is therefore asked after
// every step, for every request in it.
//
// It runs on rank 0's device of the target: its weights, KV, a head's input states and the rows
// that the device can sample are in that memory, and the host sees the tokens of a pass before the
// next one.
//
// Called on the engine thread while no step is in flight, because operators of both models share
// the compute threads or the device's queue. Only calls with new requests or lengths allocate.
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
#include "engine/draft/draft_choice.h"
#include "engine/draft/draft_kv_index.h"
#include "engine/draft/draft_memory.h"
#include "engine/draft/draft_plan.h"
#include "engine/draft/head_rows.h"
#include "engine/rank/decode_buckets.h"
#include "engine/rank/input_batch.h"
#include "engine/rank/model_rank.h"
#include "engine/sampling/sampler.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request that wants a draft. Spans live as long as the call.
struct DraftTask {
  RequestId id;
  std::span<const TokenId> known;   // prompt and committed tokens, not empty
  std::span<const BlockId> blocks;  // from group DraftPlan::kv_group, from the first; cover at
                                    // least all known tokens but the last
  int32_t num_prompt_tokens = 0;    // leading part of `known`
  int32_t num_cached_tokens = 0;    // leading tokens that the target took from its cache
  int32_t max = 0;                  // most tokens wanted; 0: only compute known tokens
  // For a head: rows [first_row, first_row + num_rows) of the target's last step belong to the
  // tokens before the last one of `known`.
  int32_t first_row = 0;
  int32_t num_rows = 0;
};

class DraftModel {
 public:
  // `device` must outlive the model; so must `target` for a head, which reads its states. Weights
  // and buffers follow `planned` and its share of the memory plan.
  static Expected<std::unique_ptr<DraftModel>> create(const kernels::Device& device,
                                                      const Model* target,
                                                      PlannedDraft planned,
                                                      const DraftPlan& plan,
                                                      const Placement& placement,
                                                      const Config& config);
  ~DraftModel();
  DraftModel(const DraftModel&) = delete;
  DraftModel& operator=(const DraftModel&) = delete;

  // Sets the target's end tokens, ascending, which min_tokens suppresses. Before the first
  // propose().
  void use_end_tokens(std::vector<TokenId> end_tokens) {
    choice_->use_end_tokens(std::move(end_tokens));
  }

  // begin() precedes a request's first task, end() follows its last; preemption does not end it.
  void begin(RequestId id, const SamplingParams& params) {
    requests_.try_emplace(id, params, block_size_);
  }

  void end(RequestId id);

  // Sets drafts[i] to what may follow tasks[i].known; at most max_num_seqs tasks, each of another
  // request. A draft is empty, with this source, when its request was not begun, exceeds the
  // model's context, or is not caught up yet: a call computes only as many tokens as a pass holds,
  // tasks with few of them first.
  void propose(std::span<const DraftTask> tasks, std::span<Draft> drafts);

  // The target's KV group whose blocks tasks must pass.
  [[nodiscard]] int32_t kv_group() const { return plan_.kv_group; }

  // Whether the model is a head, which must be asked after every step.
  [[nodiscard]] bool is_head() const { return source_ >= DraftSource::kEagle; }

 private:
  // State kept per request.
  struct Known {
    Known(const SamplingParams& sampling, int32_t block_size);

    SamplingParams params;  // also ask for the chosen token's log-probability
    DraftTokenChain chain;
    int32_t floor = 0;   // positions before it are never computed
    bool is_new = true;  // no call has caught up with it yet
    // For a head: the place that keeps the target's state before this position, whose row may have
    // to be recomputed.
    int32_t carried = -1;
    int32_t place = -1;
    uint64_t call = 0;  // latest call with this request
  };

  // A task during one call.
  struct Row {
    size_t task = 0;
    Known* request = nullptr;
    int32_t first = 0;  // position where the sequence begins for the model
    int32_t begin = 0;  // [begin, end): positions to compute in the first pass
    int32_t end = 0;
    int32_t covered = 0;  // positions that the request's blocks hold
    int32_t max = 0;      // drafted tokens
    int32_t tapped = 0;   // for a head: first position whose row has a state
    int32_t last = 0;     // its last row in the latest pass
    bool is_caught_up = false;

    [[nodiscard]] bool is_drafting() const { return is_caught_up && max > 0; }
  };

  DraftModel(const DraftPlan& plan, const PlannedDraft& planned, int32_t block_size);
  Expected<void> allocate(const kernels::Device& device,
                          const Model* target,
                          PlannedDraft planned,
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
  std::optional<DecodeBuckets> buckets_;  // set on a device that records passes
  DraftKvIndex index_;
  std::unordered_map<RequestId, Known> requests_;
  std::vector<Known*> kept_;  // request by place of a kept state, or null

  // State of one call.
  uint64_t num_calls_ = 0;
  std::vector<Row> rows_;
  // State of one pass.
  SchedulerOutput decision_;
  InputBatch batch_;
  std::vector<int32_t> positions_;
  std::vector<InputBatch::SlotRows> no_slots_;
  std::vector<int32_t> last_rows_;
  std::vector<SamplerInput> inputs_;
};

}  // namespace sluice
