// SPDX-License-Identifier: Apache-2.0
// Runs steps and chooses their tokens: block copies, layers, logits, sampling. A step arrives as a
// self-contained value (step_order.h) and returns with its results.
//
// Steps form a queue: up to depth() steps may be in flight while the next is decided and submitted.
// For a token that the previous step has yet to choose, its row is known, and the thread that runs
// the steps fills it in. On the CPU the depth is 0 and submit() runs the step; with overlap it is 1
// and a separate thread runs it (step_queue.h). A step in flight shares nothing with the engine
// thread but the KV bytes of its own blocks.
//
// A device with memory of its own has a queue: submit() queues a step after the running one, the
// device fills in pending tokens, and it starts the step before the host has seen the previous
// results. If the host has work in a step (rows that it chooses, scores or embeds), the thread that
// runs the step waits for it and the one before it; the step is then finished and must be retired
// at once. On the CPU every step is of this kind, unless the model's stages are processes: then
// submit() runs rank 0's stage, and what the last one hands back is awaited as the step retires,
// while the other stages work. Such steps are over disjoint requests, so that none waits for
// another's tokens.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/token_log.h"
#include "engine/core/types.h"
#include "engine/rank/input_batch.h"
#include "engine/request.h"
#include "engine/run/model_runner.h"
#include "engine/run/step_order.h"
#include "engine/run/step_queue.h"
#include "engine/sampling/grammar/grammar_state.h"
#include "engine/sampling/request_record.h"
#include "engine/sampling/sampler.h"
#include "kernels/sampling.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request that samples a token after its last token and after each draft.
struct SampledRequest {
  RequestId id;
  int32_t slot = 0;
  std::shared_ptr<const RequestRecord> record;
  std::span<const TokenId> drafts;  // from the decision
  DraftSource draft_source = DraftSource::kNgram;
  int32_t num_tokens_before = 0;  // before the first draft, the pending token included
  int32_t num_unsure = 0;         // drafts still in flight
  size_t first_row = 0;           // in the step's chosen rows, 1 + drafts.size() of them
  size_t num_tokens = 0;          // got, by its first rows; 0: its logits are invalid
  // Hash of the bits of the logits row after its prompt, as the model computed them; equal rows
  // have equal hashes. 0: not wanted, another row, or a row that the host does not have.
  uint64_t check = 0;

  [[nodiscard]] size_t num_rows() const { return 1 + drafts.size(); }
};

// Consecutive scored rows of one prompt.
struct ScoredPrompt {
  RequestId id;
  int32_t slot = 0;
  size_t num_rows = 0;
  std::vector<PromptLogprob> logprobs;  // `num_rows` entries after the step has run
  bool is_finite = true;
};

// A token's state after the model's last norm, or the logits of Options::label_tokens after it.
struct EmbeddedRow {
  RequestId id;
  int32_t position = 0;
  // Set after the step has run, in StepWork::states; empty: a rank has failed.
  std::span<const float> state;
};

struct StepWork {
  using Clock = std::chrono::steady_clock;

  explicit StepWork(const InputBatch::Bounds& bounds) : batch(bounds) {}

  uint64_t number = 0;
  StepOrder order;
  InputBatch batch;
  std::vector<SampledRequest> requests;  // in the order of the decision
  std::vector<ScoredPrompt> prompts;     // in the order of the decision
  std::vector<EmbeddedRow> embedded;     // in the order of the decision
  std::vector<RequestId> pooled;         // requests that end with these rows, in the same order
  std::vector<float> states;             // of `embedded`, consecutive
  std::vector<SamplerInput> inputs;      // by chosen row, when it runs
  bool follows = false;                  // queued on the device after a step that had not ended
  bool is_done = false;

  // Results, set when is_done is.
  bool has_failed = false;                        // a rank failed: the results are invalid
  std::vector<SamplerResult> results;             // by chosen row
  std::vector<TokenId> tokens;                    // by chosen row
  std::vector<kernels::TokenScore> top_logprobs;  // storage of the results' spans
  Clock::time_point started;
  Clock::time_point executed;
  Clock::time_point sampled;
  double device_idle = 0;  // idle seconds before the step, if it follows another
};

