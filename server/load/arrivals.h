// SPDX-License-Identifier: Apache-2.0
// The start times of requests, decided before the first is sent: an open loop, in which a slow
// server cannot slow its own load down.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice::load {

enum class Ramp : uint8_t { kNone, kLinear, kExponential };

struct ArrivalPlan {
  size_t count = 0;
  double rate = std::numeric_limits<double>::infinity();  // requests per second; inf: all at once
  double burstiness = 1;  // shape of the gamma gaps: 1 is Poisson, below burstier; inf: constant
  Ramp ramp = Ramp::kNone;
  double ramp_start = 0;  // requests per second, with a ramp
  double ramp_end = 0;
  uint64_t seed = 0;
};

// Seconds from the start, ascending. Gaps are Gamma(burstiness, 1 / (rate * burstiness)). Without a
// ramp they are scaled so that the last arrival is at count / rate: runs of one rate offer the same
// load whatever the seed, like runs of vLLM's client.
std::vector<double> plan_arrivals(const ArrivalPlan& plan);

}  // namespace sluice::load
