// SPDX-License-Identifier: Apache-2.0
// The step loop: drain inbox -> schedule -> run -> sample -> commit -> publish. All on one thread,
// but for the two in the middle with --overlap or on a GPU: then a step runs while the next one is
// scheduled.
#include "engine/engine.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/core/queue.h"
#include "engine/drafting.h"
#include "engine/grammar_vocabulary.h"
#include "engine/spec/spec_config.h"
#include "engine/tiers/kv_event_publisher.h"
#include "engine/model_runner.h"
#include "engine/nccl.h"
#include "engine/parallel.h"
#include "engine/tiers/prefix_store.h"
#include "engine/queue_gate.h"
#include "engine/request_table.h"
#include "engine/sampling/grammar/grammar_compiler.h"
#include "engine/sampling/grammar/grammar_state.h"
#include "engine/step_executor.h"
#include "engine/step_log.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer_files.h"
#include "engine/weights/generation_defaults.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

struct SubmitCommand {
  RequestId id;
  ValidRequest request;
  QueuedWork queued;
  OutputSink* sink;
  std::shared_ptr<const PendingGrammar> grammar;  // null: none
};

// A request whose grammar is being compiled.
struct UncompiledRequest {
  NewRequest request;
  std::shared_ptr<const PendingGrammar> grammar;
  std::vector<TokenId> begins_behind;  // as in GrammarSpec
  std::string param;                   // the same
};

struct AbortCommand {
  RequestId id;
};

struct StateCommand {
  int32_t num_steps;
  std::function<void(EngineState)> done;
};

struct StopCommand {};

struct WakeCommand {};  // something has come back from another tier, or a grammar is ready

using Command = std::variant<SubmitCommand, AbortCommand, StateCommand, StopCommand, WakeCommand>;

class LocalEngine final : public Engine {
 public:
  // Starts the engine thread, which loads the model; returns when it is ready or has failed.
  static Expected<std::unique_ptr<Engine>> create(const Config& config,
                                                  const RankGroups& groups);

  ~LocalEngine() override { stop(); }

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;

  void abort(RequestId id) override { inbox_.push_urgent(AbortCommand{id}); }

  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;

