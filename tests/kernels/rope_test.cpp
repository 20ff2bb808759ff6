// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "kernels/rope_scaling.h"
#include "quant/format.h"
#include "quant/kv_code.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

TEST(RopeTable, HoldsRoundedCosinesOfTheExactAngles) {
  const RopeParams params = {.rotary_dim = 64,
                             .freq_base = 100000.0F,
                             .freq_scale = 0.25F,
                             .freq_factors = std::vector<float>(32, 1.5F)};
  const int32_t positions = 20000;
  RopeTable table(params, positions);
  // Rows are prepared in pieces, like for growing sequences.
  for (const int32_t end : {1, 2, 70, positions}) table.prepare(end);
  EXPECT_EQ(table.num_pairs(), 32);
  EXPECT_EQ(RopeTable::bytes(params, positions), int64_t{positions} * 32 * 8);
  for (int32_t position = 0; position < positions; position += 13) {
    for (int32_t i = 0; i < 32; ++i) {
      const long double angle = position * (std::pow(100000.0L, -2.0L * i / 64) * 0.25L / 1.5L);
      // Half a float ulp at 1, plus the effect of the frequency's 2e-15 times 20,000.
      ASSERT_NEAR(table.cos_row(position)[i], static_cast<double>(std::cos(angle)), 3.1e-8);
      ASSERT_NEAR(table.sin_row(position)[i], static_cast<double>(std::sin(angle)), 3.1e-8);
    }
  }
}

TEST(RopeTable, AttentionFactorMultipliesBothBeforeRounding) {
  RopeTable plain({.rotary_dim = 16}, 50);
  RopeTable scaled({.rotary_dim = 16, .attention_factor = 1.25F}, 50);
  plain.prepare(50);
  scaled.prepare(50);
  for (int32_t position = 0; position < 50; ++position) {
    for (int32_t i = 0; i < 8; ++i) {
      ASSERT_NEAR(scaled.cos_row(position)[i], 1.25F * plain.cos_row(position)[i], 1.2e-7F);
      ASSERT_NEAR(scaled.sin_row(position)[i], 1.25F * plain.sin_row(position)[i], 1.2e-7F);
    }
  }
}

// The first pairs keep the frequencies of the whole width, unlike those of a narrower rotation.
TEST(RopeTable, PairsOfTheLargestFactorDoNotTurn) {
  constexpr int32_t kPairs = 32;
  constexpr int32_t kTurned = 8;
  std::vector<float> factors(kPairs, kUnturnedFactor);
  std::fill_n(factors.begin(), kTurned, 1.0F);
  const RopeParams whole = {.rotary_dim = 2 * kPairs, .freq_base = 1e6F};
  RopeParams partly = whole;
  partly.freq_factors = factors;
  constexpr int32_t kPositions = 5000;
  RopeTable table(partly, kPositions);
  RopeTable full(whole, kPositions);
  table.prepare(kPositions);
  full.prepare(kPositions);
  for (const int32_t position : {0, 1, 63, 64, kPositions - 1}) {
    for (int32_t i = 0; i < kPairs; ++i) {
      const bool turns = i < kTurned;
      EXPECT_EQ(table.cos_row(position)[i], turns ? full.cos_row(position)[i] : 1.0F) << i;
      EXPECT_EQ(table.sin_row(position)[i], turns ? full.sin_row(position)[i] : 0.0F) << i;
    }
  }
}

TEST(RopeScaling, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const RopeParams params = {.rotary_dim = 128, .freq_base = 500000.0F};
  const std::vector<float> factors = llama3_freq_factors(params, {8, 1, 4, 8192});
  ASSERT_EQ(factors.size(), 64U);
  for (int32_t i = 0; i < 64; ++i) {
    const double wave = 2 * M_PI * std::pow(500000.0, 2.0 * i / 128);
    double wanted = 8;
    if (wave < 8192.0 / 4) wanted = 1;
    if (wave >= 8192.0 / 4 && wave <= 8192) {
      const double smooth = (8192 / wave - 1) / (4 - 1);
      wanted = 1 / ((1 - smooth) / 8 + smooth);
    }
    EXPECT_NEAR(static_cast<double>(factors[static_cast<size_t>(i)]), wanted, 1e-6 * wanted) << i;
  }
}

