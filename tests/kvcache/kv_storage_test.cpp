// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_storage.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kBytes = size_t{24} << 20;

class Mapping {
 public:
  Mapping()
      : at_(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}

  ~Mapping() { munmap(at_, kBytes); }

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(at_), kBytes};
  }

  [[nodiscard]] size_t resident_pages() const {
    std::vector<unsigned char> pages(num_pages());
    EXPECT_EQ(mincore(at_, kBytes, pages.data()), 0) << std::strerror(errno);
    return static_cast<size_t>(
        std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
  }

  static size_t num_pages() { return kBytes / static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

 private:
  void* at_;
};

TEST(Prefault, BacksEveryPageAndKeepsContents) {
  const Mapping probe;
  if (madvise(probe.bytes().data(), kBytes, MADV_POPULATE_WRITE) != 0) {
    GTEST_SKIP() << "the kernel does not populate memory on advice";
  }
  for (const bool huge : {false, true}) {
    const Mapping mapping;
    EXPECT_EQ(mapping.resident_pages(), 0U);
    mapping.bytes()[kBytes / 2] = std::byte{7};
    const Prefault prefault(mapping.bytes(), huge);
    prefault.wait();
    EXPECT_EQ(mapping.resident_pages(), Mapping::num_pages());
    EXPECT_EQ(mapping.bytes()[kBytes / 2], std::byte{7});
  }
}

}  // namespace
}  // namespace sluice