  [[nodiscard]] const ModelInfo& model() const override { return info_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override {
    return read_tokenizer_files(info_.path, info_.chat_template, tokenizer_->end_tokens());
  }

  void wait_until_backed() const override { core_->runner->wait_until_backed(); }

  void drain() override { draining_ = true; }

  void stop() override;

 private:
  // What the engine itself remembers of a step in flight.
  struct StepNote {
    uint64_t number = 0;  // in the log
    bool anybody_waited = false;
    int64_t work_started = 0;  // of the queue
  };

  // Everything below the inbox; made and used on the engine thread.
  struct Core {
    Core(const Config& config,
         const SpecConfig& speculation,
         std::unique_ptr<ModelRunner> model_runner,
         const Tokenizer& tokenizer);

    std::unique_ptr<ModelRunner> runner;
    std::unique_ptr<KvEventPublisher> events;  // null: nobody is told; outlives kv
    KvCacheManager kv;
    Scheduler scheduler;
    RequestTable requests;
    StepExecutor executor;
    Drafting drafting;
    std::vector<StepNote> notes;         // of steps in flight, oldest first
    std::unique_ptr<PrefixStore> store;  // null: no tier below the cache
    std::vector<NewRequest> ready;       // scratch: those that the store held
    std::vector<RequestId> resumed;      // the same, of preempted ones
    StepLog steps;
    std::vector<RequestId> failed;  // this step: by their prompts, or with all of it
    std::vector<StepResult> results;
    std::vector<RequestId> aborted;
  };

  explicit LocalEngine(const Config& config)
      : config_(config),
        inbox_(static_cast<size_t>(config.max_num_queued_reqs) * 2 + 64),
        gate_(config) {}

  Expected<void> load(const RankGroups& groups);
  void run();
  void drain_inbox();
  void handle(SubmitCommand& command);
  void handle(const AbortCommand& command);
  void handle(const StateCommand& command);
  void handle(const StopCommand& command);

  void handle(const WakeCommand&) {}

  void add_to_scheduler(NewRequest request);
  void end_request(RequestId id, const Ending& ending);
  void end_undecided(const SchedulerOutput& output);
  void hold_for_cache(NewRequest request);
  void take_restored();
  bool start_with(UncompiledRequest& held);
  void take_compiled();
  void record(const SchedulerOutput& output, StepRecord& step) const;
  bool step();
  bool launch();
  void retire();
  void restore_preempted(const SchedulerOutput& output);
  void note_failed_rank();
  void add_results(StepWork& work);
  void commit(StepWork& work);
  void publish_stats();

  const Config config_;
  Inbox<Command> inbox_;
  std::vector<Command> commands_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelInfo info_;
  std::unique_ptr<Core> core_;
  std::vector<UncompiledRequest> uncompiled_;  // engine thread only
  std::atomic<uint64_t> next_id_ = 1;
  QueueGate gate_;  // submitted, not yet scheduled
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> step_started_ns_ = 0;
  std::atomic<int64_t> last_progress_ns_ = 0;
  bool stopping_ = false;           // engine thread only
  bool has_failed_ = false;         // with a rank; engine thread only
  EngineStats counters_;            // engine thread only
  mutable std::mutex stats_mutex_;  // held for a copy; the engine thread only tries it
  EngineStats published_;           // guarded by stats_mutex_
  std::mutex join_mutex_;
  std::thread thread_;
  std::unique_ptr<GrammarCompiler> grammars_;  // goes first: its threads use the rest
};

int64_t to_ns(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t now_ns() { return to_ns(Clock::now()); }

int64_t to_ms(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

GrammarCompiler::Options grammar_options(const Config& config) {
  GrammarCompiler::Options options;
  options.cache_bytes = config.grammar_cache_size;
  options.compile.wall_s = config.grammar_compile_timeout_s;
  options.compile.cpu_s = config.grammar_compile_timeout_s;
  options.grammar.max_whitespace = config.max_json_whitespace;
  return options;
}

// Below the prefix cache.
bool has_tiers(const Config& config) {
  return !config.kv_disk_path.empty() || config.kv_offloading_size > 0;
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

LocalEngine::Core::Core(const Config& config,
                        const SpecConfig& speculation,
                        std::unique_ptr<ModelRunner> model_runner,
                        const Tokenizer& tokenizer)
    : runner(std::move(model_runner)),
      kv({.block_size = config.block_size,
          .enable_prefix_caching = config.enable_prefix_caching,
          .max_num_seqs = config.max_num_seqs + 1,  // one for what comes from another tier
          .max_model_len = runner->plan().max_model_len},
         runner->kv_groups()),
      scheduler({.max_num_seqs = config.max_num_seqs,
                 .max_num_batched_tokens = config.max_num_batched_tokens,
                 .max_chosen_rows = max_chosen_rows(config),
                 .step_target_ms = static_cast<double>(config.step_target_ms),
                 .max_prefill_share = 0.01 * config.max_prefill_share,
                 .long_prefill_token_threshold = config.long_prefill_token_threshold,
                 .max_num_partial_prefills = config.max_num_partial_prefills,
                 .max_num_queued_reqs =
                     config.max_num_queued_reqs +
                     static_cast<int32_t>(Admission::extra_requests(config.max_num_queued_reqs)),
                 .max_model_len = runner->plan().max_model_len,
                 .priority_aging_ms = int64_t{1000} * config.priority_aging_s,
                 .restores_preempted = has_tiers(config) && config.preemption_mode != "recompute",
                 .speculation = {.max_tokens = speculation.num_speculative_tokens,
                                 .is_fixed = speculation.is_fixed},
                 .preempt_every = config.debug_preempt_every},
                kv),
      executor(*runner,
               {.overlap = config.overlap,
                .num_slots = scheduler.num_slots(),
                .max_logprobs = config.max_logprobs,
                .end_tokens = tokenizer.end_tokens()}),
      drafting(speculation, runner->model().vocab_size, kv, runner->draft_model()) {
  if (DraftModel* const model = runner->draft_model()) {
    model->use_end_tokens(tokenizer.end_tokens());
  }
  const auto max_seqs = static_cast<size_t>(config.max_num_seqs);
  notes.reserve(static_cast<size_t>(executor.depth()) + 1);
  results.reserve(max_seqs);
  aborted.reserve(max_seqs);
}

Expected<std::unique_ptr<Engine>> LocalEngine::create(const Config& config,
                                                      const RankGroups& groups) {
  std::unique_ptr<LocalEngine> engine(new LocalEngine(config));
  std::promise<Expected<void>> loaded;
  std::future<Expected<void>> result = loaded.get_future();
  engine->thread_ = std::thread([self = engine.get(), &loaded, &groups] {
    Expected<void> status = self->load(groups);
    const bool ready = status.has_value();
    loaded.set_value(std::move(status));
    if (ready) {
      if (!self->core_->executor.is_threaded()) self->core_->runner->device().enter();
      self->run();
    }
    self->core_.reset();
  });
  SLUICE_TRY_VOID(result.get());
  return engine;
}

Expected<void> LocalEngine::load(const RankGroups& groups) {
  SLUICE_TRY(const KvEventsOptions events, parse_kv_events_config(config_.kv_events_config));
  SLUICE_TRY(const SpecConfig speculation, parse_spec_config(config_.speculative_config));
  for (const std::string& key : speculation.without_meaning) {
    log_event(LogLevel::kWarning, "speculative_config_without_meaning", "key", key);
  }
  SLUICE_TRY(auto runner, ModelRunner::create(config_, groups));
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
  if (defaults.end_tokens) {
    const Expected<void> replaced = tokenizer_->replace_more_ends(*defaults.end_tokens);
    if (!replaced) {
      const bool is_override = !config_.override_generation_config.empty();
      return make_error(
          replaced.error().code,
          std::string(is_override ? "--override-generation-config" : "--generation-config") + ": " +
              replaced.error().message);
    }
  }
  info_.sampling = defaults.sampling;
  info_.max_output_tokens = defaults.max_output_tokens;
  if (!defaults.summary.empty()) {
    log_event(LogLevel::kInfo, "sampling_defaults", "of_the_model", defaults.summary);
  }
  core_ = std::make_unique<Core>(config_, speculation, std::move(runner), *tokenizer_);
  grammars_ = std::make_unique<GrammarCompiler>(
      [this] { return grammar_vocabulary(*tokenizer_, info_.vocab_size); },
      grammar_options(config_),
      [this] { inbox_.push_urgent(WakeCommand{}); });
  if (events.is_enabled) {
    SLUICE_TRY(core_->events,
               KvEventPublisher::create(events, config_.block_size, core_->runner->kv_groups()));
    core_->kv.set_event_sink(*core_->events);
  }
  if (has_tiers(config_)) {
    SLUICE_TRY(core_->store,
               PrefixStore::create(config_,
                                   info_.system_fingerprint,
                                   core_->runner->kv_storage(),
                                   core_->kv,
                                   core_->events.get(),
                                   [this] { inbox_.push_urgent(WakeCommand{}); }));
  }
  if (config_.preemption_mode == "swap" && !core_->store) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--preemption-mode swap needs --kv-offloading-size or --kv-disk-path",
                      "preemption-mode");
  }
  // What loading needed for a while goes back to the system: as much as a tokenizer takes.
  malloc_trim(0);
  last_progress_ns_ = now_ns();
  publish_stats();
  return {};
}

Expected<RequestId> LocalEngine::submit(ValidRequest request, OutputSink& sink) {
  if (draining_) {
    return make_error(ErrorCode::kUnavailable, "The server is draining and takes no new requests.");
  }
  std::shared_ptr<const PendingGrammar> grammar;
  if (request.grammar.is_set()) {
    SLUICE_TRY(grammar, grammars_->request(request.grammar, request.tenant));
  }
  SLUICE_TRY(const QueuedWork queued, gate_.enter(request));
  const RequestId id(next_id_.fetch_add(1));
  if (!inbox_.try_push(
          SubmitCommand{id, std::move(request), queued, &sink, std::move(grammar)})) {
    gate_.leave(queued);
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
  copy.num_refused = gate_.num_refused();
  if (grammars_ != nullptr) copy.grammars = grammars_->counters();
  // Those still in the inbox wait too, whether or not a step has seen them.
  copy.num_requests_waiting = std::max<int64_t>(copy.num_requests_waiting, gate_.num_waiting());
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
  constexpr auto kRestoreWait = std::chrono::milliseconds(50);
  while (!stopping_) {
    drain_inbox();
    if (stopping_) break;
    take_compiled();
    take_restored();
    if (core_->scheduler.has_work()) {
      // Those that wait may all wait for the room of one that is being brought back.
      if (!step() && core_->scheduler.num_restoring() > 0) inbox_.wait_for(kRestoreWait);
    } else {
      last_progress_ns_ = now_ns();
      publish_stats();
      if (core_->events) core_->events->end_step();  // what tiers have written since
      inbox_.wait_for(kIdleWait);
    }
  }
  inbox_.close();
  while (core_->executor.num_in_flight() > 0) core_->executor.retire();
  drain_inbox();  // submissions that came after the stop get their reply too
  while (!core_->requests.states().empty()) {
    end_request(core_->requests.states().begin()->first,
                {.reason = FinishReason::kAbort, .error = "The server has stopped."});
  }
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
  added.tokens = command.request.prompt;
  added.tokens.insert(
      added.tokens.end(), command.request.generated.begin(), command.request.generated.end());
  added.num_generated = static_cast<int32_t>(command.request.generated.size());
  added.max_tokens = command.request.sampling.max_tokens;
  added.scores_prompt = command.request.sampling.num_prompt_logprobs >= 0;
  added.keeps_prompt = command.request.keeps_prompt;
  added.priority = command.request.priority;
  added.tenant = command.request.tenant;
  added.arrival_ms = to_ms(command.request.arrival);
  int64_t max_wait_ms = int64_t{1000} * config_.max_queue_wait_s;
  if (const int64_t own = command.request.max_queue_wait_ms; own > 0) {
    max_wait_ms = max_wait_ms > 0 ? std::min(max_wait_ms, own) : own;
  }
  if (max_wait_ms > 0) added.deadline_ms = added.arrival_ms + max_wait_ms;
  added.extras = {.tenant_salt = command.request.tenant_salt,
                  .adapter_id = command.request.adapter_id};
  core_->drafting.begin(command.id, command.request);
  UncompiledRequest held;
  held.grammar = std::move(command.grammar);
  held.begins_behind = std::move(command.request.grammar.begins_behind);
  held.param = std::move(command.request.grammar.param);
  held.request = std::move(added);
  core_->requests.add(command.id, std::move(command.request), command.queued, *command.sink);
  if (!start_with(held)) uncompiled_.push_back(std::move(held));
}

// False: its grammar is not ready.
bool LocalEngine::start_with(UncompiledRequest& held) {
  if (held.grammar == nullptr) {
    hold_for_cache(std::move(held.request));
    return true;
  }
  if (!held.grammar->is_ready()) return false;
  const auto& compiled = held.grammar->result();
  if (!compiled) {
    const Error& error = compiled.error();
    end_request(held.request.id,
                {.reason = FinishReason::kError,
                 .error = error.message,
                 .code = error.code,
                 .retry_after_s = error.retry_after_s,
                 .param = held.param});
    return true;
  }
  core_->requests.set_grammar(
      held.request.id, std::make_shared<GrammarState>(*compiled, std::move(held.begins_behind)));
  hold_for_cache(std::move(held.request));
  return true;
}

// Requests whose grammars have been compiled.
void LocalEngine::take_compiled() {
  if (uncompiled_.empty()) return;
  std::erase_if(uncompiled_, [this](UncompiledRequest& held) {
    return core_->requests.find(held.request.id) == nullptr || start_with(held);
  });
  core_->requests.flush();
}

void LocalEngine::hold_for_cache(NewRequest request) {
  if (core_->store && core_->store->hold(request, Clock::now())) return;
  add_to_scheduler(std::move(request));
}

void LocalEngine::add_to_scheduler(NewRequest request) {
  const RequestId id = request.id;
  const Expected<void> status = core_->scheduler.add(std::move(request));
  if (!status) {
    end_request(id, {.reason = FinishReason::kError, .error = status.error().message});
    return;
  }
  const int32_t num_prompt_tokens = core_->requests.find(id)->num_prompt_tokens;
  counters_.prompt_length.observe(kLengthBounds, num_prompt_tokens);
}

// Every way in which a request ends without another token comes through here, once the scheduler
// has let it go or with a step in flight that will. Unknown ids have ended before.
void LocalEngine::end_request(RequestId id, const Ending& ending) {
  const RequestState* state = core_->requests.find(id);
  if (state == nullptr) return;
  if (!state->scheduled) gate_.leave(state->queued);
  if (core_->store) core_->store->forget(id);
  core_->drafting.end(id);
  core_->requests.end(id, ending, counters_);
}

void LocalEngine::handle(const AbortCommand& command) {
  if (core_->requests.find(command.id) == nullptr) return;
  // A preempted request that the store brings back is the scheduler's too.
  const bool was_held =
      (core_->store && core_->store->abort(command.id)) ||
      std::ranges::any_of(uncompiled_, [&](const UncompiledRequest& held) {
        return held.request.id == command.id;
      });
  const bool is_gone = core_->scheduler.abort(command.id);
  if (!was_held && !is_gone) return;  // in flight: update() reports it
  end_request(command.id, {.reason = FinishReason::kAbort});
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
    RequestSummary& summary = state.requests.emplace_back();
    summary.id = id;
    summary.status = "restoring";
    summary.age_ms = 1e3 * seconds_between(known.arrival, now);
    summary.num_prompt_tokens = known.num_prompt_tokens;
    summary.num_cached_tokens = known.num_cached_tokens;
    summary.num_generated = known.num_generated;
    summary.max_tokens = known.sampling->max_tokens;
    summary.timings = RequestTable::timings(known);
    const Request* request = core_->scheduler.find(id);
    if (request == nullptr) continue;  // the store holds it
    summary.status = to_string(request->status);
    summary.priority = request->priority;
    summary.num_computed_tokens = request->num_computed_tokens;
    for (int32_t group = 0; group < core_->kv.num_groups(); ++group) {
      const std::span<const BlockId> table = core_->kv.block_table(id, group);
      summary.num_blocks += static_cast<int32_t>(
          std::ranges::count_if(table, [](BlockId block) { return block != kNullBlock; }));
    }
  }
  std::ranges::sort(state.requests, {}, &RequestSummary::id);
  state.steps = core_->steps.last(static_cast<size_t>(command.num_steps));
  command.done(std::move(state));
}

void LocalEngine::handle(const StopCommand&) { stopping_ = true; }

// Requests whose prefixes have come back from another tier.
void LocalEngine::take_restored() {
  if (!core_->store) return;
  core_->ready.clear();
  core_->resumed.clear();
  core_->store->advance(Clock::now(), core_->ready, core_->resumed);
  for (NewRequest& request : core_->ready) add_to_scheduler(std::move(request));
  for (const RequestId id : core_->resumed) core_->scheduler.resume(id);
  core_->requests.flush();
}

// Requests that the scheduler has let go of without running them: those that waited past their
// deadlines, which may come back when the next one of their tenant would start, and those that can
// never run.
void LocalEngine::end_undecided(const SchedulerOutput& output) {
  for (const RequestId id : output.expired) {
    end_request(id,
                {.reason = FinishReason::kError,
                 .error = "The request waited for its start until its deadline.",
                 .code = ErrorCode::kDeadlineExceeded,
                 .retry_after_s =
                     gate_.retry_after_s(core_->requests.find(id)->queued.tenant)});
  }
  for (const RequestFailure& failure : output.failed) {
    end_request(failure.id, {.reason = FinishReason::kError, .error = failure.reason});
  }
}

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
                          .samples = !item.chosen.empty(),
                          .num_drafts = item.num_draft_tokens});
  }
}

