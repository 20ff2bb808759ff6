// SPDX-License-Identifier: Apache-2.0
// The workers of a router: which exist, which it pings, and which may get a request. Lives on the
// router's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/stats.h"
#include "server/router/breaker.h"
#include "server/router/known_prefixes.h"
#include "server/router/kv_event_feed.h"
#include "server/router/kv_event_subscriber.h"
#include "server/router/router_loop.h"
#include "server/router/worker_health.h"
#include "server/router/worker_link.h"

namespace sluice {

struct Worker {
  Worker(const Config& config, std::string name, const std::shared_ptr<RouterLoop>& loop)
      : address(std::move(name)), link(config, address, loop) {}

  const std::string address;
  WorkerLink link;
  WorkerHealth health;
  Breaker breaker;
  KnownPrefixes prefixes;  // filled by requests sent to it, and by its events
  KvEventFeed events;
  std::unique_ptr<KvEventSubscriber> subscriber;  // null: it publishes no events
  std::optional<WorkerDescription> description;   // describes the process that answers pings
  bool is_pinging = false;
  bool is_describing = false;
  bool is_leaving = false;  // discovery no longer names it
  bool differs = false;     // it gets no new requests, because others have another fingerprint
  bool is_logged_as_different = false;  // the log has named it
  std::chrono::steady_clock::time_point pinged_at{};
  int64_t num_streams = 0;
  int64_t queued_tokens = 0;  // tokens of requests without an output yet
};

class WorkerSet {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Events {
    std::function<void(Worker&)> lost;  // it is silent, stuck or replaced; its streams are lost
    std::function<void(Worker&)> changed;  // it may take requests now
  };

  WorkerSet(const Config& config, std::shared_ptr<RouterLoop> loop)
      : config_(config), loop_(std::move(loop)) {}

  void set_events(Events events) { events_ = std::move(events); }

  // Replaces the addresses; workers that are gone get no more requests and are removed when idle.
  void set_addresses(const std::vector<std::string>& addresses);

  // Pings and judges the workers that are due.
  void tick(Time now);

  // Returns the workers of this fingerprint that may get a request now.
  [[nodiscard]] std::vector<Worker*> usable(const std::string& fingerprint, Time now) const;
  // Returns a worker of this fingerprint, usable or not; null: none is known.
  [[nodiscard]] Worker* any_of(const std::string& fingerprint) const;

  [[nodiscard]] const std::vector<std::unique_ptr<Worker>>& all() const { return workers_; }

  // Asks again for the worker's description.
  void describe(Worker& worker);

  // `serves`: tells whether the router has the version of a fingerprint.
  [[nodiscard]] std::vector<WorkerStats> stats(
      const std::function<bool(const std::string&)>& serves, Time now) const;

 private:
  void ping(Worker& worker, Time now);
  void take_answer(Worker& worker, const Expected<WorkerLoad>& load);
  void listen(Worker& worker);
  void take_event(const std::string& address, const KvEventMessage& message);
  Worker* find(const std::string& address) const;

  const Config& config_;
  std::shared_ptr<RouterLoop> loop_;
  Events events_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace sluice
