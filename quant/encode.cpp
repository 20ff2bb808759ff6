// SPDX-License-Identifier: Apache-2.0
#include "quant/encode.h"

#include <array>
#include <bit>
#include <cmath>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "quant/encode_grid.h"
#include "quant/kv_code.h"

namespace sluice {
namespace {

using encode::E2M1Grid;
using encode::E4M3Grid;
using encode::IntegerGrid;
using encode::largest_magnitude;
using encode::ScaleSearch;
using encode::Weights;

constexpr int32_t kBlock = 128;  // rows and columns of a block of ScalePlace::kBlock

constexpr IntegerGrid kInt8Grid{-127, 127};
constexpr float kMostInt4 = 15;

// The values of 4-bit codes less their zero point.
constexpr IntegerGrid int4_grid(uint8_t zero) {
  return {-static_cast<float>(zero), kMostInt4 - static_cast<float>(zero)};
}

constexpr IntegerGrid kInt4Grid = int4_grid(kMiddleOfInt4);

float as_is(float scale) { return scale; }

float as_bf16(float scale) { return bf16_to_float(float_to_bf16(scale)); }

// Returns the smallest power of two that is not below `x`, which must be positive.
float power_of_two_from(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);  // in [0.5, 1)
  return std::ldexp(1.0F, std::clamp(fraction == 0.5F ? exponent - 1 : exponent, -126, 127));
}

uint8_t e2m1_code(float value) {
  const float magnitude = std::fabs(value);
  const int code = magnitude <= 2.0F   ? static_cast<int>(magnitude * 2.0F)
                   : magnitude <= 4.0F ? static_cast<int>(magnitude) + 2
                                       : 7;
  return static_cast<uint8_t>((std::signbit(value) && code != 0 ? 8 : 0) | code);
}

// Smaller scales than the largest magnitude's clip it, larger ones put it elsewhere on the grid.
template <typename Grid, typename Store>
float search_scale(const Grid& grid,
                   const Weights& in,
                   float whole,
                   float least,
                   float most,
                   int steps,
                   const Store& store,
                   bool search) {
  if (!search) return store(whole);
  ScaleSearch best(grid, in, store);
  best.offer(whole);
  for (int i = 0; i <= steps; ++i) {
    const float part = static_cast<float>(i) / static_cast<float>(steps);
    best.offer(whole * (least + (most - least) * part));
  }
  best.refine();
  return best.best();
}

float int8_scale(const Weights& in, bool search) {
  const float whole = largest_magnitude(in) / 127.0F;
  return search_scale(kInt8Grid, in, whole, 0.7F, 1.0F, 30, as_is, search);
}

// 7.5 is half of the range -8..7.
float int4_scale(const Weights& in, bool search) {
  const float whole = largest_magnitude(in) / 7.5F;
  return search_scale(kInt4Grid, in, whole, 0.5F, 1.1F, 48, as_bf16, search);
}

struct ScaleAndZero {
  float scale;
  uint8_t zero;
};

// Tries scales with both ends (0 among them) divided by 15 and clipped alike, each with the zero
// point that follows and its neighbours.
ScaleAndZero int4_scale_and_zero(const Weights& in, bool search) {
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < in.count; ++i) {
    low = std::min(low, in.x[i]);
    high = std::max(high, in.x[i]);
  }
  const float whole = high / kMostInt4 - low / kMostInt4;  // their difference may be infinite
  const auto zero_of = [low](float scale, float part) {
    const float zero = scale > 0 ? encode::round_even(-low * part / scale) : 0.0F;
    return static_cast<uint8_t>(std::clamp(zero, 0.0F, kMostInt4));
  };
  ScaleAndZero best = {as_bf16(whole), zero_of(as_bf16(whole), 1)};
  if (!search || best.scale == 0) return best;
  double error = fit(int4_grid(best.zero), in, best.scale).error;
  const auto offer = [&](float scale, int zero, bool refines) {
    if (zero < 0 || zero > static_cast<int>(kMostInt4)) return;
    const IntegerGrid grid = int4_grid(static_cast<uint8_t>(zero));
    ScaleSearch found(grid, in, as_bf16);
    found.offer(scale);
    if (refines) found.refine();
    if (!(found.error() < error)) return;
    error = found.error();
    best = {found.best(), static_cast<uint8_t>(zero)};
  };
  constexpr int kSteps = 24;
  for (int step = 0; step <= kSteps; ++step) {
    const float part = 0.6F + 0.44F * static_cast<float>(step) / kSteps;
    const float scale = as_bf16(whole * part);
    const int zero = zero_of(scale, part);
    for (const int beside : {0, -1, 1}) offer(scale, zero + beside, false);
  }
  offer(best.scale, best.zero, true);
  return best;
}

