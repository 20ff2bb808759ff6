// SPDX-License-Identifier: Apache-2.0
// The parts of an engine below its inbox. Private to the files of LocalEngine, which include the
// parts that they use. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/kv_transfer_report.h"
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
  std::vector<std::unique_ptr<Holder>> holders;  // in the order in which requests pass them
  std::vector<Holder::Released> released;        // scratch
  std::vector<KvTransferReport> transfers;       // scratch: ended transfers
  std::vector<RequestId> finished;               // this step: requests that got their last tokens
  StepLog steps;
  std::vector<RequestId> failed;  // this step: requests whose prompt or whole step failed
  std::vector<StepResult> results;
  std::vector<RequestId> aborted;
  std::vector<int32_t> ended;  // scratch: slots
};

}  // namespace sluice
