// SPDX-License-Identifier: Apache-2.0
// The FP8 layers of kernels/cuda/launch.h in plain loops over the shim's step of wgmma.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/gemm.h"
#include "tests/kernels/devices.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::kernels::test {

// Returns an e4m3 code, mostly ordinary, of either sign, sometimes subnormal, zero or the largest,
// and never NaN.
inline uint8_t random_e4m3(Random& random) {
  const auto code = static_cast<uint8_t>(random.below(256));
  return (code & 0x7FU) == 0x7FU ? uint8_t{0x7E} : code;
}

// Returns scales of a matrix [n][blocks]: positive, over some powers of two.
inline std::vector<float> random_scales(Random& random, int64_t count) {
  std::vector<float> scales;
  for (int64_t i = 0; i < count; ++i) {
    scales.push_back(std::ldexp(0.5F + random.uniform(), static_cast<int>(random.below(7)) - 12));
  }
  return scales;
}

// Fills rows of x with unrelated codes and scales; columns past k are zero.
inline void fill_e4m3(Random& random, const Activations& x) {
  for (int64_t row = 0; row < align_up(x.num_rows, kActivationRows); ++row) {
    for (int64_t column = 0; column < e4m3_row_bytes(x.k); ++column) {
      const ActivationGroup group = activation_group(x, row, column / kQuantGroup);
      const bool inside = column < x.k && row < x.num_rows;
      static_cast<uint8_t*>(group.codes)[column % kQuantGroup] = inside ? random_e4m3(random) : 0;
      const bool starts =
          x.format == ActivationFormat::kE4M3Group ? column % kE4M3GroupColumns == 0 : column == 0;
      if (starts) *group.scale = random_scales(random, 1)[0];
    }
  }
}

// A layer's weight: codes [n][stride], scales [n][blocks]; blocks = 1 if x is kE4M3Token.
struct Fp8Weight {
  const uint8_t* codes;
  int64_t stride;
  const float* scales;
  int64_t blocks;
  int32_t k;
};

// The groups of 32 of a chain, and the scales it gets: launch.h's rules, or a mistake.
struct Fp8Rules {
  int64_t run = 4;
  int64_t neighbour = 0;  // blocks of 128 by which the weight's scale is off
};

// Returns output `output` of x's row `row`; x has all columns or those of `segments`.
inline float fp8_value(const Fp8Weight& weight,
                       const Activations& x,
                       int64_t row,
                       int64_t output,
                       Segments segments = {},
                       Fp8Rules rules = {}) {
  const bool blocks = x.format == ActivationFormat::kE4M3Group;
  const int64_t first_x = x.k == weight.k ? 0 : segments.first_group(weight.k);
  std::array<float, kSegments> sums{};
  for (int32_t i = 0; i < segments.count; ++i) {
    const Segments own{segments.first + i, 1};
    const int64_t end = own.end_group(weight.k);
    float& acc = sums[static_cast<size_t>(i)];
    for (int64_t group = own.first_group(weight.k); group < end;) {
      const int64_t begin = group;
      float p = 0;
      do {
        uint8_t w[32] = {};
        for (int64_t j = 0; j < 32 && group * 32 + j < weight.k; ++j) {
          w[j] = weight.codes[output * weight.stride + group * 32 + j];
        }
        const ActivationGroup own_x = activation_group(x, row, group - first_x);
        p = simt::wgmma_float8_step(simt::Float8::kE4M3,
                                    w,
                                    simt::Float8::kE4M3,
                                    static_cast<const uint8_t*>(own_x.codes),
                                    p);
        ++group;
      } while (group < end && (blocks ? group % rules.run : (group - begin) % rules.run) != 0);
      if (!blocks) {
        acc += p;
        continue;
      }
      const int64_t block = begin / 4;
      const int64_t other = std::min(block + rules.neighbour, weight.blocks - 1);
      const float factor = weight.scales[output * weight.blocks + other] *
                           *activation_group(x, row, begin - first_x).scale;
      acc = std::fma(p, factor, acc);
    }
  }
  for (size_t width = 1; width < static_cast<size_t>(segments.count); width *= 2) {
    for (size_t i = 0; i < kSegments; i += 2 * width) sums[i] += sums[i + width];
  }
  if (blocks || !segments.are_all()) return sums[0];
  return sums[0] * *activation_group(x, row, 0).scale * weight.scales[output];
}

}  // namespace sluice::kernels::test
