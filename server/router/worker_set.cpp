// SPDX-License-Identifier: Apache-2.0
#include "server/router/worker_set.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "engine/core/log.h"
#include "engine/core/memory_reserve.h"
#include "server/http/socket_name.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

std::string_view status_name(const Worker& worker,
                             const std::function<bool(const std::string&)>& serves,
                             Clock::time_point now) {
  switch (worker.health.status(now)) {
    case WorkerHealth::Status::kUnknown:
      return "unknown";
    case WorkerHealth::Status::kSilent:
      return "silent";
    case WorkerHealth::Status::kStuck:
      return "stuck";
    case WorkerHealth::Status::kLive:
      break;
  }
  if (!worker.description) return "unknown";
  if (!serves(worker.description->model.system_fingerprint)) return "other_model";
  return worker.health.load().is_draining || worker.is_leaving ? "draining" : "live";
}

}  // namespace

void WorkerSet::set_addresses(const std::vector<std::string>& addresses) {
  for (const auto& worker : workers_) {
    const bool is_named = std::ranges::find(addresses, worker->address) != addresses.end();
    if (worker->is_leaving != !is_named) {
      log_event(
          LogLevel::kInfo, is_named ? "worker_added" : "worker_removed", "worker", worker->address);
    }
    worker->is_leaving = !is_named;
  }
  for (const std::string& address : addresses) {
    if (find(address) != nullptr) continue;
    log_event(LogLevel::kInfo, "worker_added", "worker", address);
    workers_.push_back(std::make_unique<Worker>(config_, address, loop_));
  }
  tick(Clock::now());
}

void WorkerSet::tick(Time now) {
  for (const auto& worker : workers_) {
    using Status = WorkerHealth::Status;
    const Status status = worker->health.status(now);
    const bool is_lost = status == Status::kSilent || status == Status::kStuck;
    if (is_lost && worker->num_streams > 0) events_.lost(*worker);
    if (!worker->is_pinging && now - worker->pinged_at >= WorkerHealth::kPingInterval) {
      ping(*worker, now);
    }
  }
  std::erase_if(workers_, [](const auto& worker) {
    return worker->is_leaving && worker->num_streams == 0 && !worker->is_pinging &&
           !worker->is_describing;
  });
}

std::vector<Worker*> WorkerSet::usable(const std::string& fingerprint, Time now) const {
  std::vector<Worker*> found;
  for (const auto& worker : workers_) {
    if (worker->health.status(now) != WorkerHealth::Status::kLive) continue;
    if (worker->health.load().is_draining || worker->is_leaving) continue;
    if (!worker->description || worker->description->model.system_fingerprint != fingerprint) {
      continue;
    }
    // After a loss another process may be there, which only a ping's answer tells.
    const bool is_seen = worker->health.has_answered_since(worker->breaker.opened_at());
    if (is_seen && worker->breaker.allows(now)) found.push_back(worker.get());
  }
  return found;
}

Worker* WorkerSet::any_of(const std::string& fingerprint) const {
  for (const auto& worker : workers_) {
    if (worker->description && worker->description->model.system_fingerprint == fingerprint) {
      return worker.get();
    }
  }
  return nullptr;
}

void WorkerSet::describe(Worker& worker) {
  worker.description.reset();
  worker.is_logged_as_different = false;
  worker.events.reset(worker.prefixes);
  if (worker.is_describing) return;
  worker.is_describing = true;
  worker.link.describe([this, &worker](Expected<WorkerDescription> description) {
    worker.is_describing = false;
    if (!description) {
      log_event(LogLevel::kWarning,
                "worker_description_failed",
                "worker",
                worker.address,
                "reason",
                description.error().message);
      return;  // the next answer to a ping asks again
    }
    worker.description = std::move(*description);
    log_event(LogLevel::kInfo,
              "worker_described",
              "worker",
              worker.address,
              "fingerprint",
              worker.description->model.system_fingerprint);
    listen(worker);
    events_.changed(worker);
  });
}

