// SPDX-License-Identifier: Apache-2.0
// linear() on every instruction set, some thread counts and some row counts, against what is
// expected, bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <vector>

#include "kernels/gemm.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::testing {

// The first rows of x, as many as each of `row_counts`; `expected` [rows of x][n]. Nothing may be
// written past a row.
inline void expect_linear_equals(const PackedWeight& weight,
                                 const Activations& x,
                                 const std::vector<float>& expected,
                                 std::span<const int32_t> row_counts) {
  static const std::vector<test::NamedDevice> devices = test::devices({1, 2, 3});
  constexpr float kPoison = 1234.5F;
  const int64_t n = weight.n;
  const int64_t stride = n + 3;
  for (const test::NamedDevice& device : devices) {
    for (const int32_t rows : row_counts) {
      std::vector<float> out(static_cast<size_t>(rows * stride), kPoison);
      const RowGroup group{
          .weight = &weight, .out = out.data(), .out_stride = stride, .bias = nullptr};
      LinearArgs args{.x = x, .groups = {&group, 1}};
      args.x.num_rows = rows;
      linear(device.device->context(), args);
      for (int64_t m = 0; m < rows; ++m) {
        ASSERT_EQ(std::memcmp(&out[static_cast<size_t>(m * stride)],
                              &expected[static_cast<size_t>(m * n)],
                              static_cast<size_t>(n) * sizeof(float)),
                  0)
            << device.name << " n " << n << " K " << weight.k << " rows " << rows << " row " << m;
        for (int64_t i = n; i < stride; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(m * stride + i)], kPoison) << "wrote past row " << m;
        }
      }
    }
  }
}

}  // namespace sluice::kernels::testing