// By the store, where it has something worth reading.
void LocalEngine::restore_preempted(const SchedulerOutput& output) {
  for (const RequestId id : output.restoring) {
    const Request& request = *core_->scheduler.find(id);
    if (!core_->store->hold_preempted(request, Clock::now())) core_->scheduler.resume(id);
  }
}

// Whether anything ran.
bool LocalEngine::step() {
  bool retires = false;
  if (core_->executor.num_in_flight() > 0 && core_->drafting.should_wait(core_->scheduler)) {
    while (core_->executor.num_in_flight() > 0) retire();
    retires = true;
  }
  const bool is_launched = launch();
  const int32_t may_run = is_launched ? core_->executor.depth() : 0;
  while (core_->executor.num_in_flight() > may_run || core_->executor.is_oldest_done()) {
    retire();
    retires = true;
  }
  if (core_->events) core_->events->end_step();
  // Who has seen a request's end finds it counted.
  publish_stats();
  core_->requests.flush();
  return is_launched || retires;
}

// Decides a step and hands it over; false: there was nothing to run.
bool LocalEngine::launch() {
  const int64_t begin_ns = now_ns();
  core_->drafting.offer(core_->scheduler, counters_.drafts);
  const bool anybody_waited = core_->scheduler.num_unstarted() > 0;
  const SchedulerOutput& output = core_->scheduler.schedule(to_ms(Clock::now()));
  for (const RequestId id : output.preempted) core_->requests.note_preempted(id);
  restore_preempted(output);
  end_undecided(output);
  if (output.scheduled.empty()) return false;
  const Clock::time_point started = Clock::now();
  StepNote& note = core_->notes.emplace_back();
  note.anybody_waited = anybody_waited;
  StepRecord& step = core_->steps.begin();
  note.number = step.number;
  step.begin_ns = begin_ns;
  step.scheduled_ns = now_ns();
  step.num_in_flight = core_->executor.num_in_flight();
  record(output, step);
  if (step.num_in_flight == 0) step_started_ns_ = step.scheduled_ns;
  for (const ScheduledRequest& item : output.scheduled) {
    const Request& request = *core_->scheduler.find(item.id);
    if (core_->requests.note_scheduled(item.id, request.num_cached_tokens, started, counters_)) {
      const QueuedWork& queued = core_->requests.find(item.id)->queued;
      note.work_started += queued.work;
      gate_.leave(queued);
    }
  }
  core_->executor.submit(output, core_->scheduler, core_->requests);
  return true;
}

