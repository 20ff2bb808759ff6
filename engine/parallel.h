// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: how the ranks that share a model's layers exchange what they computed. The
// only collective is a gather: sums are kernels/parts.h's, in order of rank, because a library's
// reduction adds in an order of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/status.h"

struct CUstream_st;  // as in CUDA's headers

namespace sluice {

// One rank's end. One thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int32_t rank() const = 0;
  [[nodiscard]] virtual int32_t size() const = 0;

  // Called by every rank equally often, with as many bytes; returns when all have: the ranks' parts
  // in order. A part is unchanged, and may be read, until its rank's next all_gather() returns, so
  // that two buffers in turn serve any number of calls. Empty once a rank has failed: others may
  // then read the part before, and it stays as it is.
  virtual std::span<const std::byte* const> all_gather(std::span<const std::byte> part) = 0;

  // Any thread: all_gather() of every rank returns at once from now on, those under way included.
  virtual void fail() = 0;
  [[nodiscard]] virtual bool has_failed() const = 0;
};

// Where a rank on a device exchanges its parts.
struct DeviceRank {
  int32_t device = 0;  // its number, of those that CUDA shows
  // Device memory for the ranks' parts in order, as large on every rank.
  std::span<std::byte> received;
  CUstream_st* stream = nullptr;  // of the device
};

// All ranks of a group, in order, on one thread: as many communicators, or none where one cannot
// be had. all_gather() then takes device memory, on a thread whose current device is the rank's,
// and is in order with the stream: it may return before the parts are there, and what the stream
// runs before the next call may read them. It may be recorded.
using ConnectRanks = std::function<Expected<std::vector<std::unique_ptr<Communicator>>>(
    std::span<const DeviceRank> ranks)>;

// How the ranks of an engine find each other, asked once where there are more than one.
struct RankGroups {
  // As many as asked for, in order.
  std::function<std::vector<std::unique_ptr<Communicator>>(int32_t size)> on_cpu;
  std::function<Expected<ConnectRanks>()> on_devices;
};

// Waits until `word` is not `old`: spins for at most about 20 us, then parks until it is notified.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t old);

// Where the threads of ranks wait for each other.
class Meeting {
 public:
  explicit Meeting(int32_t size) : size_(size) {}

  // Until all have come as often as this one. False: a rank has failed, and nobody waits any more.
  bool arrive();
  // Any thread.
  void fail();

  [[nodiscard]] bool has_failed() const { return failed_.load(); }

  [[nodiscard]] int32_t size() const { return size_; }

 private:
  const int32_t size_;
  alignas(64) std::atomic<int32_t> arrived_ = 0;
  alignas(64) std::atomic<uint32_t> generation_ = 0;
  std::atomic<bool> failed_ = false;
};

// Ranks inside one process, which read each other's parts where they are: no copies, no allocation
// and no lock in a call.
std::vector<std::unique_ptr<Communicator>> make_local_ranks(int32_t size);

}  // namespace sluice
