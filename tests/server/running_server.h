// SPDX-License-Identifier: Apache-2.0
// A server on a free loopback port with its own thread, stopped at the end of the scope.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>

#include "engine/core/config.h"
#include "server/http_server.h"
#include "tests/support/fake_engine.h"
#include "tests/support/http_client.h"

namespace sluice {

class RunningServer {
 public:
  enum class Names { kFake, kOfConfig };

  explicit RunningServer(Engine& engine, Config config = {}, Names names = Names::kFake) {
    config.port = 0;
    if (names == Names::kFake && config.served_model_name.empty()) {
      config.served_model_name = {"fake", "alias"};
    }
    auto server = HttpServer::create(config, engine);
    if (!server) {
      ADD_FAILURE() << server.error().message;
      return;
    }
    server_ = std::move(*server);
    thread_ = std::thread([this] { EXPECT_TRUE(server_->run()); });
  }

  ~RunningServer() { stop(); }

  void stop() {
    if (thread_.joinable()) {
      server_->stop();
      thread_.join();
    }
  }

  // Returns when run() has.
  void wait() { thread_.join(); }

  HttpServer& operator*() { return *server_; }

  HttpServer* operator->() { return server_.get(); }

  [[nodiscard]] uint16_t port() const { return server_->port(); }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// Waits for another thread's effect; false after a minute.
inline bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

inline constexpr const char* kChatPath = "/v1/chat/completions";
inline constexpr const char* kCompletionPath = "/v1/completions";

inline std::string chat_body(const std::string& more = {}) {
  return R"({"messages":[{"role":"user","content":"Hi"}])" + more + "}";
}

}  // namespace sluice