// The oldest step in flight.
void LocalEngine::retire() {
  StepWork& work = core_->executor.retire();
  const StepNote note = core_->notes.front();
  core_->notes.erase(core_->notes.begin());
  StepRecord& step = core_->steps.of(note.number);
  step.started_ns = to_ns(work.started);
  step.executed_ns = to_ns(work.executed);
  step.sampled_ns = to_ns(work.sampled);
  step.retired_ns = now_ns();
  step.device_idle_ns = static_cast<int64_t>(1e9 * work.device_idle);
  counters_.device_idle_ns += static_cast<uint64_t>(step.device_idle_ns);
  add_results(work);
  commit(work);
  core_->drafting.follow(work.decision);
  step.num_running = core_->scheduler.num_running();
  step.num_waiting = core_->scheduler.num_waiting();
  step.end_ns = now_ns();
  if (note.anybody_waited) {
    gate_.observe_step(note.work_started, seconds_between(work.started, Clock::now()));
  }
  step_started_ns_ = core_->executor.num_in_flight() > 0 ? step.end_ns : 0;
  last_progress_ns_ = step.end_ns;
}

// Ranks do not come back: whoever watches over this process starts another one.
void LocalEngine::note_failed_rank() {
  if (std::exchange(has_failed_, true)) return;
  draining_ = true;
  log_event(LogLevel::kError, "rank_failed", "then", "no new requests, the others end");
}

