// SPDX-License-Identifier: Apache-2.0
// The source of connections: a TCP port, or a Unix socket in the file system.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;

class Listener {
 public:
  // kWithNext: a second process may listen at the same port, as in a hot restart.
  enum class Sharing : uint8_t { kNone, kWithNext };

  // Listens at --uds, or at --host and --port (0: any free port). A socket file without a listener
  // is replaced; one in use, or a file that is not a socket, is refused.
  static Expected<std::unique_ptr<Listener>> create(const Config& config,
                                                    Sharing sharing = Sharing::kNone);
  // Takes over a listening socket of the same configuration from another process.
  static Expected<std::unique_ptr<Listener>> adopt(const Config& config, int descriptor);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Returns a connected, non-blocking socket that the caller closes; -1: errno says why there is
  // none.
  [[nodiscard]] int accept() const;
  // Stops listening; later calls of accept() fail.
  void close();

  // Keeps the socket's file, because another process listens on the socket and removes it.
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
