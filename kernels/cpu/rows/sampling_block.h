// SPDX-License-Identifier: Apache-2.0
// Passes over one row of logits, as sampling.cpp hands them to the instruction sets.
#pragma once

#include <cstdint>

namespace sluice::kernels::cpu {

struct LogitRow {
  const float* x;
  const uint32_t* mask;  // bit i: token i is a candidate; null: all
  int32_t n;
};

// A token in the total order (logit descending, id ascending).
struct Candidate {
  float logit;
  int32_t token;
};

struct LogitScan {
  Candidate first;  // the first candidate in the total order
  bool finite;      // every logit of the row is, candidate or not
};

// The values that a row's softmax and noise depend on. Candidates after `last` do not take part.
struct SoftmaxSpec {
  float max;  // logit of the first candidate
  float temperature;
  Candidate last;
};

struct NoiseKey {
  uint64_t seed;
  uint64_t position;
};

// Candidates are grouped by distance from the first: band = the exponent and four mantissa bits of
// (max - x), so bands are runs of the total order whatever the scale of the logits.
inline constexpr int32_t kLogitBands = 4096;
inline constexpr unsigned kLogitBandShift = 19;

}  // namespace sluice::kernels::cpu