const char* failure_of(const StepWork& work, bool grammar_failed = false) {
  if (grammar_failed) return "The answer cannot go on in its grammar.";
  return work.has_failed ? "A rank that computes a part of the model has failed."
                         : "The model produced logits that are not finite.";
}

// Of requests that have not ended while the step was in flight.
void LocalEngine::add_results(StepWork& work) {
  const Clock::time_point now = Clock::now();
  core_->failed.clear();
  if (work.has_failed) {
    note_failed_rank();
    for (const ScheduledRequest& item : work.decision.scheduled) core_->failed.push_back(item.id);
  }
  for (ScoredPrompt& prompt : work.prompts) {
    const bool is_over = core_->requests.find(prompt.id) == nullptr;  // an earlier chunk failed
    if (is_over || !prompt.is_finite) core_->failed.push_back(prompt.id);
    if (is_over || work.has_failed) continue;
    core_->requests.add_prompt_logprobs(prompt.id, std::move(prompt.logprobs));
  }
  core_->results.clear();
  for (const SampledRequest& sampled : work.requests) {
    const RequestId id = sampled.id;
    const bool has_failed = std::ranges::find(core_->failed, id) != core_->failed.end();
    const size_t num_tokens = has_failed ? 0 : sampled.num_tokens;
    const std::span<const SamplerResult> results =
        std::span(work.results).subspan(sampled.first_row, num_tokens);
    const bool ends = results.empty() || results.back().finish_reason != FinishReason::kNone;
    const std::span<const TokenId> tokens =
        std::span(work.tokens).subspan(sampled.first_row, num_tokens);
    core_->results.push_back({.id = id, .tokens = tokens, .finished = ends});
    const bool is_over = core_->requests.find(id) == nullptr;
    Drafting::count(sampled.draft_source,
                    sampled.drafts.size(),
                    is_over ? 0 : num_tokens,
                    ends || is_over,
                    counters_.drafts);
    if (is_over) continue;
    const Request& request = *core_->scheduler.find(id);
    if (sampled.draft_source == DraftSource::kPrediction && num_tokens > 0) {
      core_->requests.note_prediction(id, num_tokens - 1, sampled.drafts.size());
    }
    core_->drafting.committed(id, tokens);
    if (ends) core_->drafting.end(id);
    if (results.empty()) {
      const bool has_grammar_failed = work.results[sampled.first_row].grammar_failed;
      end_request(id,
                  {.reason = FinishReason::kError, .error = failure_of(work, has_grammar_failed)});
    } else {
      core_->requests.add_tokens(id, results, now, counters_);
    }
    const int32_t num_generated = request.num_generated() + static_cast<int32_t>(results.size());
    if (ends) gate_.observe_output(num_generated);
  }
}

