// SPDX-License-Identifier: Apache-2.0
// A file cannot cause allocation: every size field, and every byte between, is overwritten with
// numbers that overflow products, sums and alignments.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/weights/gguf.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/allocation_meter.h"

namespace sluice {
namespace {

TEST(GgufAllocation, NoNumberInAFileIsAllocatedFor) {
  const GgufImage image = small_gguf();
  const std::string bytes = image.bytes();
  const size_t header_bytes = image.header().size();
  const uint64_t numbers[] = {0,
                              1,
                              ~uint64_t{0},
                              ~uint64_t{0} - 3,
                              ~uint64_t{0} - 31,
                              1ULL << 31,
                              1ULL << 32,
                              1ULL << 61,
                              1ULL << 63,
                              ~uint64_t{0} / 33 + 1,
                              header_bytes};
  size_t num_errors = 0;
  size_t num_runs = 0;
  std::string changed = bytes;
  reset_allocation_meter();
  for (size_t at = 4; at + sizeof(uint64_t) <= header_bytes; ++at) {
    for (const uint64_t number : numbers) {
      std::memcpy(changed.data() + at, &number, sizeof(number));
      const auto file = GgufFile::parse(as_span(changed), "changed.gguf");
      ++num_runs;
      if (!file) ++num_errors;
      if (file) (void)read_vocabulary(**file).has_value();
    }
    std::memcpy(changed.data() + at, bytes.data() + at, sizeof(uint64_t));
  }
  EXPECT_LE(largest_allocation(), 4 * bytes.size());
  EXPECT_GT(largest_allocation(), 0U);
  EXPECT_GT(num_errors, num_runs / 2);
}

TEST(GgufAllocation, LongArraysStayInTheFile) {
  GgufImage image = small_gguf();
  image.set_array("test.flags", GgufType::kUint8, 1 << 20, std::string(1 << 20, '\1'));
  image.set_array("test.texts", GgufType::kString, 1 << 17, std::string(8 << 17, '\0'));
  const std::string bytes = image.bytes();
  reset_allocation_meter();
  const auto file = GgufFile::parse(as_span(bytes), "long.gguf");
  const size_t largest = largest_allocation();
  ASSERT_TRUE(file.has_value());
  EXPECT_LT(largest, 16U << 10);
}

}  // namespace
}  // namespace sluice
