// SPDX-License-Identifier: Apache-2.0
#include "server/front/io_worker.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <exception>
#include <new>
#include <system_error>
#include <utility>

#include "engine/core/log.h"
#include "server/front/front_end.h"
#include "engine/core/memory_reserve.h"
#include "server/http/api_errors.h"

namespace sluice {
namespace {

constexpr size_t kScratchBytes = 64 << 10;
constexpr std::chrono::milliseconds kSweepInterval{100};
// While another process serves already, a connection may be idle for less than the time until the
// drain: none is left whose client could meet it with another request.
constexpr std::chrono::seconds kLeavingIdleTime{1};

// Says what was thrown, unless memory lacks for that, too.
void note_failure(const char* where, const std::exception& error) noexcept {
  keep_memory_reserves();
  try {
    log_event(LogLevel::kError, "failed", "in", where, "error", error.what());
  } catch (const std::exception&) {
  }
}

// The error that the client gets for what was thrown.
Error failure_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ErrorCode::kUnavailable, "The server has too little memory for this request.", {}, {}};
  }
  if (dynamic_cast<const std::system_error*>(&error) != nullptr) {
    return {ErrorCode::kUnavailable, "The system has too little for this request.", {}, {}};
  }
  return {ErrorCode::kInternal, "The server failed to handle this request.", {}, {}};
}

}  // namespace

IoWorker::IoWorker(FrontEnd& front_end, const ConnectionLimits& limits, IoWorker* large)
    : front_end_(front_end), limits_(limits), large_(large), scratch_(kScratchBytes) {}

IoWorker::~IoWorker() = default;

void IoWorker::run() {
  const auto work = boost::asio::make_work_guard(context_);
  schedule_sweep();
  while (true) {
    try {
      context_.run();
      return;
    } catch (const std::exception& error) {
      note_failure("io_thread", error);  // one connection's or call's; the others continue
    }
  }
}

void IoWorker::post(std::function<void()> task) { boost::asio::post(context_, std::move(task)); }

void IoWorker::publish(OutputBatch batch) {
  boost::asio::post(context_, [this, moved = std::move(batch)]() mutable { deliver(moved); });
}

void IoWorker::deliver(OutputBatch& batch) {
  for (const TokenOutput& output : batch.outputs) {
    const auto found = targets_.find(output.request_id);
    if (found == targets_.end()) continue;
    const std::shared_ptr<OutputReceiver> receiver = found->second.receiver;
    const size_t choice = found->second.choice;
    if (output.finish_reason != FinishReason::kNone) {
      targets_.erase(found);
      num_watched_.fetch_sub(1);
    }
    try {
      receiver->accept(choice, output);
    } catch (const std::exception& error) {
      note_failure("output", error);
      receiver->fail(failure_of(error));
    }
    if (touched_.empty() || touched_.back() != receiver) touched_.push_back(receiver);
  }
  for (const auto& receiver : touched_) {
    try {
      receiver->flush();
    } catch (const std::exception& error) {
      note_failure("output", error);
      receiver->fail(failure_of(error));
    }
  }
  touched_.clear();
}

void IoWorker::watch(RequestId id, std::shared_ptr<OutputReceiver> receiver, size_t choice) {
  targets_.emplace(id, Target{std::move(receiver), choice});
  num_watched_.fetch_add(1);
}

void IoWorker::ask_state(int32_t num_steps, std::function<void(const EngineState&)> done) {
  num_watched_.fetch_add(1);
  front_end_.engine.report_state(num_steps, [this, done = std::move(done)](EngineState state) {
    post([this, done, state = std::make_shared<const EngineState>(std::move(state))] {
      done(*state);
      num_watched_.fetch_sub(1);
    });
  });
}

void IoWorker::watch_deadlines(const void* key, std::function<void()> check) {
  deadline_checks_.emplace(key, std::move(check));
}

