// SPDX-License-Identifier: Apache-2.0
// The step loop: drain inbox -> schedule -> run -> sample -> commit -> publish, on one thread.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/core/queue.h"
#include "engine/kv_event_publisher.h"
#include "engine/model_runner.h"
#include "engine/request_table.h"
#include "engine/sampling/sampler.h"
#include "engine/step_log.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/generation_defaults.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct SubmitCommand {
  RequestId id;
  ValidRequest request;
  OutputSink* sink;
};

struct AbortCommand {
  RequestId id;
};

struct StateCommand {
  int32_t num_steps;
  std::function<void(EngineState)> done;
};

struct StopCommand {};

using Command = std::variant<SubmitCommand, AbortCommand, StateCommand, StopCommand>;

class LocalEngine final : public Engine {
 public:
  // Starts the engine thread, which loads the model; returns when it is ready or has failed.
  static Expected<std::unique_ptr<Engine>> create(const Config& config);
  ~LocalEngine() override { stop(); }

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;
  void abort(RequestId id) override { inbox_.push_urgent(AbortCommand{id}); }
  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;
  [[nodiscard]] const ModelInfo& model() const override { return info_; }
  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }
  void drain() override { draining_ = true; }
  void stop() override;

 private:
  // Everything below the inbox; made and used on the engine thread.
  struct Core {
    Core(const Config& config, std::unique_ptr<ModelRunner> model_runner, const Tokenizer& tokenizer);

    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<KvEventPublisher> events;  // null: nobody is told; outlives kv
    KvCacheManager kv;
    Scheduler scheduler;
    Sampler sampler;
    RequestTable requests;
    StepLog steps;
    std::vector<SamplerInput> sampler_inputs;
    std::vector<ScoreInput> score_inputs;
    std::vector<int32_t> score_rows;
    std::vector<RequestId> failed;  // this step: logits of their prompts are not finite
    std::vector<SampledToken> sampled;
    std::vector<RequestId> aborted;
  };

  explicit LocalEngine(const Config& config)
      : config_(config), inbox_(static_cast<size_t>(config.max_num_queued_reqs) * 2 + 64) {}

  Expected<void> load();
  Expected<void> enter_queue(int64_t num_tokens);
  void leave_queue(int64_t num_tokens);
  void run();
  void drain_inbox();
  void handle(SubmitCommand& command);
  void handle(const AbortCommand& command);
  void handle(const StateCommand& command);
  void handle(const StopCommand& command);
  void record(const SchedulerOutput& output, StepRecord& step) const;
  void step();
  void score_prompts();
  void add_scores(std::span<const PromptRow> rows, std::span<const ScoreResult> results);
  std::span<const SamplerResult> sample();
  void commit(const SchedulerOutput& output,
              std::span<const SamplerResult> results,
              Clock::time_point started);
  void publish_stats();

  const Config config_;
  Inbox<Command> inbox_;
  std::vector<Command> commands_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelInfo info_;
  std::unique_ptr<Core> core_;
  std::atomic<uint64_t> next_id_ = 1;
  std::atomic<int64_t> num_queued_ = 0;  // submitted, not yet scheduled for the first time
  std::atomic<int64_t> num_queued_tokens_ = 0;  // of their prompts
  std::atomic<double> tokens_per_s_ = 0;        // of late; 0: no step yet
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> step_started_ns_ = 0;
  std::atomic<int64_t> last_progress_ns_ = 0;
  bool stopping_ = false;  // engine thread only
  EngineStats counters_;   // engine thread only
  mutable std::mutex stats_mutex_;  // held for a copy; the engine thread only tries it
  EngineStats published_;           // guarded by stats_mutex_
  std::mutex join_mutex_;
  std::thread thread_;
};

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