void LocalEngine::commit(StepWork& work) {
  const SchedulerOutput& output = work.decision;
  const double seconds = seconds_between(work.started, work.sampled);
  core_->aborted.clear();
  if (core_->store) {
    core_->store->save(output, core_->scheduler, core_->results, core_->failed);
  }
  core_->scheduler.update(output, core_->results, 1e3 * seconds, core_->aborted);
  for (const RequestId id : core_->aborted) {
    end_request(id, {.reason = FinishReason::kAbort});
  }
  for (const RequestId id : core_->failed) {  // those that were not sampling
    core_->scheduler.abort(id);
    end_request(id, {.reason = FinishReason::kError, .error = failure_of(work)});
  }
  if (core_->store) core_->store->end_step(output, core_->scheduler, seconds);
  if (output.drafts_off) ++counters_.drafts.num_steps_off[static_cast<size_t>(*output.drafts_off)];
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
  if (core_->store) core_->store->add_stats(counters_);
  published_ = counters_;
}

}  // namespace

std::optional<int> run_helper_process(int argc, const char* const* argv) {
  if (!is_compile_worker(argc, argv)) return std::nullopt;
  return run_compile_worker();
}

Expected<std::unique_ptr<Engine>> create_engine(const Config& config) {
  return LocalEngine::create(
      config, {.on_cpu = make_local_ranks, .on_devices = [] { return open_nccl(); }});
}

Expected<std::unique_ptr<Engine>> create_engine(const Config& config, const RankGroups& groups) {
  return LocalEngine::create(config, groups);
}

}  // namespace sluice