float e4m3_scale(const Weights& in, bool search) {
  const float whole = largest_magnitude(in) / 448.0F;
  // Doubling a scale gives the same grid except at its ends.
  return search_scale(E4M3Grid{}, in, whole, 0.9F, 2.0F, 44, as_is, search);
}

// Returns a scale per 16 in units of the matrix's multiplier: the one that takes the largest
// magnitude to 6, or the best e4m3 code near it, up to beyond the one that takes it to 4.
float nvfp4_scale(const Weights& in, float multiplier, bool search) {
  const float whole = largest_magnitude(in) / (6.0F * multiplier);
  const uint8_t first = e4m3_code(E4M3Grid{}.nearest(whole));
  if (!search) return e4m3_to_float(first);
  const auto in_units = [multiplier](float scale) { return scale * multiplier; };
  ScaleSearch best(E2M1Grid{}, in, in_units);
  float chosen = 0;
  for (int code = std::max(0, first - 3); code <= std::min(0x7E, first + 7); ++code) {
    const float scale = e4m3_to_float(static_cast<uint8_t>(code));
    best.offer(scale);
    if (best.best() == in_units(scale)) chosen = scale;
  }
  return chosen;
}

// Returns 2^e, where e is the exponent of the largest magnitude less that of 4, the largest power
// of two of e2m1, or a neighbour of it.
float mxfp4_scale(const Weights& in, bool search) {
  const float largest = largest_magnitude(in);
  if (largest == 0) return 1.0F;
  const int exponent = std::clamp(std::ilogb(largest) - 2, -127, 127);
  if (!search) return std::ldexp(1.0F, exponent);
  ScaleSearch best(E2M1Grid{}, in, as_is);
  for (const int step : {0, 1, -1}) {
    best.offer(std::ldexp(1.0F, std::clamp(exponent + step, -127, 127)));
  }
  return best.best();
}

// Returns one scale for a block of rows; `importance` weighs their columns.
float block_scale(const FloatRows& in, int64_t first, int64_t count, bool search) {
  std::array<float, kBlock * kBlock> x;
  std::array<float, kBlock * kBlock> importance;
  CHECK_LE(in.rows, kBlock);
  int64_t n = 0;
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t i = first; i < first + count; ++i, ++n) {
      x[static_cast<size_t>(n)] = in.row(r)[i];
      if (in.importance != nullptr) importance[static_cast<size_t>(n)] = in.importance[i];
    }
  }
  return e4m3_scale({x.data(), in.importance != nullptr ? importance.data() : nullptr, n}, search);
}

float group_scale(const Encoding& encoding, const Weights& in, float matrix) {
  const SchemeInfo& info = scheme_info(encoding.scheme);
  switch (info.code) {
    case CodeKind::kInt8:
      return int8_scale(in, encoding.search);
    case CodeKind::kInt4:
      return int4_scale(in, encoding.search);
    case CodeKind::kE4M3:
      return e4m3_scale(in, encoding.search);
    case CodeKind::kE2M1:
      return info.has_multiplier ? nvfp4_scale(in, matrix, encoding.search)
                                 : mxfp4_scale(in, encoding.search);
    default:
      SLUICE_UNREACHABLE("codes that no scheme has");
  }
}

// In the order of CodeScheme.
constexpr SchemeInfo kSchemeInfos[] = {
    {.scheme = CodeScheme::kInt8Channel, .code = CodeKind::kInt8, .place = ScalePlace::kRow},
    {.scheme = CodeScheme::kInt4Group,
     .code = CodeKind::kInt4,
     .place = ScalePlace::kGroup,
     .group = 128},
    {.scheme = CodeScheme::kInt4Zeros,
     .code = CodeKind::kInt4,
     .place = ScalePlace::kGroup,
     .group = 128,
     .has_zeros = true},
    {.scheme = CodeScheme::kE4M3Tensor, .code = CodeKind::kE4M3, .place = ScalePlace::kMatrix},
    {.scheme = CodeScheme::kE4M3Channel, .code = CodeKind::kE4M3, .place = ScalePlace::kRow},
    {.scheme = CodeScheme::kE4M3Block,
     .code = CodeKind::kE4M3,
     .place = ScalePlace::kBlock,
     .group = kBlock},
    {.scheme = CodeScheme::kNvfp4,
     .code = CodeKind::kE2M1,
     .place = ScalePlace::kGroup,
     .group = 16,
     .scales = ScaleType::kE4M3,
     .has_multiplier = true},
    {.scheme = CodeScheme::kMxfp4,
     .code = CodeKind::kE2M1,
     .place = ScalePlace::kGroup,
     .group = 32,
     .scales = ScaleType::kE8M0},
};

}  // namespace

