// SPDX-License-Identifier: Apache-2.0
// A connection whose large body is another thread's, where memory or the kernel fails on the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/http/body_budget.h"
#include "server/http/connection.h"
#include "server/http/cors.h"

namespace sluice {
namespace {

// An I/O thread's part, without the thread.
class Owner final : public ConnectionOwner {
 public:
  explicit Owner(BodyBudget& bodies) : bodies_(bodies) {}

  bool wants_body(const HttpRequest&) override { return true; }

  bool is_costly(const HttpRequest& header) override { return header.path == "/costly"; }

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override {
    body_sizes.push_back(request.body.size());
    HttpResponse response;
    response.body = "done";
    writer->send(std::move(response));
  }

  void request_started() override {}
  void request_done() override {}
  void count_rejected(int) override {}

  void remove(Connection& connection) override {
    ++num_removed;
    std::erase_if(connections, [&](const auto& held) { return held.get() == &connection; });
  }

  BodyBudget& bodies() override { return bodies_; }

  ConnectionOwner* large_bodies_owner() override { return large; }

  boost::asio::io_context& context() override {
    return returned_to == nullptr ? context_ : *returned_to;
  }

  void forget(Connection& connection) override {
    std::erase_if(connections, [&](const auto& held) { return held.get() == &connection; });
  }

  void take_over(std::shared_ptr<Connection> connection) override {
    if (lacks_memory) throw std::bad_alloc();
    connections.push_back(std::move(connection));
    connections.back()->resume();
  }

  // Runs what is ready; a loop without work has stopped itself.
  size_t poll() {
    context_.restart();
    return context_.poll();
  }

  [[nodiscard]] bool is_leaving() const override { return false; }

  [[nodiscard]] std::chrono::seconds idle_timeout() const override {
    return std::chrono::seconds(60);
  }

  std::span<char> scratch() override { return scratch_; }

  IoWorker& worker() override { std::abort(); }

  Owner* large = nullptr;
  bool lacks_memory = false;
  boost::asio::io_context* returned_to = nullptr;  // instead of the own one
  std::vector<std::shared_ptr<Connection>> connections;
  std::vector<size_t> body_sizes;  // of requests handled
  int num_removed = 0;

 private:
  BodyBudget& bodies_;
  boost::asio::io_context context_{1};
  std::array<char, 4096> scratch_{};
};

class LargeBody : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    client_ = ends[0];
    server_ = ends[1];
    small_.large = &large_;
    StreamSocket socket(small_.context());
    socket.assign({AF_UNIX, 0}, server_);
    auto connection = std::make_shared<Connection>(
        std::move(socket), nullptr, small_, limits_, Connection::Kind::kCounted);
    small_.connections.push_back(connection);
    connection->start();
  }

  void TearDown() override {
    for (Owner* owner : {&small_, &large_}) {
      const auto connections = owner->connections;  // close() erases
      for (const auto& connection : connections) connection->close();
    }
    ::close(client_);
  }

  void send(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const ssize_t sent =
          ::send(client_, text.data() + at, text.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) at += static_cast<size_t>(sent);
      run();
      if (sent <= 0 && small_.connections.empty() && large_.connections.empty()) return;
    }
  }

  // Runs both loops until neither has something to do.
  void run() {
    while (small_.poll() + large_.poll() > 0) {
    }
  }

  std::string received() {
    run();
    std::string text(4096, '\0');
    const ssize_t got = ::recv(client_, text.data(), text.size(), MSG_DONTWAIT);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

  static bool is_open(int descriptor) { return ::fcntl(descriptor, F_GETFD) >= 0; }

  static std::string request(size_t body) {
    return "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body) + "\r\n\r\n" +
           std::string(body, ' ');
  }

  const Config config_;
  const CorsPolicy policy_{config_};
  const ConnectionLimits limits_{config_, policy_};
  BodyBudget bodies_{int64_t{64} << 20};
  Owner large_{bodies_};
  Owner small_{bodies_};
  int client_ = -1;
  int server_ = -1;
};

constexpr size_t kLarge = 1 << 20;

TEST_F(LargeBody, IsReadByTheOwnerOfLargeOnes) {
  send(request(kLarge));
  EXPECT_NE(received().find("done"), std::string::npos);
  EXPECT_EQ(large_.body_sizes, std::vector<size_t>{kLarge});
  EXPECT_TRUE(small_.connections.empty());
  EXPECT_EQ(large_.connections.size(), 1U);
}

TEST_F(LargeBody, ACostlyRequestIsReadThereToo) {
  for (const char* body : {"", "0123456789"}) {
    const std::string length = std::to_string(std::string(body).size());
    send("POST /costly HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + "\r\n\r\n" + body);
    EXPECT_NE(received().find("done"), std::string::npos);
  }
  EXPECT_EQ(large_.body_sizes.back(), 10U);
  EXPECT_TRUE(small_.connections.empty());
}

TEST_F(LargeBody, StaysWhereMemoryLacksToHandItOver) {
  large_.lacks_memory = true;
  send(request(kLarge));
  EXPECT_NE(received().find("done"), std::string::npos);
  EXPECT_EQ(small_.body_sizes, std::vector<size_t>{kLarge});
  EXPECT_EQ(small_.connections.size(), 1U);
  EXPECT_EQ(large_.num_removed, 0);
  // The next one may go.
  large_.lacks_memory = false;
  send(request(kLarge));
  EXPECT_NE(received().find("done"), std::string::npos);
  EXPECT_EQ(large_.body_sizes, std::vector<size_t>{kLarge});
}

TEST_F(LargeBody, StaysWhereTheOtherLoopRefusesTheDescriptor) {
  // epoll takes a descriptor once.
  boost::asio::posix::stream_descriptor twin(large_.context(), server_);
  send(request(kLarge));
  EXPECT_NE(received().find("done"), std::string::npos);
  EXPECT_EQ(small_.body_sizes, std::vector<size_t>{kLarge});
  EXPECT_EQ(small_.connections.size(), 1U);
  twin.release();
}

TEST_F(LargeBody, LeavesNoDescriptorWhereNoLoopTakesIt) {
  boost::asio::io_context foreign;
  boost::asio::posix::stream_descriptor there(large_.context(), server_);
  boost::asio::posix::stream_descriptor here(foreign, server_);
  ASSERT_TRUE(is_open(server_));
  small_.returned_to = &foreign;
  send(request(kLarge));
  EXPECT_FALSE(is_open(server_));
  EXPECT_EQ(small_.num_removed, 1);
  EXPECT_TRUE(small_.connections.empty());
  EXPECT_TRUE(large_.connections.empty());
  there.release();
  here.release();
}

}  // namespace
}  // namespace sluice
