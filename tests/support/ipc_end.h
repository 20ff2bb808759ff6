// SPDX-License-Identifier: Apache-2.0
// One end of a session by CUDA IPC on a device, the shim's or a real one: its memory, slots there
// and a transport.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/open_device.h"
#include "kernels/device_memory.h"
#include "tests/support/kv_pair.h"

namespace sluice::test {

// CUDA takes less than 2 MiB from a block that it shares between allocations, and lends all of it.
#ifdef SLUICE_TESTS_ON_GPU
inline constexpr uint64_t kIpcSlotBytes = uint64_t{2} << 20;
#else
inline constexpr uint64_t kIpcSlotBytes = uint64_t{64} << 10;
#endif
inline constexpr uint32_t kNumIpcSlots = 16;  // of each end

inline std::unique_ptr<kernels::DeviceMemory> open_memory() {
  auto opened = kernels::cuda::open_device(0);
  CHECK(opened.has_value());
  return std::move(opened->memory);
}

template <typename Done>
bool wait_until(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A device, slots of its memory, and a transport.
class IpcEnd {
 public:
  explicit IpcEnd(std::unique_ptr<kernels::DeviceMemory> memory)
      : memory_(std::move(memory)),
        slots_(*kernels::DeviceBuffer::allocate(*memory_, kNumIpcSlots * kIpcSlotBytes, "slots")) {
    KvTransportOptions options;
    options.device = memory_.get();
    options.slot_bytes = kIpcSlotBytes;
    transport = std::make_unique<TransportEnd>("cuda_ipc", std::move(options));
  }

  KvTransport* operator->() { return transport->operator->(); }

  std::span<std::byte> slot(uint32_t number, size_t bytes = kIpcSlotBytes) {
    return slots_.span().subspan(number * kIpcSlotBytes, bytes);
  }

  std::span<std::byte> all() { return slots_.span(); }

  void write(uint32_t number, const std::vector<std::byte>& bytes) {
    memory_->upload(slot(number).data(), bytes.data(), static_cast<int64_t>(bytes.size()));
    memory_->wait();
  }

  std::vector<std::byte> read(uint32_t number, size_t bytes) {
    std::vector<std::byte> there(bytes);
    memory_->download(there.data(), slot(number).data(), static_cast<int64_t>(bytes));
    memory_->wait();
    return there;
  }

 private:
  const std::unique_ptr<kernels::DeviceMemory> memory_;
  kernels::DeviceBuffer slots_;

 public:
  std::unique_ptr<TransportEnd> transport;  // goes before what it reads and writes
};

inline KvSessionOptions ipc_sender_options(const KvFrameLayout& layout, IpcEnd& end) {
  KvSessionOptions options = sender_options(layout);
  options.payloads = end.all();
  return options;
}

}  // namespace sluice::test