TEST(RopeScaling, Llama3WithOneBorderKeepsOrStretchesEachWave) {
  const RopeParams params = {.rotary_dim = 128, .freq_base = 500000.0F};
  const std::vector<float> factors = llama3_freq_factors(params, {16, 1, 1, 8192});
  for (int32_t i = 0; i < 64; ++i) {
    const double wave = 2 * M_PI * std::pow(500000.0, 2.0 * i / 128);
    EXPECT_EQ(factors[static_cast<size_t>(i)], wave > 8192 ? 16.0F : 1.0F) << i;
  }
  EXPECT_EQ(factors.back(), 16.0F);
}

TEST(RopeScaling, YarnRampsFromKeptToStretched) {
  const RopeParams params = {.rotary_dim = 64, .freq_base = 150000.0F};
  const YarnScaling scaling = {.factor = 32, .original_context = 4096, .truncate = false};
  const std::vector<float> factors = yarn_freq_factors(params, scaling);
  EXPECT_EQ(factors.front(), 1.0F);
  EXPECT_EQ(factors.back(), 32.0F);
  for (size_t i = 1; i < factors.size(); ++i) EXPECT_GE(factors[i], factors[i - 1]);
  const auto ramp_end = [](double turns) {
    return 64 * std::log(4096 / (turns * 2 * M_PI)) / (2 * std::log(150000.0));
  };
  const double share = (12 - ramp_end(32)) / (ramp_end(1) - ramp_end(32));
  EXPECT_NEAR(static_cast<double>(factors[12]), 1 / (share / 32 + 1 - share), 1e-5);
  EXPECT_NEAR(static_cast<double>(yarn_attention_factor(32, 1)), 0.1 * std::log(32) + 1, 1e-6);
  EXPECT_NEAR(static_cast<double>(longrope_attention_factor(32, 4096)),
              std::sqrt(1 + std::log(32) / std::log(4096)),
              1e-6);
}

struct Layout {
  RopeStyle style;
  DType dtype;
  int32_t head_dim;
  int32_t rotary_dim;
  int32_t block_size;
};

struct Written {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<std::byte> k_cache;
  std::vector<std::byte> v_cache;

  bool operator==(const Written& other) const {
    return std::memcmp(q.data(), other.q.data(), q.size() * 4) == 0 &&
           std::memcmp(k.data(), other.k.data(), k.size() * 4) == 0 && k_cache == other.k_cache &&
           v_cache == other.v_cache;
  }
};

constexpr int32_t kTokens = 21;
constexpr int32_t kHeads = 4;
constexpr int32_t kKvHeads = 2;

