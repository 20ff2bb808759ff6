// SPDX-License-Identifier: Apache-2.0
// What only the engine thread sees of an engine: its parts and the step loop, engine_loop.cpp. The
// other files: engine_requests.cpp (arrival and departure of requests), engine_handoff.cpp. Each
// includes the parts that it uses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/pooling.h"
#include "engine/core/types.h"
#include "engine/handoff/handoff.h"
#include "engine/loop/holders.h"
#include "engine/loop/local_engine.h"
#include "engine/loop/request_table.h"
#include "engine/loop/step_log.h"
#include "engine/loop/step_orders.h"
#include "engine/tiers/prefix_store.h"
#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

class Drafting;
class StepExecutor;
struct SpecConfig;
struct StepWork;

struct LocalEngine::Core {
  // The engine's own notes on a step in flight.
  struct StepNote {
    uint64_t number = 0;  // in the step log
    bool anybody_waited = false;
    int64_t work_started = 0;  // work that left the queue
  };

  // What the step that retires means for its requests; storage that is used again.
  struct Outcome {
    std::vector<StepResult> results;
    std::vector<RequestId> finished;  // got their last tokens
    std::vector<RequestId> failed;    // their prompt or the whole step failed
    std::vector<RequestId> aborted;
  };

  Core(LocalEngine& owner,
       const Config& config,
       const SpecConfig& speculation,
       std::unique_ptr<ModelRunner> model_runner,
       const Tokenizer& tokenizer,
       const std::optional<PoolingInfo>& pooling);
  ~Core();

  void run();
  void drain_inbox();
  void handle(RequestState& submitted);
  void handle(const AbortCommand& command);
  void handle(const StateCommand& command);
  void handle(const FlushCommand& command);
  void handle(const StopCommand& command);

  void handle(const WakeCommand&) {}

  void end_request(RequestId id, const Ending& ending);
  void end_undecided(const SchedulerOutput& output);
  void pass_on(RequestState& state, size_t first);
  void advance_holders();
  void report_transfers();
  [[nodiscard]] std::chrono::microseconds idle_wait() const;
  void rest(bool& has_rested);
  bool back_ahead();
  bool must_restart(const Request& request, uint64_t check, TokenId token);
  void retire_handoffs(const SchedulerOutput& output);
  void release_ended();
  bool step();
  bool launch();
  void retire();
  void restore_preempted(const SchedulerOutput& output);
  void note_failed_rank();
  void add_results(StepWork& work);
  void add_pooled(StepWork& work);
  void commit(StepWork& work);
  void publish_stats();

  LocalEngine& engine;
  std::unique_ptr<ModelRunner> runner;
  KvCacheManager kv;
  Scheduler scheduler;
  RequestTable requests;
  StepOrders orders;
  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<Drafting> drafting;
  std::vector<StepNote> notes;                   // steps in flight, oldest first
  std::unique_ptr<PrefixStore> store;            // null: no tier below the cache
  std::unique_ptr<Handoff> handoff;              // null: no KV exchange with other workers
  std::vector<std::unique_ptr<Holder>> holders;  // in the order in which requests pass them
  Outcome outcome;
  StepLog steps;
  EngineStats counters;
  std::vector<Command> commands;  // scratch
  bool stopping = false;
  bool waits_for_blocks = false;  // the last step found none, and none could be given back
  bool has_lost_rank = false;
};

}  // namespace sluice
