// SPDX-License-Identifier: Apache-2.0
// linear() on every instruction set, some thread counts and some row counts, for processors that
// read one stream a core and for others, against what is expected, bit by bit.
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
  constexpr int32_t kFewRows = 8;  // more are computed in one way on every processor
  const int64_t n = weight.n;
  const int64_t stride = n + 3;
  const auto check = [&](const test::NamedDevice& device, int32_t rows, bool one_stream) {
    std::vector<float> out(static_cast<size_t>(rows * stride), kPoison);
    const RowGroup group{
        .weight = &weight, .out = out.data(), .out_stride = stride, .bias = nullptr};
    LinearArgs args{.x = x, .groups = {&group, 1}};
    args.x.num_rows = rows;
    ExecContext ctx = device.device->context();
    ctx.one_stream = one_stream;
    linear(ctx, args);
    for (int64_t m = 0; m < rows; ++m) {
      ASSERT_EQ(std::memcmp(&out[static_cast<size_t>(m * stride)],
                            &expected[static_cast<size_t>(m * n)],
                            static_cast<size_t>(n) * sizeof(float)),
                0)
          << device.name << (one_stream ? " one stream" : "") << " n " << n << " K " << weight.k
          << " rows " << rows << " row " << m;
      for (int64_t i = n; i < stride; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(m * stride + i)], kPoison) << "wrote past row " << m;
      }
    }
  };
  for (const test::NamedDevice& device : devices) {
    for (const int32_t rows : row_counts) {
      ASSERT_NO_FATAL_FAILURE(check(device, rows, false));
      if (rows > kFewRows) continue;
      ASSERT_NO_FATAL_FAILURE(check(device, rows, true));
    }
  }
}

}  // namespace sluice::kernels::testing
