// SPDX-License-Identifier: Apache-2.0
#include "engine/step_executor.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/trace.h"

namespace sluice {
namespace {

// Of the row behind so many of the request's drafts.
SamplerInput input_of(const SampledRequest& request, size_t num_drafts) {
  const size_t num_unread = request.drafts.size() - num_drafts;
  const std::span<const TokenId> history = request.history;
  return {.params = request.params.get(),
          .logits = nullptr,
          .tokens = history.empty() ? request.tokens : history.first(history.size() - num_unread),
          .num_prompt_tokens = request.num_prompt_tokens,
          .num_generated = request.num_generated + static_cast<int32_t>(num_drafts),
          .grammar = request.grammar.get()};
}

// How many tokens the request got: drafts count as long as each is what was chosen in its place.
// A row whose logits mean nothing ends that; it fails the request once it is the first one.
size_t count_tokens(const SampledRequest& request, std::span<const SamplerResult> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].finish_reason == FinishReason::kError) return i;
    if (rows[i].finish_reason != FinishReason::kNone || i == request.drafts.size()) return i + 1;
    if (rows[i].token != request.drafts[i]) return i + 1;
  }
  return rows.size();
}

}  // namespace

StepExecutor::StepExecutor(ModelRunner& runner, const Options& options)
    : runner_(runner),
      is_queued_(runner.sampling().chooses()),
      is_threaded_(options.overlap && !is_queued_),
      row_of_slot_(static_cast<size_t>(options.num_slots)),
      sampler_(runner.model().vocab_size,
               runner.batch_bounds().max_rows,
               options.max_logprobs,
               runner.device().num_threads(),
               options.end_tokens) {
  const auto max_seqs = static_cast<size_t>(runner.batch_bounds().max_seqs);
  const auto max_rows = static_cast<size_t>(runner.batch_bounds().max_rows);
  const auto max_logprobs = static_cast<size_t>(options.max_logprobs);
  works_.reserve(static_cast<size_t>(depth()) + 1);
  if (is_queued_) CHECK_LT(static_cast<uint64_t>(depth()), DeviceSampling::kSteps);
  for (int32_t i = 0; i <= depth(); ++i) {
    StepWork& added = works_.emplace_back(runner.batch_bounds());
    added.requests.reserve(max_seqs);
    added.prompts.reserve(max_seqs);
    added.inputs.reserve(max_rows);
    added.results.reserve(max_rows);
    added.tokens.reserve(max_rows);
    added.top_logprobs.reserve(max_rows * max_logprobs);
  }
  chosen_.reserve(max_rows);
  device_rows_.reserve(max_rows);
  score_inputs_.reserve(max_rows);
  score_rows_.reserve(max_rows);
  if (is_threaded_) thread_ = std::thread([this] { thread_main(); });
}

