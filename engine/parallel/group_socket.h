// SPDX-License-Identifier: Apache-2.0
// A TCP connection between two ranks of a group, and how they find each other. Calls wait at most
// for their deadline. close_now() may come from any thread and ends what waits; the rest belongs to
// one thread for reading and one for writing.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

using GroupDeadline = std::chrono::steady_clock::time_point;

class GroupSocket {
 public:
  explicit GroupSocket(int fd);
  ~GroupSocket();
  GroupSocket(const GroupSocket&) = delete;
  GroupSocket& operator=(const GroupSocket&) = delete;

  // Dials a name or address once. kUnavailable: nothing answers there now.
  static Expected<std::unique_ptr<GroupSocket>> dial(const std::string& host,
                                                     uint16_t port,
                                                     GroupDeadline deadline);

  // kUnavailable: the connection has ended. kDeadlineExceeded: it is too slow.
  Expected<void> send(std::span<const std::byte> bytes, GroupDeadline deadline);
  Expected<void> receive(std::span<std::byte> bytes, GroupDeadline deadline);

  // Takes what is there without waiting. Returns the number of bytes; kUnavailable: it has ended.
  Expected<size_t> send_now(std::span<const std::byte> bytes);
  Expected<size_t> receive_now(std::span<std::byte> bytes);

  // Shuts down sending: the peer reads the end after what was sent, and may still send. Any thread.
  void finish();
  // Closes the connection even if another thread uses it. Any thread.
  void close_now();

  [[nodiscard]] int descriptor() const { return fd_; }

  // Returns the address of the other end: "10.0.0.2:40112".
  [[nodiscard]] std::string peer() const;
  // Returns the address of this end without the port: "10.0.0.3".
  [[nodiscard]] std::string own_host() const;

 private:
  const int fd_;
};

class GroupListener {
 public:
  // Binds an address, or "localhost". Any other name means all interfaces: this machine may know
  // its own name as a loopback address or, as a pod that has just started, not yet at all. Port 0:
  // any free one. kInvalidArgument: why not.
  static Expected<std::unique_ptr<GroupListener>> open(const std::string& host, uint16_t port);
  ~GroupListener();
  GroupListener(const GroupListener&) = delete;
  GroupListener& operator=(const GroupListener&) = delete;

  // Null: no peer connected before the deadline.
  std::unique_ptr<GroupSocket> accept(GroupDeadline deadline);

  [[nodiscard]] uint16_t port() const { return port_; }

  // Returns what is bound: "10.0.0.2:29501", or "[::]:29501" for all interfaces.
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  GroupListener(int fd, uint16_t port, std::string name)
      : fd_(fd), port_(port), name_(std::move(name)) {}

  const int fd_;
  const uint16_t port_;
  const std::string name_;
};

}  // namespace sluice