LocalEngine::Core::Core(const Config& config,
                        std::unique_ptr<ModelRunner> model_runner,
                        const Tokenizer& tokenizer)
    : runner(std::move(model_runner)),
      kv({.block_size = config.block_size,
          .enable_prefix_caching = config.enable_prefix_caching,
          .max_num_seqs = config.max_num_seqs,
          .max_model_len = runner->plan().max_model_len},
         runner->kv_groups()),
      scheduler({.max_num_seqs = config.max_num_seqs,
                 .max_num_batched_tokens = config.max_num_batched_tokens,
                 .step_target_ms = static_cast<double>(config.step_target_ms),
                 .max_num_queued_reqs = config.max_num_queued_reqs,
                 .max_model_len = runner->plan().max_model_len,
                 .preempt_every = config.debug_preempt_every},
                kv),
      sampler(runner->model().vocab_size,
              config.max_num_seqs,
              config.max_logprobs,
              runner->device().num_threads(),
              tokenizer.end_tokens()) {
  const auto max_seqs = static_cast<size_t>(config.max_num_seqs);
  sampler_inputs.reserve(max_seqs);
  score_inputs.reserve(max_seqs);
  score_rows.reserve(max_seqs);
  sampled.reserve(max_seqs);
  aborted.reserve(max_seqs);
}

Expected<std::unique_ptr<Engine>> LocalEngine::create(const Config& config) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine(config));
  std::promise<Expected<void>> loaded;
  std::future<Expected<void>> result = loaded.get_future();
  engine->thread_ = std::thread([self = engine.get(), &loaded] {
    Expected<void> status = self->load();
    const bool ready = status.has_value();
    loaded.set_value(std::move(status));
    if (ready) self->run();
    self->core_.reset();
  });
  SLUICE_TRY_VOID(result.get());
  return engine;
}

Expected<void> LocalEngine::load() {
  SLUICE_TRY(const KvEventsOptions events, parse_kv_events_config(config_.kv_events_config));
  SLUICE_TRY(auto runner, ModelRunner::create(config_));
  CheckpointText text = runner->take_text();
  tokenizer_ = std::move(text.tokenizer);
  if (tokenizer_->vocab_size() > runner->model().vocab_size) {
    return make_error(ErrorCode::kDataLoss,
                      config_.model + ": tokenizer: found " +
                          std::to_string(tokenizer_->vocab_size()) + " tokens, the embedding has " +
                          std::to_string(runner->model().vocab_size) + " rows");
  }
  info_.architecture = runner->model().architecture;
  info_.path = config_.model;
  info_.chat_template = std::move(text.chat_template);
  info_.vocab_size = runner->model().vocab_size;
  info_.max_model_len = runner->plan().max_model_len;
  info_.num_parameters = runner->num_parameters();
  info_.system_fingerprint = runner->fingerprint();
  info_.backend = runner->device().name();
  info_.memory_plan = runner->plan().describe();
  SLUICE_TRY(const GenerationDefaults defaults,
             read_generation_defaults(config_, runner->checkpoint()));
  info_.sampling = defaults.sampling;
  info_.max_output_tokens = defaults.max_output_tokens;
  if (!defaults.summary.empty()) {
    log_event(LogLevel::kInfo, "sampling_defaults", "of_the_model", defaults.summary);
  }
  core_ = std::make_unique<Core>(config_, std::move(runner), *tokenizer_);
  if (events.is_enabled) {
    SLUICE_TRY(
        core_->events,
        KvEventPublisher::create(events, config_.block_size, core_->runner->kv_groups()));
    core_->kv.set_event_sink(*core_->events);
  }
  last_progress_ns_ = now_ns();
  publish_stats();
  return {};
}

int64_t num_prompt_tokens(const ValidRequest& request) {
  size_t sum = 0;
  for (const PromptSpan& span : request.prompt) sum += span.token_ids.size();
  return static_cast<int64_t>(sum);
}

// A prompt longer than the bound on tokens may wait alone.
Expected<void> LocalEngine::enter_queue(int64_t num_tokens) {
  const int64_t tokens_before = num_queued_tokens_.fetch_add(num_tokens);
  const int64_t before = num_queued_.fetch_add(1);
  const bool too_many = before >= config_.max_num_queued_reqs;
  if (!too_many && (before == 0 || tokens_before + num_tokens <= config_.max_num_queued_tokens)) {
    return {};
  }
  leave_queue(num_tokens);
  Error error{ErrorCode::kResourceExhausted,
              too_many ? "The queue is full: " + std::to_string(before) + " requests wait."
                       : "The queue is full: " + std::to_string(tokens_before) +
                             " tokens of prompts wait.",
              {},
              {}};
  // Until what waits now has been computed, at the speed of late.
  constexpr double kLongest = 60;
  const double rate = tokens_per_s_;
  if (rate > 0) {
    error.retry_after_s = static_cast<int32_t>(
        std::clamp(std::ceil(static_cast<double>(tokens_before) / rate), 1.0, kLongest));
  }
  return tl::unexpected(std::move(error));
}

