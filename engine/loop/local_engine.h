// SPDX-License-Identifier: Apache-2.0
// The engine of one process: its parts, and which thread does what. Private to engine_loop.cpp (the
// step loop), engine_start.cpp (loading) and engine_requests.cpp (arrival and departure of
// requests).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/queue.h"
#include "engine/core/times.h"
#include "engine/draft/drafting.h"
#include "engine/engine.h"
#include "engine/handoff/handoff.h"
#include "engine/loop/queue_gate.h"
#include "engine/loop/request_table.h"
#include "engine/loop/step_log.h"
#include "engine/loop/step_orders.h"
#include "engine/parallel/parallel.h"
#include "engine/run/model_runner.h"
#include "engine/run/step_executor.h"
#include "engine/sampling/grammar/grammar_compiler.h"
#include "engine/spec/spec_config.h"
#include "engine/tiers/kv_event_publisher.h"
#include "engine/tiers/prefix_store.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/tokenizer_files.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

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
  std::optional<HandoffSpec> handoff;
  std::shared_ptr<const PendingGrammar> grammar;
  std::vector<TokenId> begins_behind;  // see GrammarSpec
  std::string param;                   // see GrammarSpec
};

struct AbortCommand {
  RequestId id;
};

struct StateCommand {
  int32_t num_steps;
  std::function<void(EngineState)> done;
};

struct FlushCommand {
  std::function<void(bool)> done;
};

struct StopCommand {};

struct WakeCommand {};  // a tier transfer has arrived or a grammar is ready

using Command = std::variant<SubmitCommand,
                             AbortCommand,
                             StateCommand,
                             FlushCommand,
                             StopCommand,
                             WakeCommand>;

class LocalEngine final : public Engine {
 public:
  // Starts the engine thread, which loads the model; returns when it is ready or has failed.
  static Expected<std::unique_ptr<Engine>> create(const Config& config,
                                                  const RankGroups& groups,
                                                  const OpenKvPeers& open_peers);

  ~LocalEngine() override { stop(); }

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;

  void abort(RequestId id) override { inbox_.push_urgent(AbortCommand{id}); }

  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;
  void flush_prefix_cache(std::function<void(bool)> done) override;

  [[nodiscard]] bool watch_kv_events(std::weak_ptr<KvEventWatcher> watcher,
                                     int64_t first) override {
    if (events_ == nullptr) return false;
    events_->watch(std::move(watcher), first);
    return true;
  }

  void watch_kv_transfers(KvTransferWatcher* watcher) override {
    const std::scoped_lock lock(watcher_mutex_);
    transfer_watcher_ = watcher;
  }

  [[nodiscard]] const ModelInfo& model() const override { return info_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override {
    return read_tokenizer_files(info_.path, info_.chat_template, tokenizer_->end_tokens());
  }

  void wait_until_backed() const override { core_->runner->wait_until_backed(); }

  void drain() override { draining_ = true; }

  void stop() override;

 private:
  // The engine's own notes on a step in flight.
  struct StepNote {
    uint64_t number = 0;  // in the step log
    bool anybody_waited = false;
    int64_t work_started = 0;  // work that left the queue
  };

  // Everything below the inbox; created and used on the engine thread.
  struct Core {
    Core(const Config& config,
         const SpecConfig& speculation,
         std::unique_ptr<ModelRunner> model_runner,
         const Tokenizer& tokenizer);

    std::unique_ptr<ModelRunner> runner;
    KvEventPublisher* events = nullptr;  // owned by the engine
    KvCacheManager kv;
    Scheduler scheduler;
    RequestTable requests;
    StepOrders orders;
    StepExecutor executor;
    Drafting drafting;
    std::vector<StepNote> notes;         // steps in flight, oldest first
    std::unique_ptr<PrefixStore> store;  // null: no tier below the cache
    std::unique_ptr<Handoff> handoff;    // null: no KV exchange with other workers
    std::vector<DecodeSide::Released> released;  // scratch: requests that the handoff held
    std::vector<KvTransferReport> transfers;     // scratch: ended transfers
    std::vector<RequestId> finished;             // this step: requests that got their last tokens
    std::vector<NewRequest> ready;               // scratch: requests that the store held
    std::vector<RequestId> resumed;              // scratch: preempted requests that the store held
    StepLog steps;
    std::vector<RequestId> failed;  // this step: requests whose prompt or whole step failed
    std::vector<StepResult> results;
    std::vector<RequestId> aborted;
    std::vector<int32_t> ended;  // scratch: slots
  };

  explicit LocalEngine(const Config& config)
      : config_(config),
        inbox_(static_cast<size_t>(config.max_num_queued_reqs) * 2 + 64),
        gate_(config) {}

  Expected<void> load(const RankGroups& groups, const OpenKvPeers& open_peers);
  // Takes the tokenizer, info_, and the model's own defaults of sampling.
  Expected<void> take_description(ModelRunner& runner);
  Expected<void> open_handoff(const HandoffConfig& part, const OpenKvPeers& open_peers);
  void run();
  void drain_inbox();
  void handle(SubmitCommand& command);
  void handle(const AbortCommand& command);
  void handle(const StateCommand& command);
  void handle(const FlushCommand& command);
  void handle(const StopCommand& command);

  void handle(const WakeCommand&) {}

  void add_to_scheduler(NewRequest request);
  void end_request(RequestId id, const Ending& ending);
  void end_undecided(const SchedulerOutput& output);
  void hold_for_cache(UncompiledRequest& held);
  void hold_for_store(NewRequest request);
  [[nodiscard]] bool fails_behind(HandoffFallback reason) const;
  void advance_handoffs();
  void report_transfers();
  void give_back_room();
  [[nodiscard]] std::chrono::microseconds idle_wait() const;
  bool must_restart(const Request& request, const SampledRequest& sampled, TokenId token);
  void retire_handoffs(const SchedulerOutput& output);
  void take_restored();
  bool start_with(UncompiledRequest& held);
  void take_compiled();
  void release_ended();
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
  std::unique_ptr<KvEventPublisher> events_;  // null: no events are published; outlives core_
  std::unique_ptr<Core> core_;
  std::vector<UncompiledRequest> uncompiled_;  // engine thread only
  std::atomic<uint64_t> next_id_ = 1;
  QueueGate gate_;  // submitted, not yet scheduled
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> step_started_ns_ = 0;
  std::atomic<int64_t> last_progress_ns_ = 0;
  bool stopping_ = false;           // engine thread only
  bool has_failed_ = false;         // a rank failed; engine thread only
  KvFailurePolicy failure_policy_ = KvFailurePolicy::kRecompute;
  EngineStats counters_;            // engine thread only
  mutable std::mutex stats_mutex_;  // held for a copy; the engine thread only tries it
  EngineStats published_;           // guarded by stats_mutex_
  std::mutex watcher_mutex_;        // held while the watcher is told
  KvTransferWatcher* transfer_watcher_ = nullptr;  // guarded by watcher_mutex_; null: nobody
  std::mutex join_mutex_;
  std::thread thread_;
  std::unique_ptr<GrammarCompiler> grammars_;  // destroyed first: its threads use other members
};

inline int64_t now_ns() { return to_ns(Clock::now()); }

}  // namespace sluice
