// SPDX-License-Identifier: Apache-2.0
// Page-aligned, zeroed memory taken from the operating system once and given back on destruction.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
  }
  ~AlignedBuffer() {
    if (data_ != nullptr) munmap(data_, mapped_bytes_);
  }

  // kHuge asks for huge pages but does not require them. kSmall is for memory whose first uses are
  // small and scattered, so that the system gives only what is used, page by page. kReserved
  // uses huge pages that the system has set aside (vm.nr_hugepages), all taken here.
  enum class Pages : uint8_t { kHuge, kSmall, kReserved };

  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  // kResourceExhausted: the system lacks the memory.
  static Expected<AlignedBuffer> allocate(int64_t bytes,
                                          const char* purpose,
                                          Pages pages = Pages::kHuge) {
    AlignedBuffer buffer;
    if (bytes <= 0) return buffer;
    const bool is_reserved = pages == Pages::kReserved;
    const auto mapped = static_cast<size_t>(is_reserved ? align_up(bytes, kHugePageBytes) : bytes);
    const int kind = is_reserved ? MAP_HUGETLB | 21 << MAP_HUGE_SHIFT : MAP_NORESERVE;
    void* data =
        mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | kind, -1, 0);
    if (data == MAP_FAILED) {
      return make_error(ErrorCode::kResourceExhausted,
                        std::string(purpose) + ": cannot get " + std::to_string(bytes) +
                            " bytes from the system" +
                            (is_reserved ? " in reserved huge pages; raise vm.nr_hugepages" : ""));
    }
    if (!is_reserved) {
      madvise(data, mapped, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    buffer.data_ = static_cast<std::byte*>(data);
    buffer.bytes_ = static_cast<size_t>(bytes);
    buffer.mapped_bytes_ = mapped;
    return buffer;
  }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return bytes_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace sluice