void LocalEngine::leave_queue(int64_t num_tokens) {
  num_queued_tokens_.fetch_sub(num_tokens);
  num_queued_.fetch_sub(1);
}

Expected<RequestId> LocalEngine::submit(ValidRequest request, OutputSink& sink) {
  if (draining_) {
    return make_error(ErrorCode::kUnavailable, "The server is draining and takes no new requests.");
  }
  const int64_t num_tokens = num_prompt_tokens(request);
  SLUICE_TRY_VOID(enter_queue(num_tokens));
  const RequestId id(next_id_.fetch_add(1));
  if (!inbox_.try_push(SubmitCommand{id, std::move(request), &sink})) {
    leave_queue(num_tokens);
    return make_error(ErrorCode::kUnavailable, "The engine has stopped.");
  }
  return id;
}

EngineStats LocalEngine::stats() const {
  EngineStats copy;
  {
    const std::scoped_lock lock(stats_mutex_);
    copy = published_;
  }
  copy.step_started_ns = step_started_ns_;
  copy.last_progress_ns = last_progress_ns_;
  copy.draining = draining_;
  // Those still in the inbox wait too, whether or not a step has seen them.
  copy.num_requests_waiting = std::max<int64_t>(copy.num_requests_waiting, num_queued_);
  return copy;
}

void LocalEngine::report_state(int32_t num_steps, std::function<void(EngineState)> done) {
  if (inbox_.push_urgent(StateCommand{num_steps, done})) return;
  EngineState state;
  state.stats = stats();
  done(std::move(state));
}

void LocalEngine::stop() {
  const std::scoped_lock lock(join_mutex_);
  if (!thread_.joinable()) return;
  draining_ = true;
  inbox_.push_urgent(StopCommand{});
  thread_.join();
}

void LocalEngine::run() {
  constexpr auto kIdleWait = std::chrono::milliseconds(500);
  while (!stopping_) {
    drain_inbox();
    if (stopping_) break;
    if (core_->scheduler.has_work()) {
      step();
    } else {
      last_progress_ns_ = now_ns();
      publish_stats();
      inbox_.wait_for(kIdleWait);
    }
  }
  inbox_.close();
  drain_inbox();  // submissions that came after the stop get their reply too
  core_->requests.finish_all(FinishReason::kAbort, "The server has stopped.", counters_);
  publish_stats();
  core_->requests.flush();
}

void LocalEngine::drain_inbox() {
  inbox_.drain(commands_);
  for (Command& command : commands_) {
    std::visit([this](auto& alternative) { handle(alternative); }, command);
  }
  core_->requests.flush();
}

void LocalEngine::handle(SubmitCommand& command) {
  NewRequest added;
  added.id = command.id;
  for (const PromptSpan& span : command.request.prompt) {
    added.prompt.insert(added.prompt.end(), span.token_ids.begin(), span.token_ids.end());
  }
  added.max_tokens = command.request.sampling.max_tokens;
  added.scores_prompt = command.request.sampling.num_prompt_logprobs >= 0;
  added.priority = command.request.priority;
  added.extras = {.tenant_salt = command.request.tenant_salt,
                  .adapter_id = command.request.adapter_id};
  const auto num_prompt_tokens = static_cast<int64_t>(added.prompt.size());
  core_->requests.add(command.id, std::move(command.request), *command.sink);
  const Expected<void> status = core_->scheduler.add(std::move(added));
  if (!status) {
    leave_queue(num_prompt_tokens);
    core_->requests.finish(command.id, FinishReason::kError, status.error().message, counters_);
    return;
  }
  counters_.prompt_length.observe(kLengthBounds, static_cast<double>(num_prompt_tokens));
}

void LocalEngine::handle(const AbortCommand& command) {
  const RequestState* state = core_->requests.find(command.id);
  if (state == nullptr) return;
  if (!core_->scheduler.abort(command.id)) return;  // in flight: update() reports it
  if (!state->scheduled) leave_queue(state->num_prompt_tokens);
  core_->requests.finish(command.id, FinishReason::kAbort, "", counters_);
}

