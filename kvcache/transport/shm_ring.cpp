// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/shm_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace sluice {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

// The two sides write to different cache lines.
struct ShmRing::Shared {
  alignas(64) std::atomic<uint64_t> written;
  std::atomic<uint32_t> reader_waits;
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> writer_waits;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);

Expected<int> ShmRing::make_file(uint64_t bytes) {
  const int file = memfd_create("sluice-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  // The pages are allocated now, so that a lack of memory kills neither side later.
  const auto size = static_cast<off_t>(kPageBytes + bytes);
  if (file >= 0 && posix_fallocate(file, 0, size) == 0 &&
      fcntl(file, F_ADD_SEALS, kSeals | F_SEAL_SEAL) == 0) {
    return file;
  }
  if (file >= 0) ::close(file);
  return make_error(ErrorCode::kResourceExhausted,
                    "KV transport shm: no " + std::to_string(bytes) + " bytes of shared memory");
}

Expected<std::unique_ptr<ShmRing>> ShmRing::map(int file, uint64_t bytes) {
  const auto refuse = [](const char* what) {
    return make_error(ErrorCode::kDataLoss, std::string("KV transport shm: ") + what);
  };
  if (bytes < kShmLeastRingBytes || bytes > kShmMostRingBytes) return refuse("size of the ring");
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return refuse("the ring's size may change");

  struct stat status {};

  if (fstat(file, &status) != 0 || static_cast<uint64_t>(status.st_size) != kPageBytes + bytes) {
    return refuse("the ring has another size");
  }
  void* memory = mmap(nullptr,
                      static_cast<size_t>(kPageBytes + bytes),
                      PROT_READ | PROT_WRITE,
                      MAP_SHARED,
                      file,
                      0);
  if (memory == MAP_FAILED) return refuse("the ring cannot be mapped");
  return std::unique_ptr<ShmRing>(new ShmRing(static_cast<std::byte*>(memory), bytes));
}

ShmRing::ShmRing(std::byte* memory, uint64_t bytes)
    : memory_(memory), bytes_(bytes), shared_(*reinterpret_cast<Shared*>(memory)) {}

ShmRing::~ShmRing() { munmap(memory_, static_cast<size_t>(kPageBytes + bytes_)); }

std::optional<uint64_t> ShmRing::used_by_writer() const {
  const uint64_t used = position_ - shared_.read.load(std::memory_order_acquire);
  return used <= bytes_ ? std::optional(used) : std::nullopt;
}

std::optional<uint64_t> ShmRing::unread() const {
  const uint64_t count = shared_.written.load(std::memory_order_acquire) - position_;
  return count <= bytes_ ? std::optional(count) : std::nullopt;
}

std::optional<uint64_t> ShmRing::room_for(uint64_t wanted) {
  auto used = used_by_writer();
  if (used && bytes_ - *used < wanted) {
    // Either this side sees the room that is made now, or the reader sees that this side waits.
    shared_.writer_waits.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    used = used_by_writer();
  }
  return used ? std::optional(bytes_ - *used) : std::nullopt;
}

void ShmRing::put(uint64_t position, std::span<const std::byte> bytes, kernels::KvChecksum* sum) {
  const auto at = static_cast<size_t>(position % bytes_);
  const size_t front = std::min(bytes.size(), static_cast<size_t>(bytes_) - at);
  std::byte* const ring = memory_ + kPageBytes;
  for (const auto& [part, out] :
       {std::pair{bytes.first(front), ring + at}, std::pair{bytes.subspan(front), ring}}) {
    if (sum != nullptr) {
      sum->copy(part, out);
    } else if (!part.empty()) {
      std::memcpy(out, part.data(), part.size());
    }
  }
}

void ShmRing::advance(uint64_t count, bool& wakes_other) {
  position_ += count;
  shared_.written.store(position_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (shared_.reader_waits.load(std::memory_order_relaxed) != 0) {
    wakes_other = shared_.reader_waits.exchange(0) != 0 || wakes_other;
  }
}

std::optional<size_t> ShmRing::write(std::span<const std::byte> bytes, bool& wakes_other) {
  const auto room = room_for(1);
  if (!room) return std::nullopt;
  const auto count = static_cast<size_t>(std::min<uint64_t>(bytes.size(), *room));
  if (count == 0) return 0;
  put(position_, bytes.first(count), nullptr);
  advance(count, wakes_other);
  return count;
}

std::optional<bool> ShmRing::copy(size_t front_bytes,
                                  std::span<const std::span<const std::byte>> parts,
                                  kernels::KvChecksum& sum) {
  uint64_t total = front_bytes;
  for (const std::span<const std::byte> part : parts) total += part.size();
  const auto room = room_for(total);
  if (!room) return std::nullopt;
  if (*room < total) return false;
  copied_ = front_bytes;
  for (const std::span<const std::byte> part : parts) {
    put(position_ + copied_, part, &sum);
    copied_ += part.size();
  }
  return true;
}

void ShmRing::publish(std::span<const std::byte> front, bool& wakes_other) {
  put(position_, front, nullptr);
  advance(std::exchange(copied_, 0), wakes_other);
}

std::optional<size_t> ShmRing::read(std::span<std::byte> out,
                                    kernels::KvChecksum* sum,
                                    bool& wakes_other) {
  auto unread_bytes = unread();
  if (unread_bytes == 0) {
    shared_.reader_waits.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    unread_bytes = unread();
  }
  if (!unread_bytes) return std::nullopt;
  const auto count = static_cast<size_t>(std::min<uint64_t>(out.size(), *unread_bytes));
  if (count == 0) return 0;
  const auto at = static_cast<size_t>(position_ % bytes_);
  const size_t front = std::min(count, static_cast<size_t>(bytes_) - at);
  const std::byte* const ring = memory_ + kPageBytes;
  if (sum != nullptr) {
    sum->copy({ring + at, front}, out.data());
    sum->copy({ring, count - front}, out.data() + front);
  } else {
    std::memcpy(out.data(), ring + at, front);
    std::memcpy(out.data() + front, ring, count - front);
  }
  position_ += count;
  shared_.read.store(position_, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (shared_.writer_waits.load(std::memory_order_relaxed) != 0) {
    wakes_other = shared_.writer_waits.exchange(0) != 0 || wakes_other;
  }
  return count;
}

}  // namespace sluice
