// SPDX-License-Identifier: Apache-2.0
// Memory that one device's operators read and write, and copies between it and host memory. A GPU
// has memory of its own; the CPU backend uses host pages, where both are the same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"

struct CUstream_st;  // declared by CUDA's headers

namespace sluice::kernels {

// A recording of operators and copies. Their arguments (pointers and numbers) are fixed when they
// are recorded; memory that they point to is read at each run().
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void run() = 0;
};

// A position in the order of one device's operators and copies.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Moves the event after everything that was called so far.
  virtual void record() = 0;
  // Waits until everything before the event is done; returns at once if it was never recorded.
  virtual void wait() = 0;
  // Returns whether everything before the event is done; never waits.
  [[nodiscard]] virtual bool is_done() = 0;
  // Seconds since `before`, an event of the same memory, by the device's clock. Both must have been
  // waited for after their last record().
  [[nodiscard]] virtual double seconds_since(const DeviceEvent& before) const = 0;
};

// A second order of copies and operators on one device, beside that of its DeviceMemory. Work here
// runs at any time beside work there, except as follow() and lead() order it. An ExecContext with
// this stream() puts operators here. One thread at a time may call.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;  // waits for the work in it

  // Null for the host, whose copies and operators are done when their calls return.
  [[nodiscard]] virtual CUstream_st* stream() const = 0;

  // Orders later work of this queue after all operators and copies that were called so far.
  virtual void follow() = 0;
  // Orders operators and copies called from now on after all work put here so far.
  virtual void lead() = 0;

  // Copies, as in DeviceMemory; the host side must be its pinned memory.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Within the device, and from borrowed memory.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Returns an event in this order, which must not outlive the queue.
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

// Memory of one device. Copies run in the order of the operators called before and after them. Like
// operators they may still be running when a call returns, except those of host_memory(), which are
// done by then. A device that fails has lost its memory: the next wait finds that and ends the
// process. Any thread may call; work of several threads runs in the order of their calls.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Whether operators and the host read the same bytes, so that no copies between them are needed.
  [[nodiscard]] virtual bool is_host() const { return false; }

  // Makes this device the calling thread's current one. Operators need it after another device's
  // memory was in use on the thread; the calls below do it themselves.
  virtual void enter() const = 0;

  // Returns `bytes` >= 1 of zeros, 256-byte aligned; `pages` applies to the host. Error:
  // kResourceExhausted. Like wait(), release() waits for all work that still uses the memory.
  virtual Expected<std::byte*> allocate(int64_t bytes,
                                        const char* purpose,
                                        AlignedBuffer::Pages pages) = 0;
  virtual void release(std::byte* data) = 0;

  // Allocates pinned host memory, which copies are from and to without a thread's help.
  virtual Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) = 0;
  virtual void release_pinned(std::byte* data) = 0;

  // Copies from the host; `from` must not change until wait() or the wait of a later event.
  // Operators may read weights, positions and slots before those in front of them have ended:
  // uploads of these are visible only to operators after a wait() or after an embedding.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Uploads the first `bytes` bytes of each of `num_rows` rows that are `stride` bytes apart.
  virtual void upload_rows(
      std::byte* to, const std::byte* from, int64_t bytes, int64_t stride, int64_t num_rows) = 0;

  // Some rows of a block of memory: the first `bytes` of each of them, `stride` bytes apart. All
  // fields are multiples of 4.
  struct Part {
    int64_t begin;
    int64_t bytes;
    int64_t stride = 0;
    int64_t num_rows = 1;
  };

  // Uploads parts of a block of memory to the same offsets of another, in one copy where the device
  // can. Parts do not overlap; `from` is as in upload().
  virtual void upload_parts(std::byte* to, const std::byte* from, std::span<const Part> parts) {
    for (const Part& part : parts) {
      if (part.num_rows == 1) {
        upload(to + part.begin, from + part.begin, part.bytes);
      } else {
        upload_rows(to + part.begin, from + part.begin, part.bytes, part.stride, part.num_rows);
      }
    }
  }

  // Copies to the host; the bytes are there after wait() or the wait of a later event.
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  // Copies within the device.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;

  // Waits until all operators and copies called so far are done.
  virtual void wait() = 0;
  // Returns an event, which must not outlive this memory.
  virtual std::unique_ptr<DeviceEvent> make_event() = 0;
  // Returns a queue, which must not outlive this memory.
  virtual std::unique_ptr<DeviceQueue> make_queue() = 0;

  // Records what this thread calls in between instead of running it. No thread may wait, upload,
  // allocate, release or use an event meanwhile. The recording must not outlive this memory.
  // Errors: kResourceExhausted (no memory for it), kUnavailable (something else was called),
  // kUnsupported (the host, whose operators run when they are called).
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
  // Ends a loan; no copy from it is under way.
  virtual void give_back(const std::byte* data) = 0;

  // Free bytes of a device; 0 for the host, which the memory plan's available_memory_bytes()
  // counts.
  [[nodiscard]] virtual int64_t free_bytes() const = 0;
};

// The CPU backend's memory, for the life of the process. A copy of bytes onto themselves does
// nothing; no copy, event or wait allocates.
DeviceMemory& host_memory();

// Owns memory of a device, or pinned memory of the host.
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

  // Allocates from `memory`, which must outlive the buffer; empty where `bytes` is 0.
  static Expected<DeviceBuffer> allocate(DeviceMemory& memory,
                                         int64_t bytes,
                                         const char* purpose,
                                         AlignedBuffer::Pages pages = AlignedBuffer::Pages::kSmall);

  // Allocates pinned host memory, for copies from and to `memory`.
  static Expected<DeviceBuffer> allocate_pinned(DeviceMemory& memory,
                                                int64_t bytes,
                                                const char* purpose);

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] size_t size() const { return bytes_; }

  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

  // The memory whose copies read and write this buffer.
  [[nodiscard]] DeviceMemory& memory() const { return *memory_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  DeviceMemory* memory_ = &host_memory();
  bool is_pinned_ = false;
};

}  // namespace sluice::kernels
