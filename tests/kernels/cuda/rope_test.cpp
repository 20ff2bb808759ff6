// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct Case {
  DType dtype;
  RopeStyle style;
  int32_t head_dim;
  int32_t rotary_dim;     // 0: no table
  bool norms = false;     // rotated heads
  double growth = 0;      // of queries
  int32_t value_dim = 0;  // 0: head_dim

  [[nodiscard]] int32_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
};

// Compares q, k and the whole cache after one call, on the CPU and under the shim.
void check(const Case& c) {
  constexpr int32_t kTokens = 5;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kKvHeads = 2;
  constexpr int32_t kBlocks = 3;
  constexpr int32_t kBlockSize = 16;
  Random random(31);
  const int64_t q_stride = kHeads * c.head_dim + 1;
  const int64_t k_stride = kKvHeads * c.head_dim + 2;
  const std::vector<float> q = random.normals(static_cast<size_t>(kTokens * q_stride));
  std::vector<float> k = random.normals(static_cast<size_t>(kTokens * k_stride), 3);
  const int64_t v_stride = kKvHeads * c.value_width() + 2;
  std::vector<float> v = random.normals(static_cast<size_t>(kTokens * v_stride), 3);
  std::fill_n(v.begin(), c.value_width(), 0.0F);
  v[static_cast<size_t>(v_stride)] = std::numeric_limits<float>::infinity();
  const std::vector<int32_t> positions = {0, 5, 17, 0, 40};
  const std::vector<int64_t> slots = {47, 0, 17, -1, 16};  // the fourth row is left unchanged
  RopeTable table({.rotary_dim = c.rotary_dim == 0 ? 2 : c.rotary_dim,
                   .style = c.style,
                   .query_scale = {.beta = c.growth, .context = 8}},
                  64);
  const std::vector<float> weight = random.normals(static_cast<size_t>(c.head_dim));
  const float* const norm = c.norms ? weight.data() : nullptr;
  table.prepare(64);
  const auto cache_bytes = [&](int32_t width) {
    return int64_t{kBlocks} * kKvHeads * kv_head_bytes(c.dtype, width, kBlockSize);
  };

  struct Buffers {
    std::vector<float> q, k;
    test::DeviceBytes cache_k, cache_v;
  };

  const auto args = [&](Buffers& buffers) {
    return RopeWriteKvArgs{.q = buffers.q.data(),
                           .q_stride = q_stride,
                           .k = buffers.k.data(),
                           .k_stride = k_stride,
                           .v = v.data(),
                           .v_stride = v_stride,
                           .num_heads = kHeads,
                           .table = c.rotary_dim == 0 ? nullptr : &table,
                           .positions = positions,
                           .slot_mapping = slots,
                           .kv = {.k = buffers.cache_k.data(),
                                  .v = buffers.cache_v.data(),
                                  .dtype = c.dtype,
                                  .num_blocks = kBlocks,
                                  .block_size = kBlockSize,
                                  .num_kv_heads = kKvHeads,
                                  .head_dim = c.head_dim,
                                  .value_dim = c.value_dim},
                           .q_norm = norm,
                           .k_norm = norm,
                           .norm_eps = 1e-5F};
  };
  Buffers want{q,
               k,
               test::DeviceBytes(cache_bytes(c.head_dim)),
               test::DeviceBytes(cache_bytes(c.value_width()))};
  rope_write_kv(test::make_device("scalar", 1)->context(), args(want));
  cuda::RopeRows rows;
  if (c.rotary_dim != 0) {
    rows = {.cos = table.cos_row(0),
            .sin = table.sin_row(0),
            .num_pairs = table.num_pairs(),
            .style = c.style,
            .query_scales = table.query_scales()};
  }
  test::on_schedules([&] {
    Buffers got{q,
                k,
                test::DeviceBytes(cache_bytes(c.head_dim)),
                test::DeviceBytes(cache_bytes(c.value_width()))};
    cuda::launch_rope_write_kv(nullptr, args(got), rows);
    test::expect_same_floats(got.q, want.q);
    test::expect_same_floats(got.k, want.k);
    test::expect_same_bytes(got.cache_k.data(), want.cache_k.data(), want.cache_k.size());
    test::expect_same_bytes(got.cache_v.data(), want.cache_v.data(), want.cache_v.size());
  });
}

TEST(CudaRope, RotatesAndWritesEveryCacheTypeAsTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    SCOPED_TRACE(to_string(dtype));
    check({dtype, RopeStyle::kHalves, 64, 64});
    check({dtype, RopeStyle::kInterleaved, 24, 8});  // padded to 32 in the cache
  }
}

TEST(CudaRope, NormsRotatedHeadsAndScalesQueriesAsTheCpu) {
  check({DType::kBF16, RopeStyle::kHalves, 64, 64, true});
  check({DType::kI8, RopeStyle::kInterleaved, 24, 8, true, 0.3});
  check({DType::kF32, RopeStyle::kHalves, 40, 24, false, 0.3});
  check({DType::kF16, RopeStyle::kHalves, 32, 0, true});
  check({DType::kBF16, RopeStyle::kHalves, 512, 512, true});
  check({DType::kF16, RopeStyle::kHalves, 48, 32, false, 0, 24});
  check({DType::kI8, RopeStyle::kHalves, 48, 32, false, 0, 24});
}

TEST(CudaRope, WithoutATableItOnlyWrites) { check({DType::kBF16, RopeStyle::kHalves, 32, 0}); }

}  // namespace
}  // namespace sluice::kernels