StepExecutor::~StepExecutor() {
  while (is_queued_ && num_in_flight() > 0) retire();
  if (!is_threaded_) return;
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

// --- Engine thread ---------------------------------------------------------------------------

void StepExecutor::submit(const SchedulerOutput& decision,
                          const Scheduler& scheduler,
                          const RequestTable& requests) {
  CHECK_LE(num_in_flight(), depth());
  StepWork& next = work(num_submitted_);
  next.number = num_submitted_;
  next.decision = decision;
  next.batch.build(decision, row_of_slot_);
  fill(next, scheduler, requests);
  next.is_done = false;
  if (is_threaded_) {
    {
      const std::scoped_lock lock(mutex_);
      ++num_submitted_;
    }
    changed_.notify_all();
    return;
  }
  if (is_queued_) {
    enqueue(next);
  } else {
    begin(next);
    finish(next);
  }
  ++num_submitted_;
}

void StepExecutor::fill(StepWork& work,
                        const Scheduler& scheduler,
                        const RequestTable& requests) {
  work.requests.clear();
  work.inputs.clear();
  std::span<const TokenId> token_ids = work.decision.token_ids;
  for (const ScheduledRequest& item : work.decision.scheduled) {
    const std::span<const TokenId> own =
        token_ids.first(static_cast<size_t>(item.num_scheduled_tokens));
    token_ids = token_ids.subspan(own.size());
    if (item.chosen.empty()) continue;
    add_request(work,
                item,
                own.last(static_cast<size_t>(item.num_draft_tokens)),
                *scheduler.find(item.id),
                *requests.find(item.id));
  }
  work.prompts.clear();
  for (const PromptRow& row : work.batch.prompt_rows()) {
    if (work.prompts.empty() || work.prompts.back().id != row.id) {
      ScoredPrompt& added = work.prompts.emplace_back();
      added.id = row.id;
      added.num_logprobs = requests.find(row.id)->sampling->num_prompt_logprobs;
    }
    ++work.prompts.back().num_rows;
  }
}

void StepExecutor::add_request(StepWork& work,
                               const ScheduledRequest& item,
                               std::span<const TokenId> drafts,
                               const Request& request,
                               const RequestState& state) {
  SampledRequest& added = work.requests.emplace_back();
  int32_t& row_of_slot = row_of_slot_[static_cast<size_t>(item.slot)];
  added.id = item.id;
  added.row_before = row_of_slot;
  added.params = state.sampling;
  added.grammar = state.grammar;
  added.tokens = request.tokens;
  added.drafts = drafts;
  added.draft_source = item.draft_source;
  added.num_prompt_tokens = request.num_prompt_tokens;
  const int32_t num_tokens = item.chosen.begin + 1;
  added.num_generated = num_tokens - request.num_prompt_tokens;
  const bool is_open = num_tokens > request.num_tokens();
  const bool reads = added.grammar != nullptr || reads_tokens(*added.params);
  if ((is_open || !drafts.empty()) && reads) {
    added.history.reserve(static_cast<size_t>(num_tokens) + drafts.size());
    added.history = request.tokens;
    if (is_open) added.history.push_back(kInvalidToken);
    added.history.insert(added.history.end(), drafts.begin(), drafts.end());
  }
  added.first_row = work.inputs.size();
  for (size_t i = 0; i < added.num_rows(); ++i) {
    SamplerInput& input = work.inputs.emplace_back(input_of(added, i));
    input.on_device = is_queued_ && sampler_.can_choose(input);
  }
  row_of_slot = static_cast<int32_t>(work.inputs.size()) - 1;
}

StepWork& StepExecutor::retire() {
  CHECK_GT(num_in_flight(), 0);
  if (is_threaded_) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_run_ > num_retired_; });
  }
  StepWork& oldest = work(num_retired_++);
  if (!oldest.is_done) finish(oldest);
  return oldest;
}

// A step that the host has a part in needs the tokens of the one before, and has its own at once.
void StepExecutor::enqueue(StepWork& next) {
  const bool waits =
      !next.prompts.empty() || !std::ranges::all_of(next.inputs, &SamplerInput::on_device);
  if (waits && num_in_flight() > 0) {
    StepWork& before = work(num_submitted_ - 1);
    if (!before.is_done) finish(before);
  }
  next.follows = num_in_flight() > 0 && !waits;
  begin(next);
  if (waits) finish(next);
}

// --- Whoever runs the steps ------------------------------------------------------------------

void StepExecutor::thread_main() {
  runner_.device().enter();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return num_run_ < num_submitted_ || is_ending_; });
    if (num_run_ == num_submitted_) return;
    StepWork& next = work(num_run_);
    lock.unlock();
    begin(next);
    finish(next);
    lock.lock();
    ++num_run_;
    changed_.notify_all();
  }
}

void StepExecutor::begin(StepWork& work) {
  const kernels::TraceRange range(runner_.device().type(), "step");
  work.started = Clock::now();
  const bool is_behind = is_queued_ && work.number > 0 && !this->work(work.number - 1).is_done;
  if (!is_behind) {
    work.batch.resolve(runner_.device().host_context(), chosen_, runner_.model().vocab_size);
  }
  set_inputs(work);
  if (is_queued_) send_rows(work);
  runner_.execute(work.decision.copies, work.batch);
  work.executed = Clock::now();
  score(work);
  runner_.compute_logits();
  if (!is_queued_) return;
  runner_.sampling().choose(runner_.exec(), work.number);
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    if (!work.inputs[i].on_device) work.inputs[i].logits = runner_.begin_host_copy(i, 1);
  }
}

