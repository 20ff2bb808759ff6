// SPDX-License-Identifier: Apache-2.0
// Checks linear() bit by bit on every instruction set, with some thread and row counts, for
// processors that read one stream a core, unpack fast and take vdpbf16ps, and for others.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/gemm.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::testing {

// Names memory that linear layers bring to caches meanwhile.
inline void bring_something(const ExecContext& ctx) {
  static std::array<std::byte, 32768> cache;
  static constexpr std::array<int32_t, 3> kStarts = {0, 1, 2};
  static constexpr std::array<int32_t, 2> kLengths = {64, 50};
  static constexpr std::array<int32_t, 8> kBlocks = {0, 1, 2, 3, 3, 2, 1, 0};
  attention_ahead(ctx,
                  {.kv = {.k = cache.data(),
                          .v = cache.data() + cache.size() / 2,
                          .num_blocks = 4,
                          .num_kv_heads = 2,
                          .head_dim = 64},
                   .num_heads = 2,
                   .query_start_loc = kStarts,
                   .seq_lens = kLengths,
                   .block_table = kBlocks.data(),
                   .block_table_stride = 4});
}

// Checks the first rows of x, as many as each of `row_counts`, against `expected` [rows of x][n].
// Nothing may be written past a row.
inline void expect_linear_equals(const PackedWeight& weight,
                                 const Activations& x,
                                 const std::vector<float>& expected,
                                 std::span<const int32_t> row_counts) {
  static const std::vector<test::NamedDevice> devices = test::devices({1, 2, 3});
  constexpr float kPoison = 1234.5F;
  // More rows are computed alike on every processor, except for formats that some unpack fast.
  const bool any_rows = cpu::is_unpacked_fast(weight.format) || is_e4m3(x.format);
  const int32_t few_rows = any_rows ? INT32_MAX : 47;
  const int64_t n = weight.n;
  const int64_t stride = n + 3;
  const auto check = [&](const test::NamedDevice& device, int32_t rows, bool is_amd) {
    std::vector<float> out(static_cast<size_t>(rows * stride), kPoison);
    const RowGroup group{
        .weight = &weight, .out = out.data(), .out_stride = stride, .bias = nullptr};
    LinearArgs args{.x = x, .groups = {&group, 1}};
    args.x.num_rows = rows;
    ExecContext ctx = device.device->context();
    ctx.one_stream = is_amd;
    ctx.unpacks_fast = is_amd;
    ctx.dots_bf16 = is_amd && __builtin_cpu_supports("avx512bf16") != 0;
    if (rows % 2 == 0) bring_something(ctx);
    linear(ctx, args);
    for (int64_t m = 0; m < rows; ++m) {
      ASSERT_EQ(std::memcmp(&out[static_cast<size_t>(m * stride)],
                            &expected[static_cast<size_t>(m * n)],
                            static_cast<size_t>(n) * sizeof(float)),
                0)
          << device.name << (is_amd ? " as AMD" : "") << " n " << n << " K " << weight.k << " rows "
          << rows << " row " << m;
      for (int64_t i = n; i < stride; ++i) {
        ASSERT_EQ(out[static_cast<size_t>(m * stride + i)], kPoison) << "wrote past row " << m;
      }
    }
  };
  for (const test::NamedDevice& device : devices) {
    for (const int32_t rows : row_counts) {
      ASSERT_NO_FATAL_FAILURE(check(device, rows, false));
      if (rows > few_rows) continue;
      ASSERT_NO_FATAL_FAILURE(check(device, rows, true));
    }
  }
}

}  // namespace sluice::kernels::testing