struct Inputs {
  std::vector<float> q, k, v;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

Inputs make_inputs(const Layout& layout) {
  Random random(3);
  const auto width = static_cast<size_t>(layout.head_dim);
  Inputs in{.q = random.normals(kTokens * kHeads * width, 3),
            .k = random.normals(kTokens * kKvHeads * width, 3),
            .v = random.normals(kTokens * kKvHeads * width, 3),
            .positions = {},
            .slots = {}};
  for (int32_t token = 0; token < kTokens; ++token) {
    in.positions.push_back(random.below(500));
    in.slots.push_back((token * 5 + 3) % 64);
  }
  in.slots[9] = -1;
  in.v[1] = std::nanf("");
  in.v[2] = 1e30F;
  in.v[3] = -1e-30F;
  in.v[4] = 65519.0F;  // the largest that fp16 rounds down
  in.v[5] = 65520.0F;
  // The rows below are infinite, zero, and too small for a scale.
  in.v[2 * width] = std::numeric_limits<float>::infinity();
  std::fill_n(in.v.begin() + static_cast<ptrdiff_t>(3 * width), width, -0.0F);
  std::fill_n(in.v.begin() + static_cast<ptrdiff_t>(4 * width), width, 1e-44F);
  return in;
}

size_t head_bytes(const Layout& layout) {
  return static_cast<size_t>(kv_head_bytes(layout.dtype, layout.head_dim, layout.block_size));
}

Written untouched(const Layout& layout, const Inputs& in) {
  const size_t bytes = 64 / static_cast<size_t>(layout.block_size) * kKvHeads * head_bytes(layout);
  return {.q = in.q,
          .k = in.k,
          .k_cache = std::vector<std::byte>(bytes, std::byte{0xAB}),
          .v_cache = std::vector<std::byte>(bytes, std::byte{0xAB})};
}

// `norms`: weights for heads of q, then for those of k; or null.
Written run(const Device& device,
            const Layout& layout,
            const RopeTable& table,
            const Inputs& in,
            const float* norms = nullptr) {
  Written w = untouched(layout, in);
  rope_write_kv(device.context(),
                {.q = w.q.data(),
                 .q_stride = kHeads * layout.head_dim,
                 .k = w.k.data(),
                 .k_stride = kKvHeads * layout.head_dim,
                 .v = in.v.data(),
                 .v_stride = kKvHeads * layout.head_dim,
                 .num_heads = kHeads,
                 .table = &table,
                 .positions = in.positions,
                 .slot_mapping = in.slots,
                 .kv = {.k = w.k_cache.data(),
                        .v = w.v_cache.data(),
                        .dtype = layout.dtype,
                        .num_blocks = 64 / layout.block_size,
                        .block_size = layout.block_size,
                        .num_kv_heads = kKvHeads,
                        .head_dim = layout.head_dim},
                 .q_norm = norms,
                 .k_norm = norms == nullptr ? nullptr : norms + layout.head_dim,
                 .norm_eps = 1e-5F});
  return w;
}

// Rotates by the header's formulas, one head at a time.
void rotate(const Layout& layout, const RopeTable& table, int32_t position, float* head) {
  const int32_t pairs = layout.rotary_dim / 2;
  for (int32_t i = 0; i < pairs; ++i) {
    const bool halves = layout.style == RopeStyle::kHalves;
    float& x = head[halves ? i : 2 * i];
    float& y = head[halves ? i + pairs : 2 * i + 1];
    const float cos = table.cos_row(position)[i];
    const float sin = table.sin_row(position)[i];
    const float a = x;
    const float b = y;
    x = std::fmaf(a, cos, -(b * sin));
    y = std::fmaf(a, sin, b * cos);
  }
}

// Writes the codes of one head's row, `step` apart from `first` on, and its scale behind them.
void put_codes(const Layout& layout,
               std::span<const float> row,
               size_t step,
               size_t slot,
               std::byte* head,
               std::byte* first) {
  const auto dim = static_cast<size_t>(cached_head_dim(layout.head_dim));
  std::vector<uint8_t> codes(dim, 0);
  const float scale = encode_kv_row(layout.dtype, row, codes.data());
  for (size_t d = 0; d < dim; ++d) first[d * step] = std::byte{codes[d]};
  const size_t at = dim * static_cast<size_t>(layout.block_size) + slot * sizeof(float);
  std::memcpy(head + at, &scale, sizeof(float));
}

void put(std::vector<std::byte>& cache, DType dtype, size_t element, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(cache.data() + element * 4, &value, 4);
    return;
  }
  const uint16_t narrow = dtype == DType::kF16 ? float_to_half(value) : float_to_bf16(value);
  std::memcpy(cache.data() + element * 2, &narrow, 2);
}

Written expected(const Layout& layout, const RopeTable& table, const Inputs& in) {
  Written w = untouched(layout, in);
  for (int32_t token = 0; token < kTokens; ++token) {
    const int64_t slot = in.slots[static_cast<size_t>(token)];
    if (slot < 0) continue;
    const int32_t position = in.positions[static_cast<size_t>(token)];
    for (int32_t h = 0; h < kHeads; ++h) {
      rotate(layout, table, position, w.q.data() + (token * kHeads + h) * layout.head_dim);
    }
    for (int32_t h = 0; h < kKvHeads; ++h) {
      float* k = w.k.data() + (token * kKvHeads + h) * layout.head_dim;
      rotate(layout, table, position, k);
      const float* v = in.v.data() + (token * kKvHeads + h) * layout.head_dim;
      const auto block = static_cast<size_t>(slot / layout.block_size * kKvHeads + h);
      const auto offset = static_cast<size_t>(slot % layout.block_size);
      const auto dim = static_cast<size_t>(cached_head_dim(layout.head_dim));
      const auto block_size = static_cast<size_t>(layout.block_size);
      if (has_kv_scales(layout.dtype)) {
        const auto width = static_cast<size_t>(layout.head_dim);
        std::byte* k_head = w.k_cache.data() + block * head_bytes(layout);
        std::byte* v_head = w.v_cache.data() + block * head_bytes(layout);
        put_codes(layout, {k, width}, block_size, offset, k_head, k_head + offset);
        put_codes(layout, {v, width}, 1, offset, v_head, v_head + offset * dim);
        continue;
      }
      for (size_t d = 0; d < dim; ++d) {
        const bool inside = d < static_cast<size_t>(layout.head_dim);
        put(w.k_cache, layout.dtype, (block * dim + d) * block_size + offset, inside ? k[d] : 0.0F);
        put(w.v_cache, layout.dtype, (block * block_size + offset) * dim + d, inside ? v[d] : 0.0F);
      }
    }
  }
  return w;
}