void LocalEngine::handle(const StateCommand& command) {
  EngineState state;
  publish_stats();
  state.stats = stats();
  const KvUsage usage = core_->kv.usage();
  state.num_blocks_free = usage.num_free;
  state.num_blocks_cached = usage.num_cached;
  const Clock::time_point now = Clock::now();
  for (const auto& [id, known] : core_->requests.states()) {
    const Request* request = core_->scheduler.find(id);
    if (request == nullptr) continue;
    RequestSummary& summary = state.requests.emplace_back();
    summary.id = id;
    summary.status = to_string(request->status);
    summary.priority = request->priority;
    summary.age_ms = 1e3 * seconds_between(known.arrival, now);
    summary.num_prompt_tokens = request->num_prompt_tokens;
    summary.num_cached_tokens = known.num_cached_tokens;
    summary.num_computed_tokens = request->num_computed_tokens;
    summary.num_generated = known.num_generated;
    summary.max_tokens = request->max_tokens;
    for (int32_t group = 0; group < core_->kv.num_groups(); ++group) {
      const std::span<const BlockId> table = core_->kv.block_table(id, group);
      summary.num_blocks += static_cast<int32_t>(
          std::ranges::count_if(table, [](BlockId block) { return block != kNullBlock; }));
    }
    summary.timings = RequestTable::timings(known);
  }
  std::ranges::sort(state.requests, {}, &RequestSummary::id);
  state.steps = core_->steps.last(static_cast<size_t>(command.num_steps));
  command.done(std::move(state));
}

void LocalEngine::handle(const StopCommand&) { stopping_ = true; }

// What the scheduler has decided; the times come as the step goes on.
void LocalEngine::record(const SchedulerOutput& output, StepRecord& step) const {
  step.predicted_ms = output.predicted_ms;
  step.num_tokens = output.total_tokens;
  step.num_prefill_tokens = output.num_prefill_tokens;
  step.num_preempted = static_cast<int32_t>(output.preempted.size());
  for (const ScheduledRequest& item : output.scheduled) {
    step.items.push_back({.id = item.id,
                          .position = item.num_computed_tokens,
                          .num_tokens = item.num_scheduled_tokens,
                          .samples = item.samples});
  }
}

void LocalEngine::step() {
  const int64_t begin_ns = now_ns();
  const SchedulerOutput& output = core_->scheduler.schedule();
  for (const RequestId id : output.preempted) core_->requests.note_preempted(id);
  for (const RequestFailure& failure : output.failed) {
    const RequestState& state = *core_->requests.find(failure.id);
    if (!state.scheduled) leave_queue(state.num_prompt_tokens);
    core_->requests.finish(failure.id, FinishReason::kError, failure.reason, counters_);
  }
  if (!output.scheduled.empty()) {
    const Clock::time_point started = Clock::now();
    StepRecord& step = core_->steps.begin();
    step.begin_ns = begin_ns;
    step.scheduled_ns = now_ns();
    record(output, step);
    step_started_ns_ = step.scheduled_ns;
    for (const ScheduledRequest& item : output.scheduled) {
      const Request& request = *core_->scheduler.find(item.id);
      if (core_->requests.note_scheduled(item.id, request.num_cached_tokens, started, counters_)) {
        leave_queue(request.num_prompt_tokens);
      }
    }
    core_->runner->execute(output, core_->scheduler, core_->kv);
    step.executed_ns = now_ns();
    score_prompts();
    const std::span<const SamplerResult> results = sample();
    step.sampled_ns = now_ns();
    commit(output, results, started);
    step.num_running = core_->scheduler.num_running();
    step.num_waiting = core_->scheduler.num_waiting();
    step.end_ns = now_ns();
    step_started_ns_ = 0;
    last_progress_ns_ = step.end_ns;
  }
  if (core_->events) core_->events->end_step();
  // Who has seen a request's end finds it counted.
  publish_stats();
  core_->requests.flush();
}

// As many rows at once as there is room for logits; a row's bits do not depend on that.
void LocalEngine::score_prompts() {
  core_->failed.clear();
  std::span<const PromptRow> rest = core_->runner->prompt_rows();
  const auto vocab = static_cast<size_t>(core_->runner->model().vocab_size);
  while (!rest.empty()) {
    const std::span<const PromptRow> rows =
        rest.first(std::min(rest.size(), core_->runner->max_rows()));
    rest = rest.subspan(rows.size());
    core_->score_rows.clear();
    for (const PromptRow& row : rows) core_->score_rows.push_back(row.row);
    const std::span<const float> logits = core_->runner->logits(core_->score_rows);
    core_->score_inputs.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      core_->score_inputs.push_back(
          {.logits = logits.data() + i * vocab,
           .token = rows[i].next,
           .num_logprobs = core_->requests.find(rows[i].id)->sampling.num_prompt_logprobs});
    }
    add_scores(rows, core_->sampler.score(core_->runner->device().context(), core_->score_inputs));
  }
}

