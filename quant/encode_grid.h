// SPDX-License-Identifier: Apache-2.0
// The encoders' parts: the values that a format's codes can have, and the search for the scale with
// the least error. Errors are summed in double, in one order, so that the result is a function of
// the weights alone.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sluice::encode {

// Rounds to the nearest whole number, halves to even; |x| must be below 2^22.
inline float round_even(float x) { return (x + 0x1.8p23F) - 0x1.8p23F; }

// Whole numbers from `low` to `high`.
struct IntegerGrid {
  float low;
  float high;

  [[nodiscard]] float nearest(float x) const { return round_even(std::clamp(x, low, high)); }
};

// Values of e4m3: 448 at most, 3 bits after the first one, steps of 2^-9 below 2^-6.
struct E4M3Grid {
  [[nodiscard]] float nearest(float x) const {
    const float magnitude = std::min(std::fabs(x), 448.0F);
    float rounded;
    if (magnitude < 0x1p-6F) {
      rounded = round_even(magnitude * 0x1p9F) * 0x1p-9F;
    } else {
      const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
      rounded = std::bit_cast<float>((bits + 0x7FFFFU + (bits >> 20 & 1U)) & ~0xFFFFFU);
    }
    return std::copysign(std::min(rounded, 448.0F), x);
  }
};

// Values of e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; halves to the even code.
struct E2M1Grid {
  [[nodiscard]] float nearest(float x) const {
    const float magnitude = std::min(std::fabs(x), 6.0F);
    const float step = magnitude < 2.0F ? 0.5F : magnitude < 4.0F ? 1.0F : 2.0F;
    return std::copysign(round_even(magnitude / step) * step, x);
  }
};

// The 16 ascending values of a codebook.
class CodebookGrid {
 public:
  explicit CodebookGrid(const int8_t* values) : values_(values) {
    for (size_t i = 0; i < ends_.size(); ++i) {
      ends_[i] = 0.5F * static_cast<float>(values[i] + values[i + 1]);
    }
  }

  // A search in halves without branches, which this is called too often to have.
  [[nodiscard]] int code(float x) const {
    size_t code = 8 * static_cast<size_t>(x > ends_[7]);
    code += 4 * static_cast<size_t>(x > ends_[code + 3]);
    code += 2 * static_cast<size_t>(x > ends_[code + 1]);
    code += static_cast<size_t>(x > ends_[code]);
    return static_cast<int>(code);
  }

  [[nodiscard]] float nearest(float x) const { return values_[code(x)]; }

 private:
  const int8_t* values_;
  std::array<float, 15> ends_;  // the largest number that rounds to each value but the last
};

// Weights that share a scale, and the weight of each one's squared error: null for 1.
struct Weights {
  const float* x;
  const float* importance;
  int64_t count;

  [[nodiscard]] double weight(int64_t i) const {
    return importance == nullptr ? 1.0 : static_cast<double>(importance[i]);
  }
};

inline float largest_magnitude(const Weights& in) {
  float largest = 0;
  for (int64_t i = 0; i < in.count; ++i) largest = std::max(largest, std::fabs(in.x[i]));
  return largest;
}

// The fit of the nearest codes under `scale`: the error, and the sums for their best scale.
struct Fit {
  double error = 0;
  double products = 0;  // sum of importance * x * value
  double squares = 0;   // sum of importance * value^2
};

template <typename Grid>
Fit fit(const Grid& grid, const Weights& in, float scale) {
  const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
  Fit sums;
  for (int64_t i = 0; i < in.count; ++i) {
    const float value = std::isfinite(inverse) ? grid.nearest(in.x[i] * inverse) : 0.0F;
    const double x = in.x[i];
    const double difference = x - static_cast<double>(scale) * static_cast<double>(value);
    const double w = in.weight(i);
    sums.error += w * difference * difference;
    sums.products += w * x * static_cast<double>(value);
    sums.squares += w * static_cast<double>(value) * static_cast<double>(value);
  }
  return sums;
}

// Searches the scale of least error among candidates, each rounded by `store`, and among the best
// scales for the winners' codes so far. The first of equal ones is taken.
template <typename Grid, typename Store>
class ScaleSearch {
 public:
  ScaleSearch(const Grid& grid, const Weights& in, const Store& store)
      : grid_(grid), in_(in), store_(store) {}

  void offer(float candidate) {
    const float scale = store_(candidate);
    if (!std::isfinite(scale) || (has_any_ && scale == best_)) return;
    const Fit sums = fit(grid_, in_, scale);
    if (has_any_ && sums.error >= error_) return;
    has_any_ = true;
    best_ = scale;
    error_ = sums.error;
    refined_ = sums.squares > 0 ? static_cast<float>(sums.products / sums.squares) : scale;
  }

  // Continues from the winner while that lowers the error.
  void refine() {
    for (int i = 0; i < 4; ++i) {
      const double before = error_;
      offer(refined_);
      if (error_ >= before) return;
    }
  }

  [[nodiscard]] float best() const { return best_; }

  [[nodiscard]] double error() const { return error_; }

 private:
  const Grid& grid_;
  const Weights& in_;
  const Store& store_;
  bool has_any_ = false;
  float best_ = 0;
  float refined_ = 0;
  double error_ = 0;
};

}  // namespace sluice::encode
