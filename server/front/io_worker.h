// SPDX-License-Identifier: Apache-2.0
// One I/O thread: its event loop, its connections and the generations whose tokens it writes. It is
// the sink of its own requests, so a step costs one hand-over per I/O thread. Everything but
// publish(), post() and the atomics belongs to its thread.
#pragma once

#include <atomic>
#include <deque>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"
#include "server/front/output_receiver.h"
#include "server/http/connection.h"
#include "server/http/http_message.h"

namespace sluice {

class FrontEnd;

class IoWorker final : public OutputSink, public ConnectionOwner {
 public:
  // `large`: the worker of large bodies, which outlives this one; null: this is it.
  IoWorker(FrontEnd& front_end, const ConnectionLimits& limits, IoWorker* large);
  ~IoWorker() override;

  boost::asio::io_context& context() override { return context_; }

  void run();  // the thread's body

  // Runs `task` on this worker's thread. Any thread.
  void post(std::function<void()> task);

  // Takes the tokens of a step. Engine thread.
  void publish(OutputBatch batch) override;

  // Methods below run on the worker's thread.
  // A reserved connection takes the place of the oldest one, if there are too many of them.
  void adopt(StreamSocket socket, Connection::Kind kind);
  void close_connections();
  // Ends the connections that are past their time.
  void check_connections();
  void cut_generations(const Error& reason);

  // Implements ConnectionOwner.
  bool wants_body(const HttpRequest& header) override;
  bool is_costly(const HttpRequest& header) override;
  BodyBudget& bodies() override;

  ConnectionOwner* large_bodies_owner() override { return large_; }

  void forget(Connection& connection) override { connections_.erase(&connection); }

  void take_over(std::shared_ptr<Connection> connection) override;
  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;
  void request_started() override;
  void request_done() override;
  void count_rejected(int status) override;
  void remove(Connection& connection) override;

  [[nodiscard]] bool is_leaving() const override;
  [[nodiscard]] std::chrono::seconds idle_timeout() const override;

  std::span<char> scratch() override { return scratch_; }

  IoWorker& worker() override { return *this; }

  // Delivers the tokens of `id` to choice `choice` of `receiver` up to its finish reason.
  void watch(RequestId id, std::shared_ptr<OutputReceiver> receiver, size_t choice);

  // Asks the engine for its state; `done` runs on this thread.
  void ask_state(int32_t num_steps, std::function<void(const EngineState&)> done);

  // Calls `check` about every 100 ms until forget_deadlines(key).
  void watch_deadlines(const void* key, std::function<void()> check);

  void forget_deadlines(const void* key) { deadline_checks_.erase(key); }

  // Returns the number of requests whose end, and of questions whose answer, the engine has not yet
  // reported. Any thread.
  [[nodiscard]] int64_t num_watched() const { return num_watched_.load(); }

 private:
  struct Target {
    std::shared_ptr<OutputReceiver> receiver;  // also held by its connection's callbacks
    size_t choice;
  };

  void deliver(OutputBatch& batch);
  void schedule_sweep();

  FrontEnd& front_end_;
  const ConnectionLimits& limits_;
  IoWorker* const large_;
  boost::asio::io_context context_{1};
  boost::asio::steady_timer sweep_timer_{context_};
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::deque<Connection*> reserved_;  // of these, the oldest first
  std::unordered_map<RequestId, Target> targets_;
  std::unordered_map<const void*, std::function<void()>> deadline_checks_;
  std::vector<std::shared_ptr<OutputReceiver>> touched_;  // changed by deliver()
  std::vector<char> scratch_;
  std::atomic<int64_t> num_watched_{0};
};

}  // namespace sluice