void IoWorker::adopt(StreamSocket socket, Connection::Kind kind) {
  const bool is_reserved = kind == Connection::Kind::kReserved;
  std::shared_ptr<Connection> connection;
  try {
    std::unique_ptr<TlsSession> tls;
    if (front_end_.tls != nullptr) tls = front_end_.tls->create_session();
    if (front_end_.tls == nullptr || tls != nullptr) {
      connection =
          std::make_shared<Connection>(std::move(socket), std::move(tls), *this, limits_, kind);
      connections_.emplace(connection.get(), connection);
    }
  } catch (const std::bad_alloc&) {
    connection.reset();
  }
  if (connection == nullptr) {
    if (!is_reserved) front_end_.connection_closed();
    return;
  }
  if (is_reserved) {
    const Config& config = front_end_.config;
    const int32_t most = std::max(config.reserved_connections / config.io_threads, 1);
    if (reserved_.size() >= static_cast<size_t>(most)) {
      const auto oldest = connections_.at(reserved_.front());
      oldest->close();
    }
    reserved_.push_back(connection.get());
  }
  connection->start();
}

void IoWorker::remove(Connection& connection) {
  const bool is_reserved = connection.kind() == Connection::Kind::kReserved;
  if (is_reserved) std::erase(reserved_, &connection);
  connections_.erase(&connection);  // it may be missing: see take_over()
  if (!is_reserved) front_end_.connection_closed();
}

void IoWorker::close_connections() {
  auto connections = connections_;  // close() erases
  for (const auto& [key, connection] : connections) connection->close();
}

void IoWorker::check_connections() {
  const auto now = Connection::Clock::now();
  auto connections = connections_;  // a deadline may close and erase
  for (const auto& [key, connection] : connections) connection->check_deadlines(now);
}

bool IoWorker::is_leaving() const { return front_end_.is_leaving(); }

std::chrono::seconds IoWorker::idle_timeout() const {
  if (front_end_.is_draining()) return std::chrono::seconds(0);
  if (front_end_.is_leaving()) return std::min(limits_.idle_timeout, kLeavingIdleTime);
  return limits_.idle_timeout;
}

void IoWorker::cut_generations(const Error& reason) {
  std::vector<std::shared_ptr<OutputReceiver>> open;
  for (const auto& [id, target] : targets_) open.push_back(target.receiver);
  for (const auto& receiver : open) receiver->fail(reason);
}

bool IoWorker::wants_body(const HttpRequest& header) { return front_end_.wants_body(header); }

bool IoWorker::is_costly(const HttpRequest& header) { return front_end_.is_costly(header); }

BodyBudget& IoWorker::bodies() { return front_end_.bodies; }

void IoWorker::take_over(std::shared_ptr<Connection> connection) {
  post([this, connection = std::move(connection)] {
    try {
      connections_.emplace(connection.get(), connection);
      connection->resume();
    } catch (const std::bad_alloc&) {  // for what has arrived
      connection->close();
    }
  });
}

// What a handler throws for want of memory or threads is this request's alone.
void IoWorker::handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const ErrorForm form = request.is_anthropic ? ErrorForm::kAnthropic : ErrorForm::kOpenAi;
  try {
    front_end_.handle(std::move(request), writer);
  } catch (const std::exception& error) {
    note_failure("request", error);
    HttpResponse response = error_response(failure_of(error), form);
    front_end_.count_unrouted(response.status);
    writer->give_up(std::move(response));
  }
}

void IoWorker::request_started() { front_end_.request_started(); }

void IoWorker::request_done() { front_end_.request_done(); }

void IoWorker::count_rejected(int status) { front_end_.count_unrouted(status); }

void IoWorker::schedule_sweep() {
  sweep_timer_.expires_after(kSweepInterval);
  sweep_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    keep_memory_reserves();
    check_connections();
    auto checks = deadline_checks_;  // one may forget itself
    for (const auto& [key, check] : checks) check();
    schedule_sweep();
  });
}

}  // namespace sluice
