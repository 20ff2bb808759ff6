// SPDX-License-Identifier: Apache-2.0
// Random numbers that are equal on every machine and standard library, because a seed names a whole
// load test. Generator: SplitMix64 (Steele, Lea, Flood 2014); normal: polar method; gamma:
// Marsaglia and Tsang 2000.
#pragma once

#include <cstdint>

namespace sluice::load {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  // Makes an independent stream for part `index` of the load that `seed` names.
  Random(uint64_t seed, uint64_t index);

  uint64_t next();
  double uniform();                            // [0, 1)
  int64_t between(int64_t low, int64_t high);  // both included
  double normal();
  double gamma(double shape, double scale);

 private:
  uint64_t state_;
};

}  // namespace sluice::load
