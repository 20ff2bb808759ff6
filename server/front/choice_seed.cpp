// SPDX-License-Identifier: Apache-2.0
#include "server/front/choice_seed.h"

namespace sluice {

uint64_t choice_seed(uint64_t seed, uint64_t k) {
  if (k == 0) return seed;
  // SplitMix64 (Steele, Lea, Flood 2014): step k of the sequence that starts at `seed`.
  uint64_t z = seed + k * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

}  // namespace sluice
