// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/input_products.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr int64_t kBlock = 64;  // columns at once, to stay in the cache

// Adds one block of columns of row i of the products, over all rows of x.
void add_block(const TappedRows& rows, int64_t i, int64_t first, float* products) {
  float sums[kBlock] = {};
  for (int32_t r = 0; r < rows.num_rows; ++r) {
    const float* row = rows.data + r * rows.stride;
    const float factor = row[i];
    const float* columns = row + first;
    for (int64_t j = 0; j < kBlock; ++j) sums[j] += factor * columns[j];
  }
  float* out = products + i * rows.k + first;
  for (int64_t j = 0; j < kBlock; ++j) out[j] += sums[j];
}

void add_rest(const TappedRows& rows, int64_t i, int64_t first, int64_t count, float* products) {
  for (int64_t j = first; j < first + count; ++j) {
    float sum = 0;
    for (int32_t r = 0; r < rows.num_rows; ++r) {
      const float* row = rows.data + r * rows.stride;
      sum += row[i] * row[j];
    }
    products[i * rows.k + j] += sum;
  }
}

}  // namespace

void add_products(const TappedRows& rows, float* products) {
  for (int64_t first = 0; first < rows.k; first += kBlock) {
    const int64_t count = std::min<int64_t>(kBlock, rows.k - first);
    for (int64_t i = 0; i < std::min<int64_t>(first + count, rows.k); ++i) {
      if (count == kBlock) {
        add_block(rows, i, first, products);
      } else {
        add_rest(rows, i, first, count, products);
      }
    }
  }
}

void mirror_products(int64_t k, float scale, std::vector<float>& products) {
  if (products.empty()) return;
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t j = i; j < k; ++j) {
      float& product = products[static_cast<size_t>(i * k + j)];
      product *= scale;
      products[static_cast<size_t>(j * k + i)] = product;
    }
  }
}

}  // namespace sluice
