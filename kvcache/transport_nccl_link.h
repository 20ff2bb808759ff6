// SPDX-License-Identifier: Apache-2.0
// A communicator of two workers, and the sends or receives that are in it one after the other: what
// a session over NCCL (transport_nccl.cpp) moves its payloads by. One thread calls, and no call
// waits but the destructor: the communicator is non-blocking, which is asked how far it is, and is
// given up on a thread of its own, since NCCL takes most of a second for that.
//
// What is in it waits on the GPU for its counterpart, as NCCL notices no peer that is gone: whoever
// knows that the peer has died calls abort().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "kernels/device_memory.h"
#include "kernels/nccl_library.h"

namespace sluice {

class NcclLink {
 public:
  enum class State : uint8_t {
    kMaking,  // the other worker may not have come yet
    kReady,
    kBroken,  // by an error, or abort(): nothing more is done
  };

  // Rank 0 and 1 of the same id make one. All must outlive it; the calling thread is the device's
  // (DeviceMemory::enter()).
  NcclLink(const kernels::NcclLibrary& library,
           kernels::DeviceMemory& memory,
           const kernels::NcclId& id,
           int rank);
  ~NcclLink();  // as abort(), and waits for it
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  [[nodiscard]] State state() const { return state_; }

  // Behind what was called before; the other rank calls its counterpart of as many bytes as often
  // and in the same order. The bytes are the device's until advance() gives the number back, or
  // is_gone().
  void send(uint64_t number, std::span<const std::byte> bytes);
  void receive(uint64_t number, std::span<std::byte> bytes);

  // Appends numbers of what is done, in order.
  void advance(std::vector<uint64_t>& done);

  // Sends and receives that are not done.
  [[nodiscard]] size_t num_open() const { return waiting_.size() + running_.size(); }

  void abort();
  // kBroken, and no byte that a call was given is touched any more.
  [[nodiscard]] bool is_gone();

 private:
  struct Operation {
    uint64_t number = 0;
    const std::byte* from = nullptr;  // of a send
    std::byte* to = nullptr;          // of a receive
    size_t bytes = 0;
    std::unique_ptr<kernels::DeviceEvent> done;  // once it is in the queue
  };

  [[nodiscard]] kernels::NcclResult ask();
  void begin(Operation operation);
  void note_begun();

  const kernels::NcclLibrary& library_;
  const int peer_;
  const std::unique_ptr<kernels::DeviceQueue> queue_;
  kernels::NcclComm comm_ = nullptr;  // null: aborted
  State state_ = State::kMaking;
  std::deque<Operation> waiting_;
  std::deque<Operation> running_;  // the last one is being begun, or all are in the queue
  bool is_beginning_ = false;
  std::vector<std::unique_ptr<kernels::DeviceEvent>> events_;  // free ones
  std::unique_ptr<kernels::DeviceEvent> last_;                 // behind the abort
  std::atomic<bool> is_aborted_ = false;
  std::thread aborting_;
};

}  // namespace sluice
