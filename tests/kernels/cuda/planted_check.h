// SPDX-License-Identifier: Apache-2.0
// Checks whether the shim sees a planted bug in the schedules of kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/simt.h"

namespace sluice::kernels::test {

// How often a bug was caught, over the schedules of one mode.
struct Caught {
  int seeds = 0;
  int caught = 0;    // reported, or wrong bits
  std::string text;  // every report, and "wrong bits"
};

inline Caught catch_in(simt::Mode mode, int seeds, const std::function<bool()>& is_right) {
  Caught result;
  for (int seed = 0; seed < seeds; ++seed) {
    simt::Run run(static_cast<uint64_t>(seed), mode);
    const bool right = is_right();
    std::string text = joined(run.take_reports());
    if (!right) text += "wrong bits\n";
    ++result.seeds;
    if (!text.empty()) ++result.caught;
    result.text += text;
  }
  return result;
}

// Race mode must see the bug in every schedule; plain mode's misses are printed.
inline void expect_caught(const char* name,
                          const char* words,
                          const std::function<bool()>& is_right) {
  const Caught plain = catch_in(simt::Mode::kPlain, kPlainSeeds, is_right);
  const Caught race = catch_in(simt::Mode::kRace, kRaceSeeds, is_right);
  std::printf("%-28s plain %2d of %d, race %d of %d\n",
              name,
              plain.caught,
              plain.seeds,
              race.caught,
              race.seeds);
  EXPECT_EQ(race.caught, race.seeds) << name << ": not caught in every schedule";
  EXPECT_NE((plain.text + race.text).find(words), std::string::npos)
      << name << ": caught in other words than '" << words << "':\n"
      << race.text.substr(0, 2000);
}

inline bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Returns random numbers.
inline std::vector<uint16_t> bf16_matrix(int32_t rows, int32_t k, uint64_t seed) {
  std::vector<uint16_t> matrix;
  for (const float value : Random(seed).normals(static_cast<size_t>(rows) * k)) {
    matrix.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  return matrix;
}

}  // namespace sluice::kernels::test
