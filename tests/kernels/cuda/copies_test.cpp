// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/device_memory.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using Part = DeviceMemory::Part;

// Fills bytes with other values than DeviceBytes' first pattern.
void fill(test::DeviceBytes& bytes, uint64_t seed) {
  test::Random random(seed);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes.data()[i] = static_cast<std::byte>(random.below(128));
  }
}

TEST(CudaCopies, EveryByteOfAnyLengthAndNoneBehind) {
  constexpr int64_t kBlock = 16384;
  for (const int64_t bytes :
       {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{4099}, kBlock, 2 * kBlock + 16 * 255 + 7}) {
    SCOPED_TRACE(bytes);
    test::DeviceBytes from(bytes);
    fill(from, 71);
    test::on_schedules([&] {
      test::DeviceBytes to(bytes + 32);
      const std::vector<std::byte> untouched = to.copy();
      cuda::launch_copy(nullptr, to.data(), from.data(), bytes);
      const auto count = static_cast<size_t>(bytes);
      test::expect_same_bytes(to.data(), from.data(), count);
      test::expect_same_bytes(to.data() + count, untouched.data() + count, 32);
    });
  }
}

// The parts are a step's arrays: whole ones, an empty one, tables whose rows are used in part.
TEST(CudaCopies, PartsGoToTheirPlacesAndNothingBetweenThem) {
  const std::vector<Part> parts = {{.begin = 0, .bytes = 40},
                                   {.begin = 64, .bytes = 0},
                                   {.begin = 128, .bytes = 1200},
                                   {.begin = 1408, .bytes = 12, .stride = 64, .num_rows = 20},
                                   {.begin = 2688, .bytes = 4, .stride = 128, .num_rows = 0},
                                   {.begin = 2688, .bytes = 2048, .stride = 2048, .num_rows = 2}};
  constexpr int64_t kBytes = 2688 + 4096 + 64;
  test::DeviceBytes from(kBytes);
  fill(from, 72);
  test::DeviceBytes want(kBytes);
  for (const Part& part : parts) {
    for (int64_t row = 0; row < part.num_rows; ++row) {
      const int64_t at = part.begin + row * part.stride;
      std::memcpy(want.data() + at, from.data() + at, static_cast<size_t>(part.bytes));
    }
  }
  test::on_schedules([&] {
    test::DeviceBytes to(kBytes);
    cuda::launch_copy_parts(nullptr, to.data(), from.data(), parts);
    test::expect_same_bytes(to.data(), want.data(), want.size());
  });
}

#ifndef SLUICE_TESTS_ON_GPU  // a forked process does not have the GPU's context
// Parts are copied by words.
TEST(CudaCopiesDeathTest, PartsAreMultiplesOfFour) {
  const test::DeviceBytes from(256);
  const test::DeviceBytes to(256);
  for (const Part& part : {Part{.begin = 2, .bytes = 8},
                           Part{.begin = 4, .bytes = 7},
                           Part{.begin = 4, .bytes = 0, .stride = 6, .num_rows = 2},
                           Part{.begin = 4, .bytes = 4, .stride = 6, .num_rows = 2}}) {
    EXPECT_DEATH(cuda::launch_copy_parts(nullptr, to.data(), from.data(), {&part, 1}),
                 "is_of_words");
  }
}
#endif

}  // namespace
}  // namespace sluice::kernels
