// SPDX-License-Identifier: Apache-2.0
// How the ranks that share a model exchange results. The only collective is a gather:
// kernels/partial_sums.h sums in order of rank, because a library's reduction adds in an order of
// its own. Stages of a pipeline hand rows on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"

struct CUstream_st;  // the name in CUDA's headers

namespace sluice {

namespace kernels {
class DeviceMemory;
struct PeerWindows;
}  // namespace kernels

// One rank's endpoint. One thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int32_t rank() const = 0;
  [[nodiscard]] virtual int32_t size() const = 0;

  // Every rank calls it equally often with equal sizes; returns, when all have called, the ranks'
  // parts in order. A part stays valid and unchanged until its rank's next all_gather() returns, so
  // two alternating buffers serve any number of calls. Empty after a rank has failed: other ranks
  // may still read the previous part, which must stay unchanged.
  virtual std::span<const std::byte* const> all_gather(std::span<const std::byte> part) = 0;

  // An exchange in a launch of the caller's, instead of all_gather(), where devices write each
  // other's memory: returns what it exchanges parts of these bytes by (kernels/peer_rows.h), after
  // which the caller calls end_exchange(); or null: all_gather(). Every rank gets the same, unless
  // one has failed.
  [[nodiscard]] virtual const kernels::PeerWindows* begin_exchange(size_t /*part_bytes*/) {
    return nullptr;
  }

  // Returns when every rank has called it, though the parts may arrive later.
  virtual void end_exchange() { SLUICE_UNREACHABLE("these ranks do not write each other's memory"); }

  // Moves bytes, at most kPassBytes, from rank `from` to the next one, `to`, where they replace
  // what is there; of the other ranks only the size counts. The calls of two such ranks have the
  // same order and sizes on both. In one process every rank makes all calls, in one order;
  // processes may be apart by several, and what goes to rank 0 waits for nothing, so that rank 0
  // may send first and take later. False: a rank has failed. Only between ranks on CPUs, which
  // gather nothing.
  static constexpr int64_t kPassBytes = int64_t{1} << 20;

  virtual bool pass(int32_t /*from*/, int32_t /*to*/, std::span<std::byte> /*bytes*/) {
    SLUICE_UNREACHABLE("these ranks have no stages");
  }

  // Where this rank keeps a digest of what must be equal on all ranks: each all_gather() compares
  // it, and fails if it differs. Null: nothing is compared.
  [[nodiscard]] virtual uint64_t* state() { return nullptr; }

  // Any thread: all_gather() of every rank returns at once from now on, those under way included.
  virtual void fail() = 0;
  [[nodiscard]] virtual bool has_failed() const = 0;

  // Before any other call: when the ranks fail, even by an error that no call of theirs returns,
  // they call `on_failure` at once, on any thread, perhaps several times, and never after the
  // destructor. It must not call the ranks. Those that only fail() ends do not call it.
  virtual void watch_failure(std::function<void()> /*on_failure*/) {}
};

// Passes any number of bytes, piece by piece.
inline bool pass_all(Communicator& ranks, int32_t from, int32_t to, std::span<std::byte> bytes) {
  constexpr auto kPiece = static_cast<size_t>(Communicator::kPassBytes);
  for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const size_t count = std::min(kPiece, bytes.size() - begin);
    if (!ranks.pass(from, to, bytes.subspan(begin, count))) return false;
  }
  return true;
}

// A device rank's end of an exchange.
struct DeviceRank {
  int32_t device = 0;  // device number as CUDA counts
  // Device memory that receives all ranks' parts in order; equally large on every rank.
  std::span<std::byte> received;
  CUstream_st* stream = nullptr;  // the device's stream
  std::string name = {};          // "cuda:NVIDIA H200"
  kernels::DeviceMemory* memory = nullptr;
  // Device memory that the other ranks may write, kernels::kPeerWindowBytes of zeros; or none.
  std::span<std::byte> window = {};
};

// Connects all ranks of a group, in order, on one thread: returns one communicator per rank, or an
// error if any fails. Their all_gather() takes device memory, runs on a thread whose current device
// is the rank's, and is ordered on the stream: it may return before the parts arrive, and only
// later work on the stream before the next call may read them. It may be recorded.
using ConnectRanks = std::function<Expected<std::vector<std::unique_ptr<Communicator>>>(
    std::span<const DeviceRank> ranks)>;

class RankGroup;

// Connects the one rank that this process has, on a device, with those of the group's other
// processes, of which every one calls it on a thread whose current device is the rank's; likewise
// its all_gather(), which returns without the other ranks' calls. kUnavailable: the group has
// failed, or fails with the error. The group must outlive the result.
using ConnectNode = std::function<Expected<std::unique_ptr<Communicator>>(
    RankGroup& group, const DeviceRank& own)>;

// What ranks in processes exchange at most; all but `part_bytes` are equal on all.
struct ExchangeSizes {
  int64_t part_bytes = 0;  // in a gather of a stage's ranks, which have it equal
  int32_t num_stages = 1;  // that the processes are divided among
  // With several stages: in a call of pass(), and what a step hands back to rank 0.
  int64_t passed_bytes = 0;
  int64_t returned_bytes = 0;
};

// What goes to rank 0 has room for as many steps.
constexpr int32_t most_steps_in_flight(int32_t num_stages) { return std::max(num_stages, 4); }

// How an engine with several ranks connects them, at its start.
struct RankGroups {
  // Returns `size` communicators, in order.
  std::function<std::vector<std::unique_ptr<Communicator>>(int32_t size)> on_cpu;
  std::function<Expected<ConnectRanks>()> on_devices;
  // Where each process has one rank, on a device.
  std::function<Expected<ConnectNode>()> on_nodes = {};
  // Returns what rank 0 uses instead of its end of the ranks of its stage in other processes, or of
  // the other stages; null: that itself.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> around_nodes = {};
  // Steps in flight over stages in other processes, at most most_steps_in_flight(); none: as many
  // as there are stages.
  std::optional<int32_t> steps_in_flight = {};
};

// Waits until `word` is not `old`: spins for at most about 20 us, then parks until it is notified.
void wait_for_change(const std::atomic<uint32_t>& word, uint32_t old);

// A barrier for the threads of ranks.
class Meeting {
 public:
  explicit Meeting(int32_t size) : size_(size) {}

  // Blocks until all ranks have arrived equally often. False: a rank has failed and none blocks.
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
