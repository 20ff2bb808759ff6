// SPDX-License-Identifier: Apache-2.0
// Where connections come from: a TCP port, or a Unix socket in the file system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;

class Listener {
 public:
  // --uds, or --host and --port (0: any free one). A socket file that nobody listens on any more is
  // replaced; one in use, or a file that is no socket, is refused.
  static Expected<std::unique_ptr<Listener>> create(const Config& config);
  // A listening socket of the same configuration that another process has handed over.
  static Expected<std::unique_ptr<Listener>> adopt(const Config& config, int descriptor);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // A connected, non-blocking socket, the caller's to close; -1: errno says why there is none.
  [[nodiscard]] int accept() const;
  // Stops listening; later calls of accept() fail.
  void close();

  // Another process listens on the socket now and removes its file.
  void hand_over() { path_.clear(); }

  [[nodiscard]] int descriptor() const { return descriptor_; }  // -1: closed

  [[nodiscard]] int family() const { return family_; }

  [[nodiscard]] uint16_t port() const { return port_; }  // 0: a Unix socket

 private:
  Listener() = default;

  int descriptor_ = -1;
  int family_ = 0;
  uint16_t port_ = 0;
  std::string path_;  // to be removed at the end
};

}  // namespace sluice
