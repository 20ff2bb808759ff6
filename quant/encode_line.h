// SPDX-License-Identifier: Apache-2.0
// The search for lines, of a scale and a minimum, that weights of few bits lie on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "quant/encode_grid.h"

namespace sluice::encode {

// value = scale * code + min, codes from 0 to `most`.
struct Line {
  float scale = 0;
  float min = 0;
};

// The fit of the nearest codes: the error, and the sums that give the best line for these codes.
struct LineFit {
  double error = 0;
  double w = 0, x = 0, q = 0, qq = 0, xq = 0;  // sums of importance times these
};

inline LineFit fit_line(const Weights& in, const Line& line, float most) {
  const float inverse = line.scale != 0 ? 1.0F / line.scale : 0.0F;
  LineFit sums;
  for (int64_t i = 0; i < in.count; ++i) {
    float code = 0;
    if (std::isfinite(inverse)) {
      code = round_even(std::clamp((in.x[i] - line.min) * inverse, 0.0F, most));
    }
    const double w = in.weight(i);
    const double x = in.x[i];
    const double q = code;
    const double difference = x - (static_cast<double>(line.scale) * q + double{line.min});
    sums.error += w * difference * difference;
    sums.w += w;
    sums.x += w * x;
    sums.q += w * q;
    sums.qq += w * q * q;
    sums.xq += w * x * q;
  }
  return sums;
}

// Returns the best line for a fit's codes. `falls`: its minimum must not be above zero.
inline Line best_line(const LineFit& sums, bool falls, const Line& otherwise) {
  const double determinant = sums.w * sums.qq - sums.q * sums.q;
  if (!(determinant > 0)) return otherwise;
  const double scale = (sums.w * sums.xq - sums.x * sums.q) / determinant;
  const double min = (sums.qq * sums.x - sums.q * sums.xq) / determinant;
  if (falls && min > 0) return {static_cast<float>(sums.xq / sums.qq), 0};
  return {static_cast<float>(scale), static_cast<float>(min)};
}

template <typename Store>
class LineSearch {
 public:
  LineSearch(const Weights& in, float most, bool falls, const Store& store)
      : in_(in), most_(most), falls_(falls), store_(store) {}

  void offer(const Line& candidate) {
    const Line line{store_(candidate.scale), store_(candidate.min)};
    if (!(line.scale >= 0) || !std::isfinite(line.scale) || !std::isfinite(line.min)) return;
    if (falls_ && line.min > 0) return;
    const LineFit sums = fit_line(in_, line, most_);
    if (has_any_ && sums.error >= error_) return;
    has_any_ = true;
    best_ = line;
    error_ = sums.error;
    refined_ = best_line(sums, falls_, line);
  }

  // Offers also the best line for the codes that `candidate` gives.
  void offer_refined(const Line& candidate) {
    offer(candidate);
    offer(best_line(fit_line(in_, candidate, most_), falls_, candidate));
  }

  void refine() {
    for (int i = 0; i < 4; ++i) {
      const double before = error_;
      offer(refined_);
      if (error_ >= before) return;
    }
  }

  [[nodiscard]] const Line& best() const { return best_; }

 private:
  const Weights& in_;
  float most_;
  bool falls_;
  const Store& store_;
  bool has_any_ = false;
  Line best_;
  Line refined_;
  double error_ = 0;
};

template <typename Store>
Line search_line(const Weights& in, float most, bool falls, const Store& store) {
  const auto [low, high] = std::minmax_element(in.x, in.x + in.count);
  const float min = falls ? std::min(*low, 0.0F) : *low;
  const float range = *high - min;
  LineSearch search(in, most, falls, store);
  search.offer({range / most, min});
  for (int i = -10; i <= 10; ++i) {
    search.offer_refined({range / (most + 0.1F * static_cast<float>(i)), min});
  }
  search.refine();
  return search.best();
}

inline void line_codes(const Weights& in, const Line& line, float most, uint8_t* codes) {
  const float inverse = line.scale != 0 ? 1.0F / line.scale : 0.0F;
  for (int64_t i = 0; i < in.count; ++i) {
    codes[i] = 0;
    if (!std::isfinite(inverse)) continue;
    codes[i] =
        static_cast<uint8_t>(round_even(std::clamp((in.x[i] - line.min) * inverse, 0.0F, most)));
  }
}

}  // namespace sluice::encode
