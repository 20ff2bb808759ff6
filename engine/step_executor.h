// SPDX-License-Identifier: Apache-2.0
// Runs steps and chooses their tokens: copies of blocks, layers, logits, sampling. A step is handed
// over as a value with all that running it takes, and comes back with what came out of it.
//
// On the CPU submit() runs the step. With overlap a thread of its own does, in the place of a
// device's queue, and the next step may be decided and submitted meanwhile: of a token that the
// step before has yet to choose it is known which row chooses it, and the thread puts it in.
// Nothing of a step in flight is shared with the engine thread but the KV bytes of its own blocks.
//
// On a device with memory of its own submit() puts the step into the device's queue, behind the one
// that runs, and open tokens are put in there: the device has its next step before the host has
// seen what this one chose. A step for which the host has something to do, rows that are edited or
// prompts that are scored, is waited for by submit(), as is the one before it: it is done then, and
// to be retired at once.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"
#include "engine/input_batch.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/request_table.h"
#include "engine/sampling/sampler.h"
#include "kernels/sampling.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

// A request that a token is chosen for, behind its last token and behind each of its drafts.
struct SampledRequest {
  RequestId id;
  int32_t row_before = 0;  // of the step before, where that chose its last token
  std::shared_ptr<const SamplingParams> params;
  std::shared_ptr<GrammarState> grammar;  // of whoever runs the steps; null: none
  std::span<const TokenId> tokens;  // known ones, in the scheduler's request
  std::span<const TokenId> drafts;  // in the decision
  DraftSource draft_source = DraftSource::kNgram;
  int32_t num_prompt_tokens = 0;
  int32_t num_generated = 0;  // before the first draft, the open one included
  // In place of `tokens` where one is open or drafts follow, and all are read; drafts included.
  std::vector<TokenId> history;
  size_t first_row = 0;   // of the step's chosen rows; 1 + drafts.size() of them
  size_t num_tokens = 0;  // that it got, by those first rows; 0: its logits mean nothing

  [[nodiscard]] size_t num_rows() const { return 1 + drafts.size(); }
};

// Consecutive rows of one prompt that is scored.
struct ScoredPrompt {
  RequestId id;
  size_t num_rows = 0;
  int32_t num_logprobs = 0;
  std::vector<PromptLogprob> logprobs;  // of `num_rows` tokens, once it has run
  bool is_finite = true;
};

struct StepWork {
  using Clock = std::chrono::steady_clock;

  explicit StepWork(const InputBatch::Bounds& bounds) : batch(bounds) {}

  uint64_t number = 0;
  SchedulerOutput decision;
  InputBatch batch;
  std::vector<SampledRequest> requests;  // in the order of the decision
  std::vector<ScoredPrompt> prompts;     // the same
  std::vector<SamplerInput> inputs;      // by chosen row; logits once it has begun
  bool follows = false;               // it was put into the queue behind one that had not ended
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
  StepExecutor(ModelRunner& runner, const Options& options);
  ~StepExecutor();  // waits for what is in flight
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  // Steps that may be in flight while another one is decided.
  [[nodiscard]] int32_t depth() const { return is_threaded_ || is_queued_ ? 1 : 0; }

  // Whether a thread of its own calls operators.
  [[nodiscard]] bool is_threaded() const { return is_threaded_; }

  // At most depth() are in flight before. The requests' tokens stay where they are until retire().
  void submit(const SchedulerOutput& decision,
              const Scheduler& scheduler,
              const RequestTable& requests);

  [[nodiscard]] int32_t num_in_flight() const {
    return static_cast<int32_t>(num_submitted_ - num_retired_);
  }

  // Whether submit() has waited for the oldest one in flight.
  [[nodiscard]] bool is_oldest_done() const {
    return is_queued_ && num_in_flight() > 0 && work(num_retired_).is_done;
  }

  // Waits for the oldest one in flight. Valid until the next submit().
  StepWork& retire();

 private:
  using Clock = StepWork::Clock;

  StepWork& work(uint64_t number) { return works_[number % works_.size()]; }
  [[nodiscard]] const StepWork& work(uint64_t number) const {
    return works_[number % works_.size()];
  }

  void fill(StepWork& work, const Scheduler& scheduler, const RequestTable& requests);
  void add_request(StepWork& work,
                   const ScheduledRequest& item,
                   std::span<const TokenId> drafts,
                   const Request& request,
                   const RequestState& state);
  void enqueue(StepWork& work);
  void thread_main();
  void begin(StepWork& work);
  void finish(StepWork& work);
  void set_inputs(StepWork& work);
  void send_rows(StepWork& work);
  void score(StepWork& work);

  ModelRunner& runner_;
  const bool is_queued_;
  const bool is_threaded_;
  std::vector<StepWork> works_;  // step n's is at n % size
  uint64_t num_submitted_ = 0;   // with a thread, written under mutex_
  uint64_t num_retired_ = 0;     // engine thread only
  std::vector<int32_t> row_of_slot_;  // the same: of the latest step, the last of its chosen rows

  // Of whoever runs the steps.
  Sampler sampler_;
  std::vector<TokenId> chosen_;  // by the latest step that is done
  Clock::time_point finished_;   // the same
  std::vector<kernels::SampleRow> device_rows_;
  std::vector<ScoreInput> score_inputs_;
  std::vector<int32_t> score_rows_;

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_run_ = 0;    // guarded by mutex_
  bool is_ending_ = false;  // the same
  std::thread thread_;
};

}  // namespace sluice
