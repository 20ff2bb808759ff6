// SPDX-License-Identifier: Apache-2.0
// Where requests wait before the scheduler has them: for their grammar, for KV of another worker,
// for KV of a tier below the cache, in this order. Engine thread only.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/types.h"
#include "engine/handoff/handoff.h"
#include "engine/handoff/handoff_config.h"
#include "engine/loop/request_table.h"
#include "engine/tiers/prefix_store.h"
#include "scheduler/scheduler.h"

namespace sluice {

class Holder {
 public:
  using Clock = std::chrono::steady_clock;

  // A request that is held no longer.
  struct Released {
    RequestId id;
    std::optional<Ending> ending = {};  // set: it ends like this
  };

  virtual ~Holder() = default;

  // True: the request waits here, and advance() will return it.
  virtual bool hold(RequestState& state, Clock::time_point now) = 0;
  // Between steps. Appends the requests that go on or end.
  virtual void advance(Clock::time_point now, std::vector<Released>& released) = 0;
  // True: the request waited here, and is dropped.
  virtual bool abort(RequestId id, Clock::time_point now) = 0;

  // The request has ended, wherever it was.
  virtual void end(RequestId /*id*/, Clock::time_point /*now*/) {}

  // Returns what the request waits for, as /debug/state says it; null: the usual word.
  [[nodiscard]] virtual const char* status_of(RequestId /*id*/) const { return nullptr; }
};

// All arguments of these outlive the holder.

// Requests whose grammars are being compiled. Writes the grammars to their records.
std::unique_ptr<Holder> make_grammar_holder(RequestTable& requests);

// Requests whose prompts another worker computes. Writes adopted seeds to their records. Where KV
// did not come, `policy` decides whether the request ends; a worker that drains computes it.
std::unique_ptr<Holder> make_handoff_holder(Handoff& handoff,
                                            KvFailurePolicy policy,
                                            const std::atomic<bool>& is_draining,
                                            const Scheduler& scheduler,
                                            RequestTable& requests);

// Requests whose prefixes are being read from a tier. Those that were preempted go back to the
// scheduler by themselves.
std::unique_ptr<Holder> make_store_holder(PrefixStore& store, Scheduler& scheduler);

}  // namespace sluice
