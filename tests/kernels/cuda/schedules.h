// SPDX-License-Identifier: Apache-2.0
// The schedules in which every kernel test runs its launches, and buffers that show stray writes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "kernels/cuda/launch.h"
#ifdef SLUICE_TESTS_ON_GPU
#include "tests/support/gpu/run.h"
#else
#include "tests/support/simt/simt.h"
#endif
#include "tests/support/tier.h"

namespace sluice::kernels::test {

// At most 10 plain seeds and 5 that look for races; under ASan, which excludes the race detector's
// instrumentation, 2 plain ones. On a GPU a few runs, in whatever order.
#if defined(SLUICE_TESTS_ON_GPU)
inline constexpr int kPlainSeeds = 3;
#elif defined(SLUICE_SIMT_RACE)
inline constexpr int kPlainSeeds = 10;
inline constexpr int kRaceSeeds = 5;
#else
inline constexpr int kPlainSeeds = 2;
inline constexpr int kRaceSeeds = 0;
#endif

inline std::string joined(const std::vector<std::string>& reports) {
  std::string text;
  for (const std::string& report : reports) text += report + "\n";
  return text;
}

// The number of seeds: one of either kind is for launches that take seconds.
enum class Seeds : uint8_t { kAll, kOne };

// Returns how many of `most` seeds a test takes: a fifth, which has each policy of the scheduler
// once over both kinds of run, or all of them in the long tier.
inline int num_seeds(int most, Seeds seeds) {
  if (seeds == Seeds::kOne) return std::min(1, most);
  return sluice::testing::sample_of((most + 4) / 5, most);
}

// Runs `body`, which launches and checks, once for each schedule; no run may have a report.
#ifdef SLUICE_TESTS_ON_GPU
inline void on_schedules(const std::function<void()>& body, Seeds seeds = Seeds::kAll) {
  for (int i = 0; i < (seeds == Seeds::kAll ? kPlainSeeds : 1); ++i) {
    SCOPED_TRACE("run " + std::to_string(i));
    simt::Run run(static_cast<uint64_t>(i));
    body();
    ASSERT_EQ(joined(run.take_reports()), "");
    if (::testing::Test::HasFatalFailure()) return;
  }
}
#else
inline void on_schedules(const std::function<void()>& body, Seeds seeds = Seeds::kAll) {
  const int plain_seeds = num_seeds(kPlainSeeds, seeds);
  const int race_seeds = num_seeds(kRaceSeeds, seeds);
  for (int i = 0; i < plain_seeds + race_seeds; ++i) {
    const bool race = i >= plain_seeds;
    const int seed = race ? i - plain_seeds : i;
    SCOPED_TRACE((race ? "race, seed " : "plain, seed ") + std::to_string(seed));
    simt::Run run(static_cast<uint64_t>(seed), race ? simt::Mode::kRace : simt::Mode::kPlain);
    body();
    ASSERT_EQ(joined(run.take_reports()), "");
    ASSERT_GT(run.num_launches(), 0);
    if (::testing::Test::HasFatalFailure()) return;
  }
}
#endif

// 64-byte aligned memory of exactly `bytes`, so that the address sanitizer sees its end, filled
// with a pattern that no kernel writes.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)),
        data_(static_cast<std::byte*>(::operator new (bytes_, std::align_val_t{64}))) {
    poison();
  }

  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  ~DeviceBytes() { ::operator delete (data_, std::align_val_t{64}); }

  void poison() { std::memset(data_, 0xA5, bytes_); }

  [[nodiscard]] std::byte* data() const { return data_; }

  [[nodiscard]] size_t size() const { return bytes_; }

  [[nodiscard]] std::vector<std::byte> copy() const { return {data_, data_ + bytes_}; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// A workspace of linear layers in the state before the first launch, in which launches leave it.
struct LinearWorkspace : DeviceBytes {
  explicit LinearWorkspace(int64_t bytes) : DeviceBytes(bytes) {
    if (bytes > 0) std::memset(data(), 0, cuda::kArrivalBytes);
  }

  ~LinearWorkspace() {
    const std::byte* const begin = data();
    const std::byte* const end = begin + (size() > 0 ? cuda::kArrivalBytes : 0);
    EXPECT_EQ(std::count(begin, end, std::byte{0}), end - begin);
  }
};

// Compares bytes, and reports the first difference in words.
inline void expect_same_bytes(const std::byte* got, const std::byte* want, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    ASSERT_EQ(static_cast<int>(got[i]), static_cast<int>(want[i]))
        << "byte " << i << " of " << bytes;
  }
}

}  // namespace sluice::kernels::test