void LocalEngine::add_scores(std::span<const PromptRow> rows,
                             std::span<const ScoreResult> results) {
  std::vector<PromptLogprob> logprobs;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!results[i].finite) core_->failed.push_back(rows[i].id);
    PromptLogprob& added = logprobs.emplace_back();
    added.token = rows[i].next;
    added.logprob = results[i].logprob;
    added.rank = results[i].rank;
    for (const kernels::TokenScore& top : results[i].top_logprobs) {
      added.top_logprobs.push_back({.token = top.token, .logprob = top.logprob});
    }
    if (i + 1 < rows.size() && rows[i + 1].id == rows[i].id) continue;
    core_->requests.add_prompt_logprobs(rows[i].id, std::move(logprobs));
    logprobs.clear();
  }
}

std::span<const SamplerResult> LocalEngine::sample() {
  const std::span<float> logits = core_->runner->sampling_logits();
  core_->sampler_inputs.clear();
  const auto vocab = static_cast<size_t>(core_->runner->model().vocab_size);
  size_t row = 0;
  for (const RequestId id : core_->runner->sampling_requests()) {
    const Request& request = *core_->scheduler.find(id);
    core_->sampler_inputs.push_back({.params = &core_->requests.find(id)->sampling,
                                     .logits = logits.data() + row * vocab,
                                     .tokens = request.tokens,
                                     .num_prompt_tokens = request.num_prompt_tokens});
    ++row;
  }
  return core_->sampler.sample(core_->runner->device().context(), core_->sampler_inputs);
}

void LocalEngine::commit(const SchedulerOutput& output,
                         std::span<const SamplerResult> results,
                         Clock::time_point started) {
  const Clock::time_point now = Clock::now();
  constexpr double kShare = 0.1;  // of the last step in the mean
  const double rate = output.total_tokens / std::max(seconds_between(started, now), 1e-6);
  const double before = tokens_per_s_;
  tokens_per_s_ = before == 0 ? rate : before + kShare * (rate - before);
  const std::span<const RequestId> ids = core_->runner->sampling_requests();
  core_->sampled.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    SamplerResult result = results[i];
    if (std::ranges::find(core_->failed, ids[i]) != core_->failed.end()) {
      result = SamplerResult();
      result.finish_reason = FinishReason::kError;
    }
    core_->sampled.push_back({.id = ids[i],
                              .token = result.token,
                              .finished = result.finish_reason != FinishReason::kNone});
    core_->requests.add_token(ids[i], result, now, counters_);
  }
  core_->aborted.clear();
  core_->scheduler.update(output, core_->sampled, 1e3 * seconds_between(started, now),
                          core_->aborted);
  for (const RequestId id : core_->aborted) {
    core_->requests.finish(id, FinishReason::kAbort, "", counters_);
  }
  for (const RequestId id : core_->failed) {  // those that were not sampling, once
    if (core_->scheduler.abort(id)) {
      core_->requests.finish(id, FinishReason::kError, kNotFinite, counters_);
    }
  }
  ++counters_.num_steps;
  counters_.num_preemptions += output.preempted.size();
  counters_.iteration_tokens.observe(kIterationBounds, output.total_tokens);
}

void LocalEngine::publish_stats() {
  const std::unique_lock lock(stats_mutex_, std::try_to_lock);
  if (!lock) return;  // a reader copies right now; the next step publishes
  const KvUsage usage = core_->kv.usage();
  counters_.num_requests_running = core_->scheduler.num_running();
  counters_.num_requests_waiting = core_->scheduler.num_waiting();
  counters_.num_blocks_total = usage.num_blocks;
  counters_.num_blocks_used = usage.num_referenced;
  counters_.block_size = core_->kv.block_size();
  counters_.prefix_cache_queries = usage.prefix_queries;
  counters_.prefix_cache_hits = usage.prefix_hits;
  published_ = counters_;
}

}  // namespace

Expected<std::unique_ptr<Engine>> create_engine(const Config& config) {
  return LocalEngine::create(config);
}

}  // namespace sluice
