// SPDX-License-Identifier: Apache-2.0
#include "server/load/random.h"

#include <cmath>

namespace sluice::load {

Random::Random(uint64_t seed, uint64_t index) : state_(seed) {
  state_ = next() ^ (index * 0xd1342543de82ef95ULL + 0x632be59bd9b4e019ULL);
  next();
}

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Random::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

int64_t Random::between(int64_t low, int64_t high) {
  const auto span = static_cast<uint64_t>(high - low) + 1;
  if (span == 0) return static_cast<int64_t>(next());
  // The remainder's bias is below span / 2^64.
  return low + static_cast<int64_t>(next() % span);
}

double Random::normal() {
  while (true) {
    const double u = 2 * uniform() - 1;
    const double v = 2 * uniform() - 1;
    const double s = u * u + v * v;
    if (s > 0 && s < 1) return u * std::sqrt(-2 * std::log(s) / s);
  }
}

double Random::gamma(double shape, double scale) {
  if (shape < 1) {
    const double boost = std::pow(1 - uniform(), 1 / shape);
    return gamma(shape + 1, scale) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal();
    const double t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (std::log(1 - uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * scale;
  }
}

}  // namespace sluice::load