// Engine thread only.
class StepExecutor {
 public:
  struct Options {
    bool overlap = false;
    int32_t num_slots = 0;  // Scheduler::num_slots()
    int32_t max_logprobs = 0;
    std::vector<TokenId> end_tokens;  // the model's own, ascending
    // Embedded rows get the logits of these tokens instead of states; empty: states.
    std::vector<TokenId> label_tokens = {};
  };

  // `runner` must outlive the executor, the only caller of its execute() and compute_logits().
  StepExecutor(ModelRunner& runner, Options options);
  ~StepExecutor();  // waits for steps in flight
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // The number of steps that may be in flight while another is decided.
  [[nodiscard]] int32_t depth() const { return depth_; }

  // Whether a separate thread calls operators.
  [[nodiscard]] bool is_threaded() const { return queue_->has_thread(); }

  // The order that the caller writes before submit(), which takes it as the next step; at most
  // depth() steps are in flight then.
  [[nodiscard]] StepOrder& next_order() { return work(num_submitted_).order; }

  void submit();

  [[nodiscard]] int32_t num_in_flight() const {
    return static_cast<int32_t>(num_submitted_ - num_retired_);
  }

  // Whether submit() has already waited for the oldest step in flight.
  [[nodiscard]] bool is_oldest_done() const {
    return !is_threaded() && num_in_flight() > 0 && work(num_retired_).is_done;
  }

  // Waits for the oldest step in flight. Valid until the next next_order() or release().
  StepWork& retire();

  // Releases what is held for ended requests, as the next order would; used when none comes soon.
  // No step may be in flight.
  void release(std::span<const int32_t> ended_slots);

 private:
  using Clock = StepWork::Clock;

  // A request's state on the thread that runs its steps.
  struct SlotState {
    std::shared_ptr<const RequestRecord> record;  // null: none
    std::optional<GrammarState> grammar;
    // If a choice reads its tokens: those at the end that the log may lack, during a step also its
    // drafts.
    std::vector<TokenId> tail;
    int32_t num_rejected = 0;  // rejected drafts of its latest finished step

    [[nodiscard]] bool is_of(RequestId id) const { return record != nullptr && record->id == id; }
  };

  StepWork& work(uint64_t number) { return works_[number % works_.size()]; }

  [[nodiscard]] const StepWork& work(uint64_t number) const {
    return works_[number % works_.size()];
  }

  SlotState& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }

  void lay_out(StepWork& work);
  void run(StepWork& work);
  void take_requests(StepOrder& order);
  static TokenSequence add_drafts(SlotState& state, const SampledRequest& request);
  void add_inputs(StepWork& work, SampledRequest& request);
  [[nodiscard]] bool needs_host(const StepWork& work) const;
  void finish_rows_of(std::span<const int32_t> ended_slots, uint64_t end);
  void begin(StepWork& work);
  void finish(StepWork& work);
  void check_first_row(SampledRequest& request, const StepWork& work);
  void note_chosen(SampledRequest& request, const StepWork& work);
  void settle(StepWork& work);
  void send_rows(StepWork& work);
  void score(StepWork& work);
  void embed(StepWork& work);
  void read_labels(std::span<const int32_t> rows, float* out);

  ModelRunner& runner_;
  const int32_t depth_;
  std::vector<StepWork> works_;  // step n's is at n % size
  uint64_t num_submitted_ = 0;
  uint64_t num_retired_ = 0;
  std::vector<InputBatch::SlotRows> rows_of_slot_;  // the latest step's rows

  // Used only by the thread that runs the steps.
  std::vector<SlotState> slots_;
  const std::vector<TokenId> label_tokens_;
  Sampler sampler_;
  uint64_t num_finished_ = 0;
  std::vector<TokenId> chosen_;  // by the latest finished step
  Clock::time_point finished_;   // when that step finished
  std::vector<kernels::SampleRow> device_rows_;
  std::vector<ScoreInput> score_inputs_;
  std::vector<int32_t> score_rows_;

  std::optional<StepQueue> queue_;  // destroyed first: its thread uses other members
};

}  // namespace sluice
