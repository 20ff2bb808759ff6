// SPDX-License-Identifier: Apache-2.0
// Connections to a port of this machine that say nothing.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace sluice::testing {

class IdleSockets {
 public:
  IdleSockets(uint16_t port, int count) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < count; ++i) {
      const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      descriptors_.push_back(descriptor);
      if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    }
  }

  ~IdleSockets() {
    for (const int descriptor : descriptors_) ::close(descriptor);
  }

  IdleSockets(const IdleSockets&) = delete;
  IdleSockets& operator=(const IdleSockets&) = delete;

  // Returns how many the server has not ended so far.
  [[nodiscard]] int num_open() const {
    int count = 0;
    for (const int descriptor : descriptors_) count += is_open(descriptor) ? 1 : 0;
    return count;
  }

 private:
  static bool is_open(int descriptor) {
    std::array<char, 4096> bytes{};  // a greeting, perhaps
    ssize_t num_read = 1;
    while (num_read > 0) num_read = ::recv(descriptor, bytes.data(), bytes.size(), MSG_DONTWAIT);
    return num_read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  std::vector<int> descriptors_;
};

}  // namespace sluice::testing
