// SPDX-License-Identifier: Apache-2.0
// Workers of the test's process, which go on when the test says so, and a router over them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/router/remote_engine.h"
#include "tests/server/running_server.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_engine.h"

namespace sluice::testing {

inline constexpr const char* kSecret = "a secret of workers";

// A worker whose engine goes on when the test says so, and that can end and come back.
class TestWorker {
 public:
  explicit TestWorker(FakeEngine::Stepping stepping = FakeEngine::Stepping::kManual,
                      Config config = {})
      : engine_(std::make_unique<FakeEngine>(stepping)), config_(std::move(config)) {
    EngineStats stats;
    stats.num_blocks_total = 1000;
    engine_->set_stats(stats);
    start(0);
  }

  ~TestWorker() { stop(); }

  FakeEngine& operator*() { return *engine_; }

  FakeEngine* operator->() { return engine_.get(); }

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  [[nodiscard]] uint16_t port() const { return static_cast<uint16_t>(port_); }

  [[nodiscard]] uint16_t http_port() const { return server_->port(); }

  void stop() {
    // The server waits until the engine has let its requests go.
    std::jthread steps([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        engine_->end_aborted();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    server_.reset();
  }

  void start_again() { start(port_); }

  void drain() { (*server_)->drain(); }

  void load(int64_t num_running) {
    EngineStats stats;
    stats.num_blocks_total = 1000;
    stats.num_requests_running = num_running;
    engine_->set_stats(stats);
  }

 private:
  void start(int port) {
    config_.worker_listen = "127.0.0.1:" + std::to_string(port);
    config_.worker_secret = kSecret;
    config_.drain_timeout_s = 1;
    server_ = std::make_unique<RunningServer>(*engine_, config_);
    ASSERT_NE(server_->operator->(), nullptr) << "another process has taken the port";
    port_ = (*server_)->worker_port();
  }

  std::unique_ptr<FakeEngine> engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
  int port_ = 0;
};

// Ends what is left in it when it is destroyed, so a test makes the sink before it.
class Router {
 public:
  explicit Router(const std::vector<TestWorker*>& workers, Config config = {}) {
    for (const TestWorker* worker : workers) config.workers.push_back(worker->address());
    config.worker_secret = kSecret;
    const auto num_workers = static_cast<int64_t>(config.workers.size());
    const auto make_tokenizer = []() -> Expected<std::unique_ptr<Tokenizer>> {
      return std::make_unique<ByteTokenizer>();
    };
    auto engine = RemoteEngine::create(config, make_tokenizer);
    if (!engine) {
      ADD_FAILURE() << engine.error().message;
      return;
    }
    engine_ = std::move(*engine);
    EXPECT_TRUE(eventually([&] { return num_usable() == num_workers; }));
  }

  RemoteEngine* operator->() { return engine_.get(); }

  RemoteEngine& operator*() { return *engine_; }

  [[nodiscard]] RouterStats stats() const { return *engine_->stats().router; }

  [[nodiscard]] int64_t num_usable() const { return stats().num_usable; }

  RequestId submit(OutputSink& sink, ValidRequest request) {
    const auto id = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(id) << id.error().message;
    return id.value_or(RequestId(0));
  }

 private:
  std::unique_ptr<RemoteEngine> engine_;
};

inline ValidRequest request_of(std::vector<TokenId> prompt = {72, 105}) {
  ValidRequest request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = 20;
  request.arrival = std::chrono::steady_clock::now();
  return request;
}

// Steps whoever runs something until the request has `count` tokens.
inline void step_until(std::vector<TestWorker*> workers,
                CollectingSink& sink,
                RequestId id,
                size_t count) {
  ASSERT_TRUE(eventually([&] {
    for (TestWorker* worker : workers) {
      if ((*worker)->num_running() > 0) return true;
    }
    return false;
  }));
  for (size_t i = 0; i < count; ++i) {
    for (TestWorker* worker : workers) (*worker)->step();
    sink.wait_tokens(id, i + 1);
  }
}

// Returns the value of a metric that the server tells once; -1: it does not tell it.
inline double metric_of(const RunningServer& server, const std::string& name) {
  HttpClient client(server.port());
  client.get("/metrics");
  const std::string body = client.read_reply().body;
  const size_t line = body.find('\n' + name + '{');
  if (line == std::string::npos) return -1;
  return std::stod(body.substr(body.find("} ", line) + 2));
}

// Requests that the server's router has ended for want of a worker.
inline double num_lost(const RunningServer& server) {
  return metric_of(server, "sluice:router_lost_requests_total");
}

inline std::string text_of(const Collected& collected) {
  std::string text;
  for (const TokenId id : collected.tokens) text += static_cast<char>(id);
  return text;
}

inline const std::string kHelloAndEnd = std::string("Hello") + static_cast<char>(ByteTokenizer::kTurnEnd);

}  // namespace sluice::testing
