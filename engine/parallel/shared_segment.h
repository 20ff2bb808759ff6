// SPDX-License-Identifier: Apache-2.0
// Memory that processes of one machine map: a file without a name and of fixed size, so that
// nothing remains of it however they end. The process that creates it hands it over a socket in the
// abstract name space, which ends with the process, to a peer that presents a token. Name and token
// reach the other process on a connection that both trust. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/core/status.h"
#include "engine/parallel/group_socket.h"

namespace sluice {

// Ranks that a segment has room for in the page at its begin, where each has its counts.
inline constexpr int32_t kMostRanks = 8;
inline constexpr int64_t kPageBytes = 4096;

class SharedSegment {
 public:
  // What lets a process take the segment; plain bytes.
  struct Ticket {
    uint64_t bytes = 0;  // 0: there is no segment
    std::array<uint8_t, 16> name{};
    std::array<uint8_t, 32> token{};
  };

  // Makes zeros. kUnavailable: the system gives no such memory, or no socket for it.
  static Expected<std::unique_ptr<SharedSegment>> make(size_t bytes);
  // Reaches the maker. kUnavailable: not on this machine, in another network namespace, or another
  // user's.
  static Expected<std::unique_ptr<GroupSocket>> knock(const Ticket& ticket);
  // Takes the segment on that connection. kDataLoss: the received file is not one.
  static Expected<std::unique_ptr<SharedSegment>> take(GroupSocket& door,
                                                       const Ticket& ticket,
                                                       GroupDeadline deadline);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  // The maker: hands the segment to the next one that has the token.
  Expected<void> hand_over(GroupDeadline deadline);

  [[nodiscard]] const Ticket& ticket() const { return ticket_; }

  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedSegment() = default;

  static Expected<std::unique_ptr<SharedSegment>> map(int file, const Ticket& ticket);

  int file_ = -1;
  int listener_ = -1;
  Ticket ticket_;
  std::span<std::byte> bytes_;
};

}  // namespace sluice
