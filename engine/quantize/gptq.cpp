// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice {
namespace {

// A row-major square matrix of doubles.
struct Square {
  explicit Square(int64_t size) : k(size), values(static_cast<size_t>(size * size)) {}

  double* row(int64_t i) { return values.data() + i * k; }

  int64_t k;
  std::vector<double> values;
};

// The lower L of A = L L^T in place, A's lower half; false: A is not positive definite.
bool factorize(Square& a) {
  for (int64_t i = 0; i < a.k; ++i) {
    double* row = a.row(i);
    for (int64_t j = 0; j <= i; ++j) {
      const double* other = a.row(j);
      double sum = row[j];
      for (int64_t m = 0; m < j; ++m) sum -= row[m] * other[m];
      if (j < i) {
        row[j] = sum / other[j];
      } else {
        if (!(sum > 0) || !std::isfinite(sum)) return false;
        row[i] = std::sqrt(sum);
      }
    }
  }
  return true;
}

// The inverse of a lower triangle, in place.
void invert_lower(Square& l) {
  for (int64_t i = 0; i < l.k; ++i) {
    double* row = l.row(i);
    const double inverse = 1.0 / row[i];
    std::vector<double> sums(static_cast<size_t>(i));
    for (int64_t m = 0; m < i; ++m) {
      const double* other = l.row(m);
      for (int64_t j = 0; j <= m; ++j) sums[static_cast<size_t>(j)] += row[m] * other[j];
    }
    for (int64_t j = 0; j < i; ++j) row[j] = -inverse * sums[static_cast<size_t>(j)];
    row[i] = inverse;
  }
}

}  // namespace

// With columns in reverse, H' = L L^T. Then inverse(H') = inverse(L)^T inverse(L), and reversing
// both sides back turns inverse(L), a lower triangle, into the upper one that is sought.
std::optional<Gptq> Gptq::create(const InputStatistics& inputs, double damp) {
  const auto k = static_cast<int64_t>(inputs.mean_squares.size());
  Gptq result;
  result.k_ = k;
  result.order_.resize(static_cast<size_t>(k));
  std::iota(result.order_.begin(), result.order_.end(), 0);
  std::stable_sort(result.order_.begin(), result.order_.end(), [&](int64_t a, int64_t b) {
    return inputs.mean_squares[static_cast<size_t>(a)] >
           inputs.mean_squares[static_cast<size_t>(b)];
  });
  double mean = 0;
  for (const float square : inputs.mean_squares) mean += double{square} / static_cast<double>(k);
  if (!(mean > 0)) mean = 1;
  Square h(k);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t from = result.order_[static_cast<size_t>(k - 1 - i)];
    for (int64_t j = 0; j <= i; ++j) {
      const int64_t to = result.order_[static_cast<size_t>(k - 1 - j)];
      h.row(i)[j] = double{inputs.products[static_cast<size_t>(from * k + to)]};
    }
    h.row(i)[i] += damp * mean;
  }
  if (!factorize(h)) return std::nullopt;
  invert_lower(h);
  result.factor_.resize(static_cast<size_t>(k * k));
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = i; j < k; ++j) {
      result.factor_[static_cast<size_t>(i * k + j)] =
          static_cast<float>(h.row(k - 1 - i)[k - 1 - j]);
    }
  }
  return result;
}

void Gptq::encode(const Encoding& encoding,
                  const FloatRows& in,
                  float matrix_scale,
                  const float* scales,
                  uint8_t* codes) const {
  const int64_t group = encoding.group == 0 ? k_ : encoding.group;
  const int64_t groups = (k_ + group - 1) / group;
  const double multiplier =
      encoding.scheme == CodeScheme::kNvfp4 ? static_cast<double>(matrix_scale) : 1.0;
  std::vector<float> row(static_cast<size_t>(k_));
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t i = 0; i < k_; ++i) {
      row[static_cast<size_t>(i)] = in.row(r)[order_[static_cast<size_t>(i)]];
    }
    for (int64_t i = 0; i < k_; ++i) {
      const int64_t column = order_[static_cast<size_t>(i)];
      const double scale = double{scales[r * groups + column / group]} * multiplier;
      const float x = row[static_cast<size_t>(i)];
      const uint8_t code = nearest_code(encoding.scheme, x, scale);
      codes[r * k_ + column] = code;
      const float* factor = factor_.data() + i * k_;
      const auto value = static_cast<float>(double{code_value(encoding.scheme, code)} * scale);
      const float error = (x - value) / factor[i];
      for (int64_t j = i + 1; j < k_; ++j) row[static_cast<size_t>(j)] -= error * factor[j];
    }
  }
}

}  // namespace sluice
