// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "quant/repack.h"

namespace sluice {
namespace {

// A row-major square matrix of doubles.
struct Square {
  explicit Square(int64_t size) : k(size), values(static_cast<size_t>(size * size)) {}

  double* row(int64_t i) { return values.data() + i * k; }

  int64_t k;
  std::vector<double> values;
};

// Replaces A's lower half by the lower L of A = L L^T; false: A is not positive definite.
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

// Inverts a lower triangle in place.
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

// With reversed columns, H' = L L^T. Then inverse(H') = inverse(L)^T inverse(L), and reversing both
// sides again turns inverse(L), a lower triangle, into the upper one that is needed.
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

template <typename Choose>
void Gptq::round_row(const float* weights, const Choose& choose) const {
  std::vector<float> row(static_cast<size_t>(k_));
  for (size_t i = 0; i < row.size(); ++i) row[i] = weights[order_[i]];
  for (int64_t i = 0; i < k_; ++i) {
    const float x = row[static_cast<size_t>(i)];
    const float* factor = factor_.data() + i * k_;
    const float error = (x - choose(order_[static_cast<size_t>(i)], x)) / factor[i];
    for (int64_t j = i + 1; j < k_; ++j) row[static_cast<size_t>(j)] -= error * factor[j];
  }
}

void Gptq::encode(const Encoding& encoding,
                  const FloatRows& in,
                  float matrix_scale,
                  const RowScales& scales,
                  uint8_t* codes) const {
  const int64_t group = encoding.group == 0 ? k_ : encoding.group;
  const int64_t groups = (k_ + group - 1) / group;
  const double multiplier =
      scheme_info(encoding.scheme).has_multiplier ? static_cast<double>(matrix_scale) : 1.0;
  for (int64_t r = 0; r < in.rows; ++r) {
    round_row(in.row(r), [&](int64_t column, float x) {
      const int64_t at = r * groups + column / group;
      const double scale = double{scales.scales[at]} * multiplier;
      const uint8_t zero = scales.zeros == nullptr ? kMiddleOfInt4 : scales.zeros[at];
      const uint8_t code = nearest_code(encoding.scheme, x, scale, zero);
      codes[r * k_ + column] = code;
      return static_cast<float>(double{code_value(encoding.scheme, code, zero)} * scale);
    });
  }
}

void Gptq::encode_blocks(WeightFormat format, const FloatRows& in, std::byte* rows) const {
  const PackedLayout& layout = layout_of(format);
  const int num_codes = 1 << layout.code_bits();
  const int64_t num_groups = k_ / kQuantGroup;
  std::vector<QuantizedGroup> groups(static_cast<size_t>(num_groups));
  for (int64_t r = 0; r < in.rows; ++r) {
    std::byte* const row = rows + r * row_bytes(format, k_);
    for (int64_t g = 0; g < num_groups; ++g) {
      groups[static_cast<size_t>(g)] = read_group(format, row, g);
    }
    round_row(in.row(r), [&](int64_t column, float x) {
      QuantizedGroup& group = groups[static_cast<size_t>(column / kQuantGroup)];
      const int64_t in_group = column % kQuantGroup;
      const int64_t half = in_group / 16;
      const double scale = double{group.scale} * group.sub_scale[half];
      const double min = double{group.min} * group.sub_min[half];
      double nearest = 0;
      double distance = INFINITY;
      for (int code = 0; code < num_codes; ++code) {
        const double value = layout.value_of(code) * scale + min;
        if (!(std::fabs(x - value) < distance)) continue;
        distance = std::fabs(x - value);
        nearest = value;
        group.codes[in_group] = static_cast<uint8_t>(code);
      }
      return static_cast<float>(nearest);
    });
    for (int64_t g = 0; g < num_groups; ++g) {
      replace_codes(format, g, groups[static_cast<size_t>(g)].codes, row);
    }
  }
}

}  // namespace sluice