TEST(RopeTable, FactorsOfQueriesGrowWithEachContext) {
  RopeTable table({.rotary_dim = 2, .query_scale = {.beta = 0.3, .context = 8, .shift = 1}}, 100);
  table.prepare(100);
  for (int32_t p = 0; p < 100; ++p) {
    const double wanted = 1 + 0.3 * std::log(1.0 + std::floor((p + 1) / 8.0));
    EXPECT_NEAR(table.query_scales()[p], wanted, 1e-7) << p;
  }
  EXPECT_EQ(table.bytes(), RopeTable::bytes({.rotary_dim = 2, .query_scale = {.beta = 0.3}}, 100));
  EXPECT_EQ(RopeTable({.rotary_dim = 2}, 4).query_scales(), nullptr);
}

// The norm of a rotated head is that of head_norm(), and the factor applies to queries alone.
TEST(RopeWriteKv, NormsRotatedHeadsAndScalesQueries) {
  const Layout layout = {RopeStyle::kHalves, DType::kF32, 20, 20, 16};
  RopeTable plain({.rotary_dim = 20, .style = layout.style}, 500);
  RopeTable scaled(
      {.rotary_dim = 20, .style = layout.style, .query_scale = {.beta = 0.3, .context = 8}}, 500);
  plain.prepare(500);
  scaled.prepare(500);
  const Inputs in = make_inputs(layout);
  test::Random random(5);
  const std::vector<float> norms = random.normals(40);
  for (const auto& device : test::devices({1})) {
    const Written rotated = run(*device.device, layout, plain, in);
    const Written got = run(*device.device, layout, scaled, in, norms.data());
    std::vector<float> q = rotated.q;
    std::vector<float> k = rotated.k;
    const auto norm = [&](std::vector<float>& x, int32_t heads, const float* weight) {
      head_norm(device.device->context(),
                {.x = x.data(),
                 .x_stride = heads * layout.head_dim,
                 .num_rows = kTokens,
                 .num_heads = heads,
                 .n = layout.head_dim,
                 .weight = weight,
                 .eps = 1e-5F});
    };
    norm(q, kHeads, norms.data());
    norm(k, kKvHeads, norms.data() + 20);
    for (int32_t i = 0; i < kTokens * kHeads * layout.head_dim; ++i) {
      const auto token = static_cast<size_t>(i / (kHeads * layout.head_dim));
      const auto at = static_cast<size_t>(i);
      if (in.slots[token] < 0) continue;
      EXPECT_EQ(got.q[at], q[at] * scaled.query_scales()[in.positions[token]]) << device.name;
    }
    for (int32_t i = 0; i < kTokens * kKvHeads * layout.head_dim; ++i) {
      const auto token = static_cast<size_t>(i / (kKvHeads * layout.head_dim));
      const auto at = static_cast<size_t>(i);
      if (in.slots[token] < 0) continue;
      EXPECT_EQ(got.k[at], k[at]) << device.name;
    }
  }
}

TEST(RopeWriteKv, RotatesBothStylesAndWritesEveryDtypeAsTheHeaderSays) {
  for (const Layout& layout : {Layout{RopeStyle::kInterleaved, DType::kBF16, 64, 64, 16},
                               Layout{RopeStyle::kHalves, DType::kBF16, 64, 64, 16},
                               Layout{RopeStyle::kHalves, DType::kF16, 80, 40, 32},
                               Layout{RopeStyle::kInterleaved, DType::kF16, 128, 32, 8},
                               Layout{RopeStyle::kHalves, DType::kF32, 32, 20, 64},
                               Layout{RopeStyle::kHalves, DType::kBF16, 20, 20, 16},
                               Layout{RopeStyle::kInterleaved, DType::kF16, 100, 100, 16},
                               Layout{RopeStyle::kHalves, DType::kF32, 40, 24, 4},
                               Layout{RopeStyle::kHalves, DType::kI8, 64, 64, 16},
                               Layout{RopeStyle::kHalves, DType::kF8E4M3, 64, 64, 16},
                               Layout{RopeStyle::kInterleaved, DType::kI8, 20, 20, 8},
                               Layout{RopeStyle::kHalves, DType::kF8E4M3, 100, 40, 64}}) {
    RopeTable table({.rotary_dim = layout.rotary_dim, .style = layout.style}, 500);
    table.prepare(500);
    const Inputs in = make_inputs(layout);
    const Written wanted = expected(layout, table, in);
    for (const auto& device : test::devices({1, 3})) {
      EXPECT_TRUE(run(*device.device, layout, table, in) == wanted)
          << device.name << " head_dim " << layout.head_dim;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
