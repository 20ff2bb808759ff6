// SPDX-License-Identifier: Apache-2.0
// Controls tests/support/fake_nccl.cpp, and provides a device whose streams it runs: host memory,
// which the CPU's operators read, and queues that only the library fills.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/status.h"
#include "kernels/device_memory.h"

namespace sluice::testing {

// Behavior of communicators of pairs, including existing ones.
struct FakeNcclBehavior {
  int init_asks = 0;  // calls in which a new communicator is not ready yet
  bool refuses_to_make = false;
  bool holds = false;     // nothing arrives while set
  int breaks_after = -1;  // payloads until an error appears by itself; -1: never
  int abort_ms = 0;       // duration of an abort
  uint64_t owner = 0;     // hash of the id of a thread that must not call
};

// A stream: the payloads that were put into it, and those that are done.
struct FakeNcclStream {
  std::atomic<uint64_t> num_begun = 0;
  std::atomic<uint64_t> num_done = 0;
};

inline void set_fake_nccl(const std::string& library, const FakeNcclBehavior& behavior) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  CHECK(handle != nullptr);
  auto* const set =
      reinterpret_cast<void (*)(const FakeNcclBehavior*)>(dlsym(handle, "fake_nccl_set"));
  CHECK(set != nullptr);
  set(&behavior);
  dlclose(handle);
}

class FakeNcclDevice final : public kernels::DeviceMemory {
 public:
  explicit FakeNcclDevice(const kernels::DeviceId& id = {}) : id_(id) {}

  void enter() const override {}

  Expected<std::byte*> allocate(int64_t bytes,
                                const char* purpose,
                                AlignedBuffer::Pages pages) override {
    return kernels::host_memory().allocate(bytes, purpose, pages);
  }

  void release(std::byte* data) override { kernels::host_memory().release(data); }

  Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) override {
    return kernels::host_memory().allocate_pinned(bytes, purpose);
  }

  void release_pinned(std::byte* data) override { kernels::host_memory().release_pinned(data); }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    kernels::host_memory().upload(to, from, bytes);
  }

  void upload_rows(std::byte* to,
                   const std::byte* from,
                   int64_t bytes,
                   int64_t stride,
                   int64_t num_rows) override {
    kernels::host_memory().upload_rows(to, from, bytes, stride, num_rows);
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    kernels::host_memory().download(to, from, bytes);
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    kernels::host_memory().copy(to, from, bytes);
  }

  void wait() override {}

  std::unique_ptr<kernels::DeviceEvent> make_event() override {
    return kernels::host_memory().make_event();
  }

  std::unique_ptr<kernels::DeviceQueue> make_queue() override { return std::make_unique<Queue>(); }

  void begin_recording() override {}

  Expected<std::unique_ptr<kernels::RecordedWork>> end_recording() override {
    return make_error(ErrorCode::kUnsupported, "a device without recordings");
  }

  [[nodiscard]] kernels::DeviceId id() const override { return id_; }

  [[nodiscard]] bool reaches(const kernels::DeviceId&) const override { return false; }

  Expected<kernels::MemoryLoan> lend(const std::byte* data) override {
    return kernels::host_memory().lend(data);
  }

  Expected<const std::byte*> borrow(const kernels::MemoryLoan& loan) override {
    return kernels::host_memory().borrow(loan);
  }

  void give_back(const std::byte*) override {}

  [[nodiscard]] int64_t free_bytes() const override { return int64_t{1} << 30; }

 private:
  class Event final : public kernels::DeviceEvent {
   public:
    explicit Event(FakeNcclStream& stream) : stream_(stream) {}

    void record() override { end_ = stream_.num_begun; }

    void wait() override {
      while (!is_done()) {
      }
    }

    [[nodiscard]] bool is_done() override { return stream_.num_done >= end_; }

    [[nodiscard]] double seconds_since(const kernels::DeviceEvent&) const override { return 0; }

   private:
    FakeNcclStream& stream_;
    uint64_t end_ = 0;
  };

  class Queue final : public kernels::DeviceQueue {
   public:
    // A communicator that still lives would write into freed memory.
    ~Queue() override { CHECK_EQ(stream_.num_begun, stream_.num_done); }

    [[nodiscard]] CUstream_st* stream() const override {
      return reinterpret_cast<CUstream_st*>(&stream_);
    }

    void follow() override {}

    void lead() override {}

    void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
      kernels::host_memory().upload(to, from, bytes);
    }

    void download(std::byte* to, const std::byte* from, int64_t bytes) override {
      kernels::host_memory().download(to, from, bytes);
    }

    void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
      kernels::host_memory().copy(to, from, bytes);
    }

    std::unique_ptr<kernels::DeviceEvent> make_event() override {
      return std::make_unique<Event>(stream_);
    }

   private:
    mutable FakeNcclStream stream_;
  };

  const kernels::DeviceId id_;
};

}  // namespace sluice::testing
