// SPDX-License-Identifier: Apache-2.0
// Carries bytes from one process to another through memory that both map: one writes, one reads.
// The reader creates the memory, whose size is then fixed. Neither side trusts the other: each
// keeps its position privately, validates the other's at each use, and copies bytes out before it
// reads them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/core/status.h"
#include "kernels/kv_checksum.h"

namespace sluice {

inline constexpr uint64_t kShmLeastRingBytes = uint64_t{64} << 10;
inline constexpr uint64_t kShmMostRingBytes = uint64_t{1} << 30;

class ShmRing {
 public:
  // Makes a sealed file in memory for a ring of `bytes`. The caller closes it.
  static Expected<int> make_file(uint64_t bytes);
  // Fails with kDataLoss unless it is such a file of this size. The file may be closed afterwards.
  static Expected<std::unique_ptr<ShmRing>> map(int file, uint64_t bytes);
  ~ShmRing();
  ShmRing(const ShmRing&) = delete;
  ShmRing& operator=(const ShmRing&) = delete;

  // Returns how many bytes were taken or copied out: at least one where there is room or something
  // to read; nullopt where the other side's position is impossible. `wakes_other`: the other side
  // has found the ring full, or empty, and waits to be woken.
  std::optional<size_t> write(std::span<const std::byte> bytes, bool& wakes_other);
  // Also adds what was copied out to `sum` if it is not null.
  std::optional<size_t> read(std::span<std::byte> out, kernels::KvChecksum* sum, bool& wakes_other);

  // Writes `parts` after space reserved for `front_bytes`, which depend on the sum of `parts`: all,
  // or false if there is no room now. The reader sees nothing before publish() writes the front.
  std::optional<bool> copy(size_t front_bytes,
                           std::span<const std::span<const std::byte>> parts,
                           kernels::KvChecksum& sum);
  void publish(std::span<const std::byte> front, bool& wakes_other);

  [[nodiscard]] uint64_t bytes() const { return bytes_; }

 private:
  struct Shared;

  ShmRing(std::byte* memory, uint64_t bytes);
  [[nodiscard]] std::optional<uint64_t> used_by_writer() const;
  [[nodiscard]] std::optional<uint64_t> unread() const;
  // Returns the free bytes. If fewer than `wanted`, the reader is asked to wake this side.
  std::optional<uint64_t> room_for(uint64_t wanted);
  void put(uint64_t position, std::span<const std::byte> bytes, kernels::KvChecksum* sum);
  void advance(uint64_t count, bool& wakes_other);

  std::byte* const memory_;  // the page of Shared, then the ring
  const uint64_t bytes_;
  Shared& shared_;
  uint64_t position_ = 0;  // bytes written, or read, so far
  uint64_t copied_ = 0;    // bytes after it, written by copy()
};

}  // namespace sluice
