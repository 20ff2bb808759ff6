// SPDX-License-Identifier: Apache-2.0
// The parts of an engine below its inbox. Private to the files of LocalEngine, which include the
// parts that they use. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/kv_transfer_report.h"
#include "engine/core/pooling.h"
#include "engine/core/types.h"
#include "engine/handoff/handoff.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/handoff_spec.h"
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

// A request whose grammar is being compiled.
struct UncompiledRequest {
  NewRequest request;
  std::optional<HandoffSpec> handoff;
  std::shared_ptr<const PendingGrammar> grammar;
  std::vector<TokenId> begins_behind;  // see GrammarSpec
  std::string param;                   // see GrammarSpec
};

struct LocalEngine::Core {
  // The engine's own notes on a step in flight.
  struct StepNote {
    uint64_t number = 0;  // in the step log
    bool anybody_waited = false;
    int64_t work_started = 0;  // work that left the queue
  };

  Core(const Config& config,
       const SpecConfig& speculation,
       std::unique_ptr<ModelRunner> model_runner,
       const Tokenizer& tokenizer,
       const std::optional<PoolingInfo>& pooling);
  ~Core();

  std::unique_ptr<ModelRunner> runner;
  KvEventPublisher* events = nullptr;  // owned by the engine
  KvCacheManager kv;
  Scheduler scheduler;
  RequestTable requests;
  StepOrders orders;
  std::unique_ptr<StepExecutor> executor;
  std::unique_ptr<Drafting> drafting;
  std::vector<StepNote> notes;         // steps in flight, oldest first
  std::unique_ptr<PrefixStore> store;  // null: no tier below the cache
  std::unique_ptr<Handoff> handoff;    // null: no KV exchange with other workers
  KvFailurePolicy failure_policy = KvFailurePolicy::kRecompute;
  std::vector<UncompiledRequest> uncompiled;  // requests that wait for their grammars
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

}  // namespace sluice
