// SPDX-License-Identifier: Apache-2.0
// The link of a session over NCCL (transport_nccl.h): a communicator of two workers with sends or
// receives one after the other. The communicator is non-blocking: it is asked how far it is, and is
// aborted on a thread of its own, since NCCL takes most of a second for that.
//
// An operation waits on the GPU for its counterpart, on multiprocessors that steps want: a receive
// is called after its send has begun (is_receivable()), except a link's first. NCCL connects two
// ranks in their first operation (ncclTransportP2pSetup(), which groupLaunch() calls on a thread of
// NCCL's own, and where each side waits for the other's data), and launches no kernel before: a
// first send that the peer does not know of would never begin, and a first receive holds no
// multiprocessor. NCCL does not notice that a peer is gone: the caller that knows it calls abort().
//
// Method: NCCL 2.30, src/enqueue.cc, src/group.cc and src/transport.cc.
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
#include "kvcache/transport/transport_device_link.h"

namespace sluice {

class NcclLink final : public DeviceLink {
 public:
  // Ranks 0 and 1 of the same id make one link. All arguments outlive it; the calling thread is the
  // device's (DeviceMemory::enter()).
  NcclLink(const kernels::NcclLibrary& library,
           kernels::DeviceMemory& memory,
           const kernels::NcclId& id,
           int rank);
  ~NcclLink() override;
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  [[nodiscard]] State state() const override { return state_; }

  // The other rank calls the counterparts, with as many bytes and in the same order.
  void send(uint64_t number, std::span<const std::byte> bytes) override;

  [[nodiscard]] bool is_receivable(uint64_t number) const override {
    return number <= last_begun_ || number == first_;
  }

  [[nodiscard]] uint64_t place_of(std::span<const std::byte>) const override { return 0; }

  void receive(uint64_t number, uint64_t place, std::span<std::byte> bytes) override;
  void advance(std::vector<uint64_t>& done) override;

  [[nodiscard]] size_t num_open() const override { return waiting_.size() + running_.size(); }

  [[nodiscard]] bool is_working() const override { return num_open() > 0; }

  bool take(const KvFrame&) override { return false; }

  void take_frames(std::vector<KvFrame>&) override {}

  void abort() override;
  [[nodiscard]] bool is_gone() override;

 private:
  struct Operation {
    uint64_t number = 0;
    const std::byte* from = nullptr;  // of a send
    std::byte* to = nullptr;          // of a receive
    size_t bytes = 0;
    std::unique_ptr<kernels::DeviceEvent> done;  // null until it is in the queue
  };

  [[nodiscard]] kernels::NcclResult query_state();
  void begin_waiting();
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
  uint64_t first_ = 0;       // number of the first send; 0: none yet
  uint64_t last_begun_ = 0;  // number of the last operation in the queue
  std::vector<std::unique_ptr<kernels::DeviceEvent>> events_;  // free ones
  std::unique_ptr<kernels::DeviceEvent> last_;                 // recorded after the abort
  std::atomic<bool> is_aborted_ = false;
  std::thread aborting_;
};

}  // namespace sluice