const SchemeInfo& scheme_info(CodeScheme scheme) {
  const SchemeInfo& info = kSchemeInfos[static_cast<size_t>(scheme)];
  DCHECK(info.scheme == scheme);
  return info;
}

float matrix_scale(const Encoding& encoding, float largest) {
  const SchemeInfo& info = scheme_info(encoding.scheme);
  if (info.place == ScalePlace::kMatrix) return largest / 448.0F;
  if (!info.has_multiplier || largest == 0) return 1.0F;
  return power_of_two_from(largest / (4.0F * 448.0F));
}

void choose_scales(const Encoding& encoding,
                   const FloatRows& in,
                   float matrix,
                   const RowScales& out) {
  const SchemeInfo& info = scheme_info(encoding.scheme);
  CHECK((out.zeros != nullptr) == info.has_zeros);
  const int64_t group = encoding.group == 0 ? in.k : encoding.group;
  const int64_t groups = ceil_div(in.k, group);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t first = g * group;
    const int64_t count = std::min(group, in.k - first);
    float shared = matrix;
    if (info.place == ScalePlace::kBlock) {
      shared = block_scale(in, first, count, encoding.search);
    }
    for (int64_t r = 0; r < in.rows; ++r) {
      const float* importance = in.importance == nullptr ? nullptr : in.importance + first;
      const Weights weights = {in.row(r) + first, importance, count};
      const bool is_shared = info.place == ScalePlace::kBlock || info.place == ScalePlace::kMatrix;
      if (out.zeros != nullptr) {
        const ScaleAndZero both = int4_scale_and_zero(weights, encoding.search);
        out.scales[r * groups + g] = both.scale;
        out.zeros[r * groups + g] = both.zero;
      } else {
        out.scales[r * groups + g] = is_shared ? shared : group_scale(encoding, weights, matrix);
      }
    }
  }
}

float code_value(CodeScheme scheme, uint8_t code, uint8_t zero) {
  const CodeKind kind = scheme_info(scheme).code;
  return static_cast<float>(code_value(kind, code, kind == CodeKind::kInt4 ? zero : 0));
}

uint8_t nearest_code(CodeScheme scheme, float x, double scale, uint8_t zero) {
  const auto scaled = scale != 0 ? static_cast<float>(static_cast<double>(x) / scale) : 0.0F;
  switch (scheme_info(scheme).code) {
    case CodeKind::kInt8:
      return static_cast<uint8_t>(static_cast<int8_t>(kInt8Grid.nearest(scaled)));
    case CodeKind::kInt4:
      return static_cast<uint8_t>(static_cast<int>(int4_grid(zero).nearest(scaled)) + zero);
    case CodeKind::kE4M3:
      return e4m3_code(E4M3Grid{}.nearest(scaled));
    case CodeKind::kE2M1:
      return e2m1_code(E2M1Grid{}.nearest(scaled));
    default:
      SLUICE_UNREACHABLE("codes that no scheme has");
  }
}

void encode_codes(const Encoding& encoding,
                  const FloatRows& in,
                  float matrix,
                  const RowScales& scales,
                  uint8_t* codes) {
  const int64_t group = encoding.group == 0 ? in.k : encoding.group;
  const int64_t groups = ceil_div(in.k, group);
  const double multiplier =
      scheme_info(encoding.scheme).has_multiplier ? static_cast<double>(matrix) : 1.0;
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t i = 0; i < in.k; ++i) {
      const int64_t at = r * groups + i / group;
      const double scale = static_cast<double>(scales.scales[at]) * multiplier;
      const uint8_t zero = scales.zeros == nullptr ? kMiddleOfInt4 : scales.zeros[at];
      codes[r * in.k + i] = nearest_code(encoding.scheme, in.row(r)[i], scale, zero);
    }
  }
}

}  // namespace sluice