void StepExecutor::finish(StepWork& work) {
  std::span<const kernels::SampleRow> chosen;
  if (is_queued_) {
    chosen = runner_.sampling().wait(work.number);
    runner_.wait_for_host_copies();
    // What it waited for in the queue was the step before.
    work.started = std::max(work.started, finished_);
    work.executed = finished_ = Clock::now();
    // A step that a failed rank did not begin has no time of its beginning.
    work.device_idle =
        work.follows && !runner_.has_failed() ? runner_.sampling().idle_before(work.number) : 0;
  }
  const std::span<const SamplerResult> results =
      sampler_.sample(runner_.device().host_context(), work.inputs, chosen);
  work.results.assign(results.begin(), results.end());
  work.top_logprobs.clear();
  chosen_.clear();
  for (SamplerResult& result : work.results) {
    const size_t begin = work.top_logprobs.size();
    work.top_logprobs.insert(
        work.top_logprobs.end(), result.top_logprobs.begin(), result.top_logprobs.end());
    result.top_logprobs = std::span(work.top_logprobs).subspan(begin);
    // The next step may already have a row that goes on behind one that failed.
    chosen_.push_back(std::max(result.token, TokenId{0}));
  }
  work.tokens = chosen_;
  for (SampledRequest& request : work.requests) {
    const std::span<const SamplerResult> rows = work.results;
    request.num_tokens = count_tokens(request, rows.subspan(request.first_row, request.num_rows()));
  }
  work.has_failed = runner_.has_failed();
  work.is_done = true;
  work.sampled = Clock::now();
}

void StepExecutor::set_inputs(StepWork& work) {
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  for (SampledRequest& request : work.requests) {
    if (request.history.empty() || request.history.back() != kInvalidToken) continue;
    request.history.back() = chosen_[static_cast<size_t>(request.row_before)];
  }
  for (size_t i = 0; i < work.inputs.size(); ++i) {
    work.inputs[i].logits = runner_.logits() + i * vocab;
  }
}

void StepExecutor::send_rows(StepWork& work) {
  device_rows_.clear();
  for (const SamplerInput& input : work.inputs) {
    if (input.on_device) device_rows_.push_back(sampler_.device_row(input));
  }
  runner_.sampling().send(work.number, device_rows_);
}

// As many rows at once as there is room for logits; a row's bits do not depend on that.
void StepExecutor::score(StepWork& work) {
  const auto vocab = static_cast<size_t>(runner_.model().vocab_size);
  const std::span<const PromptRow> all = work.batch.prompt_rows();
  size_t begin = 0;
  for (ScoredPrompt& prompt : work.prompts) {
    std::span<const PromptRow> rest = all.subspan(begin, prompt.num_rows);
    begin += prompt.num_rows;
    prompt.logprobs.reserve(prompt.num_rows);
    while (!rest.empty()) {
      const std::span<const PromptRow> rows = rest.first(std::min(rest.size(), runner_.max_rows()));
      rest = rest.subspan(rows.size());
      score_rows_.clear();
      for (const PromptRow& row : rows) score_rows_.push_back(row.row);
      runner_.compute_logits(score_rows_);
      const float* const logits = runner_.begin_host_copy(0, rows.size());
      runner_.wait_for_host_copies();
      score_inputs_.clear();
      for (size_t i = 0; i < rows.size(); ++i) {
        score_inputs_.push_back({.logits = logits + i * vocab,
                                 .token = rows[i].next,
                                 .num_logprobs = prompt.num_logprobs});
      }
      const std::span<const ScoreResult> results =
          sampler_.score(runner_.device().host_context(), score_inputs_);
      for (size_t i = 0; i < rows.size(); ++i) {
        prompt.is_finite = prompt.is_finite && results[i].finite;
        PromptLogprob& added = prompt.logprobs.emplace_back();
        added.token = rows[i].next;
        added.logprob = results[i].logprob;
        added.rank = results[i].rank;
        for (const kernels::TokenScore& top : results[i].top_logprobs) {
          added.top_logprobs.push_back({.token = top.token, .logprob = top.logprob});
        }
      }
    }
  }
}

}  // namespace sluice
