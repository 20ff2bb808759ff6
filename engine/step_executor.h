// SPDX-License-Identifier: Apache-2.0
// Runs steps and chooses their tokens: copies of blocks, layers, logits, sampling. A step is handed
// over as a value with all that running it takes (step_order.h), and comes back with what came out
// of it.
//
// Steps are in a queue of some depth: so many may be in flight while the next one is decided and
// submitted. Of a token that the step before has yet to choose it is known which row chooses it,
// and the thread that runs the steps puts it in. On the CPU the depth is 0 and submit() runs the
// step; with overlap it is 1, and a thread of its own does (step_queue.h). Nothing of a step in
// flight is shared with the engine thread but the KV bytes of its own blocks.
//
// A device with memory of its own has a queue: there submit() puts the step behind the one that
// runs, open tokens are put in on the device, and the device has its next step before the host has
// seen what this one chose. A step for which the host has something to do, rows that it chooses,
// scores or embeds, is waited for by the thread that runs it, as is the one before it: it is done
// then, and to be retired at once. On the CPU each one is such a step.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"
#include "engine/input_batch.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/sampling/grammar/grammar_state.h"
#include "engine/sampling/sampler.h"
#include "engine/step_order.h"
#include "engine/step_queue.h"
#include "kernels/sampling.h"
#include "scheduler/scheduler_output.h"

namespace sluice {

// A request that a token is chosen for, behind its last token and behind each of its drafts.
struct SampledRequest {
  RequestId id;
  int32_t slot = 0;
  std::shared_ptr<const SamplingParams> params;
  std::span<const TokenId> drafts;  // in the decision
  DraftSource draft_source = DraftSource::kNgram;
  int32_t num_tokens_before = 0;  // before the first draft, the open one included
  int32_t num_unsure = 0;         // of those, drafts that the step before may not have accepted
  size_t first_row = 0;   // of the step's chosen rows; 1 + drafts.size() of them
  size_t num_tokens = 0;  // that it got, by those first rows; 0: its logits mean nothing
  // Of the bits of the row behind its prompt, as the model gave them: equal rows have equal ones.
  // 0: not wanted, another row, or one that the host does not have.
  uint64_t check = 0;

  [[nodiscard]] size_t num_rows() const { return 1 + drafts.size(); }
};

// Consecutive rows of one prompt that is scored.
struct ScoredPrompt {
  RequestId id;
  int32_t slot = 0;
  size_t num_rows = 0;
  std::vector<PromptLogprob> logprobs;  // of `num_rows` tokens, once it has run
  bool is_finite = true;
};

// The state of a token behind the model's last norm.
struct EmbeddedRow {
  RequestId id;
  int32_t position = 0;
  std::vector<float> state;  // once it has run; empty: a rank has failed
};

struct StepWork {
  using Clock = std::chrono::steady_clock;

  explicit StepWork(const InputBatch::Bounds& bounds) : batch(bounds) {}

  uint64_t number = 0;
  StepOrder order;
  InputBatch batch;
  std::vector<SampledRequest> requests;  // in the order of the decision
  std::vector<ScoredPrompt> prompts;     // the same
  std::vector<EmbeddedRow> embedded;     // the same
  std::vector<SamplerInput> inputs;      // by chosen row, once it runs
  bool follows = false;  // it was put into the device's queue behind one that had not ended
  bool is_done = false;

  // Once it is.
  bool has_failed = false;                        // with a rank: what follows means nothing
  std::vector<SamplerResult> results;             // by chosen row
  std::vector<TokenId> tokens;                    // the same
  std::vector<kernels::TokenScore> top_logprobs;  // what they point to
  Clock::time_point started;
  Clock::time_point executed;
  Clock::time_point sampled;
  double device_idle = 0;  // seconds before it, where it follows another
};

// Engine thread only.
class StepExecutor {
 public:
  struct Options {
    bool overlap = false;
    int32_t num_slots = 0;  // of the scheduler
    int32_t max_logprobs = 0;
    std::vector<TokenId> end_tokens;  // the model's own, ascending
  };

  // `runner` must outlive the executor; nobody else calls its execute() and compute_logits().
  StepExecutor(ModelRunner& runner, Options options);
  ~StepExecutor();  // waits for what is in flight
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // Steps that may be in flight while another one is decided.
  [[nodiscard]] int32_t depth() const { return depth_; }

  // Whether a thread of its own calls operators.
  [[nodiscard]] bool is_threaded() const { return queue_->has_thread(); }

  // To be written before submit(), which takes it as the next step; at most depth() are in flight
  // then.
  [[nodiscard]] StepOrder& next_order() { return work(num_submitted_).order; }

  void submit();

  [[nodiscard]] int32_t num_in_flight() const {
    return static_cast<int32_t>(num_submitted_ - num_retired_);
  }

  // Whether submit() has waited for the oldest one in flight.
  [[nodiscard]] bool is_oldest_done() const {
    return !is_threaded() && num_in_flight() > 0 && work(num_retired_).is_done;
  }

  // Waits for the oldest one in flight. Valid until the next next_order() or release().
  StepWork& retire();

  // Lets go of what is held of ended requests, as the next order would: where none comes soon.
  // Nothing is in flight.
  void release(std::span<const int32_t> ended_slots);

 private:
  using Clock = StepWork::Clock;

  // What is known of a request wherever its steps run.
  struct SlotState {
    BegunRequest request;
    std::optional<GrammarState> grammar;
    // All its tokens, where a choice reads them; while a step runs, its drafts too.
    std::vector<TokenId> history;
    int32_t num_rejected = 0;  // drafts, by the latest step of its that is finished
  };

  StepWork& work(uint64_t number) { return works_[number % works_.size()]; }
  [[nodiscard]] const StepWork& work(uint64_t number) const {
    return works_[number % works_.size()];
  }

  SlotState& slot(int32_t index) { return slots_[static_cast<size_t>(index)]; }

  void lay_out(StepWork& work);
  void run(StepWork& work);
  void take_requests(StepOrder& order);
  void add_inputs(StepWork& work, SampledRequest& request);
  [[nodiscard]] bool needs_host(const StepWork& work) const;
  void begin(StepWork& work);
  void finish(StepWork& work);
  void check_first_row(SampledRequest& request, const StepWork& work);
  void note_chosen(SampledRequest& request, const StepWork& work);
  void settle(StepWork& work);
  void send_rows(StepWork& work);
  void score(StepWork& work);
  void embed(StepWork& work);

  ModelRunner& runner_;
  const int32_t depth_;
  std::vector<StepWork> works_;  // step n's is at n % size
  uint64_t num_submitted_ = 0;
  uint64_t num_retired_ = 0;
  std::vector<InputBatch::SlotRows> rows_of_slot_;  // of the latest step

  // Of the thread that runs the steps.
  std::vector<SlotState> slots_;
  Sampler sampler_;
  uint64_t num_finished_ = 0;
  std::vector<TokenId> chosen_;  // by the latest step that is finished
  Clock::time_point finished_;   // the same
  std::vector<kernels::SampleRow> device_rows_;
  std::vector<ScoreInput> score_inputs_;
  std::vector<int32_t> score_rows_;

  std::optional<StepQueue> queue_;  // goes first: its thread uses the rest
};

}  // namespace sluice
