// SPDX-License-Identifier: Apache-2.0
// A collector of spans on a free loopback port: takes OTLP over HTTP, one request a connection, and
// keeps the spans. A client's trace context to send, and what a span below it says.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

namespace sluice {

inline constexpr const char* kTraceparent =
    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

inline void expect_below_traceparent(const nlohmann::json& span) {
  EXPECT_EQ(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(span["parentSpanId"], "b7ad6b7169203331");
}

class SpanCollector {
 public:
  using Json = nlohmann::json;

  explicit SpanCollector(int status = 200) : status_(status) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_, 16);
    socklen_t length = sizeof address;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }

  ~SpanCollector() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }

  [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // Returns the spans so far.
  std::vector<Json> spans() {
    const std::scoped_lock lock(mutex_);
    return spans_;
  }

  std::vector<Json> resources() {
    const std::scoped_lock lock(mutex_);
    return resources_;
  }

  std::string last_head() {
    const std::scoped_lock lock(mutex_);
    return last_head_;
  }

 private:
  void serve() {
    for (;;) {
      const int peer = ::accept(listener_, nullptr, nullptr);
      if (peer < 0) return;
      std::string text;
      char bytes[4096];
      size_t missing = 1;
      while (missing > 0) {
        const ssize_t count = ::recv(peer, bytes, sizeof bytes, 0);
        if (count <= 0) break;
        text.append(bytes, static_cast<size_t>(count));
        const size_t end = text.find("\r\n\r\n");
        if (end == std::string::npos) continue;
        const size_t at = text.find("Content-Length: ");
        const size_t length = std::strtoul(text.c_str() + at + 16, nullptr, 10);
        missing = end + 4 + length - std::min(text.size(), end + 4 + length);
        if (missing == 0) keep(text.substr(0, end), text.substr(end + 4));
      }
      const std::string answer = "HTTP/1.1 " + std::to_string(status_) +
                                 " X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
      ::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(peer);
    }
  }

  void keep(std::string head, const std::string& body) {
    const Json request = Json::parse(body);
    const std::scoped_lock lock(mutex_);
    last_head_ = std::move(head);
    for (const Json& resource : request["resourceSpans"]) {
      resources_.push_back(resource["resource"]);
      for (const Json& scope : resource["scopeSpans"]) {
        for (const Json& span : scope["spans"]) spans_.push_back(span);
      }
    }
  }

  const int status_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::mutex mutex_;
  std::vector<Json> spans_;
  std::vector<Json> resources_;
  std::string last_head_;
  std::thread thread_;
};

// Returns an attribute's value by its key; null if it has none.
inline nlohmann::json attribute_of(const nlohmann::json& holder, const std::string& key) {
  for (const auto& item : holder["attributes"]) {
    if (item["key"] == key) return item["value"].front();
  }
  return nullptr;
}

}  // namespace sluice
