// SPDX-License-Identifier: Apache-2.0
// Bytes that operators of one device read and write, and the copies between them and what the host
// reads: memory of its own for a GPU, pages of the host for the CPU, where both are the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"

struct CUstream_st;  // as in CUDA's headers

namespace sluice::kernels {

// Operators and copies that were recorded, with their arguments: pointers and numbers are those of
// the recording, what they point to is read when it runs.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void run() = 0;
};

// A place in the order of operators and copies.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Behind all that was called so far, in place of where it was before.
  virtual void record() = 0;
  // Until all before it is done; at once where it is nowhere.
  virtual void wait() = 0;
  // Whether all before it is done; waits for nothing.
  [[nodiscard]] virtual bool is_done() = 0;
  // By the device's clock, from an event of the same memory; both have been waited for, where they
  // are now.
  [[nodiscard]] virtual double seconds_since(const DeviceEvent& before) const = 0;
};

// Another order of copies and operators of one device, beside that of its DeviceMemory: what is put
// here runs at any time beside what is put there, but for what follow() and lead() say. An operator
// is put here by an ExecContext with this stream(). One thread at a time may call.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;  // waits for what is in it

  // Null: the host's, whose copies and operators are done when their calls return.
  [[nodiscard]] virtual CUstream_st* stream() const = 0;

  // What is put here from now on runs behind all operators and copies that were called so far.
  virtual void follow() = 0;
  // Operators and copies that are called from now on run behind all that was put here so far.
  virtual void lead() = 0;

  // As those of DeviceMemory; the host's side is pinned memory of it.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Within the device, and from borrowed memory.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // A place in this order; it must not outlive this.
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
};

// A device's UUID; zeros for the host.
using DeviceId = std::array<std::byte, 16>;

// By what another process of this machine reads an allocation of this one's.
struct MemoryLoan {
  std::array<std::byte, 64> handle = {};  // the device's own name of the allocation
  DeviceId device = {};
  uint64_t bytes = 0;                     // of the allocation, from its first byte on

  friend bool operator==(const MemoryLoan&, const MemoryLoan&) = default;
};

// Memory of one device. Copies run in the order of the operators that were called before and after
// them; they, like operators, may still be under way when a call returns, but for host_memory(),
// which has done what it was called for. A device that fails is found by the next wait, which ends
// the process: its memory is lost. Any thread may call; work of several threads runs in the order
// of their calls.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Operators and the host read the same bytes: nothing has to be copied between the two.
  [[nodiscard]] virtual bool is_host() const { return false; }

  // What this thread calls from now on is for this device: operators, once another device's memory
  // was in use on the thread. The calls below do it themselves.
  virtual void enter() const = 0;

  // Zeros, 256-byte aligned; `bytes` >= 1. `pages`: of the host. kResourceExhausted: there is not
  // that much. A release waits, as wait() does, for whatever still uses the memory.
  virtual Expected<std::byte*> allocate(int64_t bytes,
                                        const char* purpose,
                                        AlignedBuffer::Pages pages) = 0;
  virtual void release(std::byte* data) = 0;

  // Memory of the host from and to which copies run by themselves.
  virtual Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) = 0;
  virtual void release_pinned(std::byte* data) = 0;

  // From the host; `from` stays as it is until wait(), or that of an event behind it. Operators may
  // read weights, positions and slots before those in front of them have ended: what is uploaded of
  // those is there for operators behind a wait(), or behind an embedding.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // The same of the first bytes of each of some rows, `stride` bytes from one to the next.
  virtual void upload_rows(
      std::byte* to, const std::byte* from, int64_t bytes, int64_t stride, int64_t num_rows) = 0;

  // Some rows of a block of memory, the first `bytes` of each, `stride` bytes from one to the next.
  // All are multiples of 4.
  struct Part {
    int64_t begin;
    int64_t bytes;
    int64_t stride = 0;
    int64_t num_rows = 1;
  };

  // Uploads parts of a block of memory to the same places of another, in one copy where the device
  // can. No parts overlap; `from` is that of upload().
  virtual void upload_parts(std::byte* to, const std::byte* from, std::span<const Part> parts) {
    for (const Part& part : parts) {
      if (part.num_rows == 1) {
        upload(to + part.begin, from + part.begin, part.bytes);
      } else {
        upload_rows(to + part.begin, from + part.begin, part.bytes, part.stride, part.num_rows);
      }
    }
  }

  // To the host, there after the same.
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Within the device.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Until all operators and copies so far are done.
  virtual void wait() = 0;
  // It must not outlive this.
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  // The same.
  virtual std::unique_ptr<DeviceQueue> make_queue() = 0;

  // What this thread calls in between is recorded and does not run. No thread may wait, upload,
  // allocate, release or use an event meanwhile. kResourceExhausted: there is no memory for what
  // was recorded, which must not outlive this; kUnavailable: something else was called;
  // kUnsupported: the host's, whose operators run when they are called.
  virtual void begin_recording() = 0;
  virtual Expected<std::unique_ptr<RecordedWork>> end_recording() = 0;

  [[nodiscard]] virtual DeviceId id() const = 0;
  // Whether it is this device, or one whose lent memory is read here.
  [[nodiscard]] virtual bool reaches(const DeviceId& device) const = 0;

  // Names the allocation whose first byte this is. Who copies from it once it has been released, or
  // its process has ended, gets what CUDA leaves undefined. kUnsupported: the device lends nothing.
  virtual Expected<MemoryLoan> lend(const std::byte* data) = 0;
  // What another process has lent, or this one, to copy from until give_back(): nothing here writes
  // it. kUnavailable: there is no such allocation of so many bytes, or this device does not reach
  // it; says which.
  virtual Expected<const std::byte*> borrow(const MemoryLoan& loan) = 0;
  // Once no copy from it is under way.
  virtual void give_back(const std::byte* data) = 0;

  // Of a device; the host's is counted by available_memory_bytes() of the memory plan, and 0 here.
  [[nodiscard]] virtual int64_t free_bytes() const = 0;
};

// That of the CPU backend, for the life of the process. A copy of bytes onto themselves is none; no
// copy, event or wait allocates.
DeviceMemory& host_memory();

// Memory of a device, or pinned memory of the host.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;

  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }

  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
    std::swap(is_pinned_, other.is_pinned_);
    return *this;
  }

  ~DeviceBuffer() {
    if (data_ == nullptr) return;
    is_pinned_ ? memory_->release_pinned(data_) : memory_->release(data_);
  }

  // Of `memory`, which must outlive it; empty where `bytes` is 0.
  static Expected<DeviceBuffer> allocate(DeviceMemory& memory,
                                         int64_t bytes,
                                         const char* purpose,
                                         AlignedBuffer::Pages pages = AlignedBuffer::Pages::kSmall);

  // Of the host, for copies from and to `memory`.
  static Expected<DeviceBuffer> allocate_pinned(DeviceMemory& memory,
                                                int64_t bytes,
                                                const char* purpose);

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] size_t size() const { return bytes_; }

  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

  // What copies to and from it go through.
  [[nodiscard]] DeviceMemory& memory() const { return *memory_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceMemory* memory_ = &host_memory();
  bool is_pinned_ = false;
};

}  // namespace sluice::kernels
