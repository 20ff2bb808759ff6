// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_memory.h"

#include <chrono>
#include <cstring>
#include <mutex>
#include <unordered_map>

namespace sluice::kernels {
namespace {

// An event of the host: everything before it has run by the time it is recorded.
class HostEvent final : public DeviceEvent {
 public:
  void record() override { recorded_ = std::chrono::steady_clock::now(); }

  void wait() override {}

  [[nodiscard]] bool is_done() override { return true; }

  [[nodiscard]] double seconds_since(const DeviceEvent& before) const override {
    const auto& earlier = static_cast<const HostEvent&>(before);
    return std::chrono::duration<double>(recorded_ - earlier.recorded_).count();
  }

 private:
  std::chrono::steady_clock::time_point recorded_;
};

class HostQueue final : public DeviceQueue {
 public:
  [[nodiscard]] CUstream_st* stream() const override { return nullptr; }

  void follow() override {}

  void lead() override {}

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    host_memory().upload(to, from, bytes);
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    host_memory().upload(to, from, bytes);
  }

  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<HostEvent>(); }
};

class HostMemory final : public DeviceMemory {
 public:
  [[nodiscard]] bool is_host() const override { return true; }

  void enter() const override {}

  Expected<std::byte*> allocate(int64_t bytes,
                                const char* purpose,
                                AlignedBuffer::Pages pages) override {
    SLUICE_TRY(AlignedBuffer buffer, AlignedBuffer::allocate(bytes, purpose, pages));
    std::byte* const data = buffer.data();
    const std::scoped_lock lock(mutex_);
    buffers_.emplace(data, std::move(buffer));
    return data;
  }

  void release(std::byte* data) override {
    const std::scoped_lock lock(mutex_);
    CHECK_EQ(buffers_.erase(data), size_t{1});
  }

  Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) override {
    return allocate(bytes, purpose, AlignedBuffer::Pages::kSmall);
  }

  void release_pinned(std::byte* data) override { release(data); }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }

  void upload_rows(std::byte* to,
                   const std::byte* from,
                   int64_t bytes,
                   int64_t stride,
                   int64_t num_rows) override {
    for (int64_t row = 0; row < num_rows; ++row) {
      upload(to + row * stride, from + row * stride, bytes);
    }
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    upload(to, from, bytes);
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    upload(to, from, bytes);
  }

  void wait() override {}

  std::unique_ptr<DeviceEvent> make_event() override { return std::make_unique<HostEvent>(); }

  std::unique_ptr<DeviceQueue> make_queue() override { return std::make_unique<HostQueue>(); }

  void begin_recording() override {}

  Expected<std::unique_ptr<RecordedWork>> end_recording() override {
    return make_error(ErrorCode::kUnsupported, "found the CPU's memory, expected a device's");
  }

  [[nodiscard]] int64_t free_bytes() const override { return 0; }

 private:
  std::mutex mutex_;
  std::unordered_map<std::byte*, AlignedBuffer> buffers_;  // guarded by mutex_
};

}  // namespace

// The memory is never destroyed: buffers of other static objects may be released later.
DeviceMemory& host_memory() {
  static auto* const memory = new HostMemory();
  return *memory;
}

Expected<DeviceBuffer> DeviceBuffer::allocate(DeviceMemory& memory,
                                              int64_t bytes,
                                              const char* purpose,
                                              AlignedBuffer::Pages pages) {
  DeviceBuffer buffer;
  buffer.memory_ = &memory;
  if (bytes <= 0) return buffer;
  SLUICE_TRY(buffer.data_, memory.allocate(bytes, purpose, pages));
  buffer.bytes_ = static_cast<size_t>(bytes);
  return buffer;
}

Expected<DeviceBuffer> DeviceBuffer::allocate_pinned(DeviceMemory& memory,
                                                     int64_t bytes,
                                                     const char* purpose) {
  DeviceBuffer buffer;
  buffer.memory_ = &memory;
  buffer.is_pinned_ = true;
  if (bytes <= 0) return buffer;
  SLUICE_TRY(buffer.data_, memory.allocate_pinned(bytes, purpose));
  buffer.bytes_ = static_cast<size_t>(bytes);
  return buffer;
}

}  // namespace sluice::kernels
