// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/random_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/core/types.h"

namespace sluice {

RandomTile::RandomTile(std::string_view name, const PackedWeight& weight, int64_t first_tile)
    : random_(name), first_tile_(first_tile), n_(weight.n), k_(weight.k) {
  if (weight.format == WeightFormat::kInt8Channel) {
    codes_.resize(static_cast<size_t>(kRowTile * k_));
  } else {
    floats_.resize(static_cast<size_t>(kRowTile * k_));
  }
}

float RandomTile::limit(int64_t k) { return std::sqrt(3.0F / static_cast<float>(k)); }

int64_t RandomTile::make(int64_t tile) {
  const int64_t count = std::min<int64_t>(kRowTile, n_ - tile * kRowTile);
  const int64_t first = (first_tile_ + tile) * kRowTile * k_;
  const auto size = static_cast<size_t>(count * k_);
  const float limit = RandomTile::limit(k_);
  for (size_t i = 0; i < size; ++i) {
    const float value = random_.at(first + static_cast<int64_t>(i));
    if (codes_.empty()) {
      floats_[i] = float_to_bf16(limit * value);
    } else {
      codes_[i] = static_cast<int8_t>(127.0F * value);
    }
  }
  return count;
}

}  // namespace sluice