void WorkerSet::listen(Worker& worker) {
  const auto name = parse_socket_name(worker.address);
  const std::string endpoint =
      config_.affinity_blocks == 0 || !name
          ? std::string()
          : reachable_endpoint(worker.description->kv_events_endpoint, name->host);
  if (endpoint.empty()) return worker.subscriber.reset();
  if (worker.subscriber != nullptr && worker.subscriber->endpoint() == endpoint) return;
  const auto take = [this, loop = loop_, address = worker.address](KvEventMessage message) {
    loop->post([this, address, message = std::make_shared<KvEventMessage>(std::move(message))] {
      take_event(address, *message);
    });
  };
  try {
    worker.subscriber = std::make_unique<KvEventSubscriber>(endpoint, take);
  } catch (const std::system_error& error) {
    worker.subscriber.reset();  // requests are routed by what they leave in the worker's cache
    log_event(LogLevel::kWarning,
              "kv_events_not_read",
              "worker",
              worker.address,
              "reason",
              error.what());
  }
}

void WorkerSet::take_event(const std::string& address, const KvEventMessage& message) {
  Worker* const worker = find(address);
  if (worker == nullptr) return;
  auto verdict = KvEventFeed::Verdict::kBroken;
  if (keep_memory_for(message.payload.size())) {
    try {
      verdict = worker->events.take(message.number, message.payload, worker->prefixes);
    } catch (const std::bad_alloc&) {
      keep_memory_reserves();
    }
  }
  if (verdict == KvEventFeed::Verdict::kApplied) return;
  if (verdict == KvEventFeed::Verdict::kBroken) worker->events.reset(worker->prefixes);
  log_event(LogLevel::kInfo,
            verdict == KvEventFeed::Verdict::kGap ? "kv_events_missed" : "kv_events_broken",
            "worker",
            address);
}

void WorkerSet::ping(Worker& worker, Time now) {
  worker.is_pinging = true;
  worker.pinged_at = now;
  worker.link.ping([this, &worker](const Expected<WorkerLoad>& load) {
    worker.is_pinging = false;
    take_answer(worker, load);
  });
}

void WorkerSet::take_answer(Worker& worker, const Expected<WorkerLoad>& load) {
  const Time now = Clock::now();
  if (!load) {
    if (load.error().code == ErrorCode::kDeadlineExceeded) return;  // silence has its own limit
    const bool was_live = worker.health.status(now) == WorkerHealth::Status::kLive;
    if (was_live || load.error().code == ErrorCode::kPermissionDenied) {
      log_event(LogLevel::kWarning,
                "worker_lost",
                "worker",
                worker.address,
                "reason",
                load.error().message);
    }
    worker.health.lost();
    if (was_live) {
      worker.breaker.died(now);
      events_.lost(worker);
    }
    return;
  }
  const bool is_other_process = load->epoch != worker.health.load().epoch;
  worker.health.answered(*load, now);
  const auto blocks = std::min<int64_t>(config_.affinity_blocks, load->num_blocks_total);
  worker.prefixes.set_capacity(static_cast<size_t>(std::max<int64_t>(blocks, 0)));
  if (is_other_process && worker.num_streams > 0) events_.lost(worker);
  if (is_other_process || !worker.description || worker.description->epoch != load->epoch) {
    describe(worker);
  } else {
    events_.changed(worker);
  }
}

Worker* WorkerSet::find(const std::string& address) const {
  for (const auto& worker : workers_) {
    if (worker->address == address) return worker.get();
  }
  return nullptr;
}

std::vector<WorkerStats> WorkerSet::stats(const std::function<bool(const std::string&)>& serves,
                                          Time now) const {
  std::vector<WorkerStats> stats;
  for (const auto& worker : workers_) {
    const auto& known = worker->description;
    stats.push_back({.address = worker->address,
                     .fingerprint = known ? known->model.system_fingerprint : std::string(),
                     .status = status_name(*worker, serves, now),
                     .breaker = to_string(worker->breaker.state(now)),
                     .num_requests = worker->num_streams,
                     .differs = worker->differs});
  }
  return stats;
}

}  // namespace sluice
