// SPDX-License-Identifier: Apache-2.0
// Encoders, compared with searches of all scales and with the decoders.
#include "quant/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "quant/kv_code.h"
#include "quant/repack.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

// Returns normally distributed weights, some columns ten times the others.
std::vector<float> random_weights(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = normal(random) * (i % 97 == 5 ? 10.0F : 1.0F);
  }
  return values;
}

std::vector<float> random_importance(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = 0.01F + static_cast<float>(random() % 1000) / 100.0F;
  return values;
}

struct Encoded {
  float matrix = 1;
  std::vector<float> scales;
  std::vector<uint8_t> zeros;  // [scales.size()]
  std::vector<uint8_t> codes;
};

Encoded encode(const Encoding& encoding, const FloatRows& in) {
  float largest = 0;
  for (int64_t i = 0; i < in.rows * in.k; ++i) largest = std::max(largest, std::fabs(in.x[i]));
  Encoded out;
  out.matrix = matrix_scale(encoding, largest);
  const int64_t groups = encoding.group == 0 ? 1 : (in.k + encoding.group - 1) / encoding.group;
  out.scales.resize(static_cast<size_t>(in.rows * groups));
  out.codes.resize(static_cast<size_t>(in.rows * in.k));
  out.zeros.resize(out.scales.size(), kMiddleOfInt4);
  const RowScales scales = {out.scales.data(),
                            scheme_info(encoding.scheme).has_zeros ? out.zeros.data() : nullptr};
  choose_scales(encoding, in, out.matrix, scales);
  encode_codes(encoding, in, out.matrix, scales, out.codes.data());
  return out;
}

double error_of(const float* x, const float* importance, const std::vector<double>& values) {
  double error = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double difference = static_cast<double>(x[i]) - values[i];
    error += (importance == nullptr ? 1.0 : static_cast<double>(importance[i])) * difference *
             difference;
  }
  return error;
}

// Returns the values of codes with their scales.
std::vector<double> decode(const Encoding& encoding, const FloatRows& in, const Encoded& encoded) {
  const int64_t group = encoding.group == 0 ? in.k : encoding.group;
  const int64_t groups = (in.k + group - 1) / group;
  const bool is_nvfp4 = encoding.scheme == CodeScheme::kNvfp4;
  std::vector<double> values;
  for (int64_t r = 0; r < in.rows; ++r) {
    for (int64_t i = 0; i < in.k; ++i) {
      const auto at = static_cast<size_t>(r * groups + i / group);
      const uint8_t code = encoded.codes[static_cast<size_t>(r * in.k + i)];
      values.push_back(double{code_value(encoding.scheme, code, encoded.zeros[at])} *
                       double{encoded.scales[at]} * (is_nvfp4 ? double{encoded.matrix} : 1.0));
    }
  }
  return values;
}

// Returns all values that a code of the scheme can have.
std::vector<double> code_values(CodeScheme scheme, uint8_t zero = kMiddleOfInt4) {
  const bool is_byte = scheme == CodeScheme::kInt8Channel || scheme == CodeScheme::kE4M3Tensor ||
                       scheme == CodeScheme::kE4M3Channel || scheme == CodeScheme::kE4M3Block;
  std::vector<double> values;
  for (int code = 0; code < (is_byte ? 256 : 16); ++code) {
    const double value = code_value(scheme, static_cast<uint8_t>(code), zero);
    if (std::isfinite(value) && value != -128) values.push_back(value);
  }
  return values;
}

// Returns the error when each weight takes its nearest code, found by trying all.
double error_at(const std::vector<double>& values,
                const float* x,
                const float* importance,
                int64_t count,
                double scale) {
  double error = 0;
  for (int64_t i = 0; i < count; ++i) {
    double least = INFINITY;
    for (const double value : values) {
      least = std::min(least, std::fabs(static_cast<double>(x[i]) - scale * value));
    }
    error += (importance == nullptr ? 1.0 : static_cast<double>(importance[i])) * least * least;
  }
  return error;
}

constexpr CodeScheme kSchemes[] = {CodeScheme::kInt8Channel,
                                   CodeScheme::kInt4Group,
                                   CodeScheme::kInt4Zeros,
                                   CodeScheme::kE4M3Tensor,
                                   CodeScheme::kE4M3Channel,
                                   CodeScheme::kE4M3Block,
                                   CodeScheme::kNvfp4,
                                   CodeScheme::kMxfp4};

TEST(Encode, CodesAreTheNearestOnes) {
  const std::vector<float> x = random_weights(4 * 256, 1);
  const FloatRows in{.x = x.data(), .rows = 4, .k = 256};
  for (const CodeScheme scheme : kSchemes) {
    const Encoding encoding{.scheme = scheme, .group = scheme_info(scheme).group};
    const Encoded encoded = encode(encoding, in);
    const std::vector<double> decoded = decode(encoding, in, encoded);
    const int64_t group = encoding.group == 0 ? in.k : encoding.group;
    const double multiplier = scheme == CodeScheme::kNvfp4 ? double{encoded.matrix} : 1.0;
    for (size_t i = 0; i < decoded.size(); ++i) {
      const size_t at = i / static_cast<size_t>(group);
      const double scale = double{encoded.scales[at]} * multiplier;
      double least = INFINITY;
      for (const double value : code_values(scheme, encoded.zeros[at])) {
        least = std::min(least, std::fabs(double{x[i]} - scale * value));
      }
      ASSERT_LE(std::fabs(double{x[i]} - decoded[i]), least * (1 + 1e-6) + 1e-12)
          << static_cast<int>(scheme) << " weight " << i;
    }
  }
}

// The error of a searched scale is within 6% of the best of thousands, under any importance, and no
// worse than that of the largest magnitude.
TEST(Encode, SearchedScalesAreNearlyTheBestOfAll) {
  const std::vector<float> x = random_weights(128, 2);
  const std::vector<float> weights = random_importance(128, 3);
  for (const CodeScheme scheme :
       {CodeScheme::kInt8Channel, CodeScheme::kInt4Group, CodeScheme::kE4M3Channel}) {
    for (const float* importance : {static_cast<const float*>(nullptr), weights.data()}) {
      const FloatRows in{.x = x.data(), .importance = importance, .rows = 1, .k = 128};
      Encoding encoding{.scheme = scheme, .group = scheme_info(scheme).group};
      const double searched =
          error_of(x.data(), importance, decode(encoding, in, encode(encoding, in)));
      encoding.search = false;
      const Encoded plain = encode(encoding, in);
      const double largest = error_of(x.data(), importance, decode(encoding, in, plain));
      double best = INFINITY;
      const int tries = testing::sample_of(800, 3000);
      for (int i = 0; i < tries; ++i) {
        const double scale = double{plain.scales[0]} * (0.4 + 1.7 * i / tries);
        best = std::min(best, error_at(code_values(scheme), x.data(), importance, 128, scale));
      }
      EXPECT_LE(searched, largest * (1 + 1e-9));
      EXPECT_LE(searched, best * 1.06) << static_cast<int>(scheme);
    }
  }
}

// The weights lie on one side of 0, around it, and on both; all zero points are tried.
TEST(Encode, SearchedZeroPointsAreNearlyTheBestOfAll) {
  const std::vector<float> weights = random_importance(128, 7);
  for (const float shift : {0.0F, 0.02F, -0.05F}) {
    std::vector<float> x = random_weights(128, 6);
    for (float& value : x) value += shift;
    for (const float* importance : {static_cast<const float*>(nullptr), weights.data()}) {
      const FloatRows in{.x = x.data(), .importance = importance, .rows = 1, .k = 128};
      Encoding encoding{.scheme = CodeScheme::kInt4Zeros, .group = 128};
      const double searched =
          error_of(x.data(), importance, decode(encoding, in, encode(encoding, in)));
      encoding.search = false;
      const Encoded plain = encode(encoding, in);
      EXPECT_LE(searched, error_of(x.data(), importance, decode(encoding, in, plain)) * (1 + 1e-9));
      double best = INFINITY;
      for (uint8_t zero = 0; zero < 16; ++zero) {
        const std::vector<double> values = code_values(CodeScheme::kInt4Zeros, zero);
        for (int i = 0; i < 400; ++i) {
          const double scale = double{plain.scales[0]} * (0.3 + 1.2 * i / 400);
          best = std::min(best, error_at(values, x.data(), importance, 128, scale));
        }
      }
      EXPECT_LE(searched, best * 1.06) << shift;
      std::printf("shift %5.2f: %.4f of the best\n", double{shift}, searched / best);
    }
  }
}

TEST(Encode, ReplacedCodesAreReadBackAndScalesStay) {
  const std::vector<float> x = random_weights(512, 8);
  std::mt19937 random(9);
  size_t num_formats = 0;
  for (const FormatInfo& info : format_table()) {
    if (!layout_of(info.format).is_integer() || info.format == WeightFormat::kQ8_0) continue;
    ++num_formats;
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(info.format, 512)));
    encode_blocks(info.format, x.data(), nullptr, 512, row.data());
    const PackedLayout& layout = layout_of(info.format);
    const unsigned num_codes = 1U << layout.code_bits();
    std::vector<QuantizedGroup> before;
    for (int64_t g = 0; g < 16; ++g) before.push_back(read_group(info.format, row.data(), g));
    for (int64_t g = 15; g >= 0; --g) {
      for (uint8_t& code : before[static_cast<size_t>(g)].codes) {
        code = static_cast<uint8_t>(random() % num_codes);
      }
      replace_codes(info.format, g, before[static_cast<size_t>(g)].codes, row.data());
    }
    for (int64_t g = 0; g < 16; ++g) {
      const QuantizedGroup& want = before[static_cast<size_t>(g)];
      const QuantizedGroup after = read_group(info.format, row.data(), g);
      EXPECT_TRUE(std::ranges::equal(want.codes, after.codes)) << info.name << " group " << g;
      EXPECT_EQ(want.scale_bits, after.scale_bits) << info.name;
      EXPECT_EQ(want.min_bits, after.min_bits) << info.name;
      EXPECT_TRUE(std::ranges::equal(want.sub_scale, after.sub_scale)) << info.name;
      EXPECT_TRUE(std::ranges::equal(want.sub_min, after.sub_min)) << info.name;
    }
  }
  EXPECT_EQ(num_formats, 12U);
}

TEST(Encode, Nvfp4AndMxfp4ScalesAreTheBestThereAre) {
  const std::vector<float> x = random_weights(64 * 32, 4);
  const std::vector<float> importance = random_importance(32, 5);
  const FloatRows in{.x = x.data(), .importance = importance.data(), .rows = 64, .k = 32};
  const std::vector<double> values = code_values(CodeScheme::kNvfp4);
  const Encoding nvfp4{.scheme = CodeScheme::kNvfp4, .group = 16};
  const Encoded four = encode(nvfp4, in);
  const std::vector<double> decoded = decode(nvfp4, in, four);
  int num_worse = 0;
  for (size_t group = 0; group < 128; ++group) {
    const float* at = x.data() + 16 * group;
    const float* here = importance.data() + group % 2 * 16;
    double best = INFINITY;
    for (int code = 0; code < 127; ++code) {
      const double scale = double{e4m3_to_float(static_cast<uint8_t>(code))} * double{four.matrix};
      best = std::min(best, error_at(values, at, here, 16, scale));
    }
    const std::vector<double> ours(decoded.begin() + static_cast<ptrdiff_t>(16 * group),
                                   decoded.begin() + static_cast<ptrdiff_t>(16 * group + 16));
    num_worse += error_of(at, here, ours) > best * (1 + 1e-6);
  }
  EXPECT_LE(num_worse, 2);  // scales further off than the search looks
  const Encoding mxfp4{.scheme = CodeScheme::kMxfp4, .group = 32};
  const Encoded powers = encode(mxfp4, in);
  const std::vector<double> of_powers = decode(mxfp4, in, powers);
  for (size_t row = 0; row < 64; ++row) {
    const float* at = x.data() + 32 * row;
    double best = INFINITY;
    for (int exponent = -30; exponent < 10; ++exponent) {
      best = std::min(best, error_at(values, at, importance.data(), 32, std::ldexp(1, exponent)));
    }
    const std::vector<double> ours(of_powers.begin() + static_cast<ptrdiff_t>(32 * row),
                                   of_powers.begin() + static_cast<ptrdiff_t>(32 * row + 32));
    EXPECT_LE(error_of(at, importance.data(), ours), best * (1 + 1e-6)) << row;
  }
}

// Without a search the scales are standard encoders': the OCP rule, amax / 448, amax / 127.
TEST(Encode, ScalesOfTheLargestMagnitudeAreTheUsualOnes) {
  std::vector<float> x(32, 0.0F);
  x[3] = -5.0F;
  const FloatRows in{.x = x.data(), .rows = 1, .k = 32};
  const auto scale = [&](CodeScheme scheme) {
    const Encoding encoding{.scheme = scheme, .group = scheme_info(scheme).group, .search = false};
    return encode(encoding, in).scales[0];
  };
  EXPECT_EQ(scale(CodeScheme::kInt8Channel), 5.0F / 127.0F);
  EXPECT_EQ(scale(CodeScheme::kE4M3Channel), 5.0F / 448.0F);
  EXPECT_EQ(scale(CodeScheme::kE4M3Block), 5.0F / 448.0F);
  EXPECT_EQ(scale(CodeScheme::kE4M3Tensor), 5.0F / 448.0F);
  EXPECT_EQ(scale(CodeScheme::kMxfp4), 1.0F);
}

// Zero, tiny and huge rows have finite scales, and zeros stay zero.
TEST(Encode, OddRowsHaveFiniteScales) {
  for (const float size : {0.0F, 1e-42F, 1e-30F, 3e38F}) {
    std::vector<float> x(256, size);
    x[7] = 0.0F;
    x[9] = -size;
    const FloatRows in{.x = x.data(), .rows = 1, .k = 256};
    for (const CodeScheme scheme : kSchemes) {
      const Encoding encoding{.scheme = scheme, .group = scheme_info(scheme).group};
      const Encoded encoded = encode(encoding, in);
      for (const float scale : encoded.scales) {
        EXPECT_TRUE(std::isfinite(scale) && scale >= 0) << static_cast<int>(scheme) << " " << size;
      }
      EXPECT_EQ(decode(encoding, in, encoded)[7], 0.0) << static_cast<int>(scheme) << " " << size;
    }
    for (const FormatInfo& info : format_table()) {
      std::vector<std::byte> row(static_cast<size_t>(row_bytes(info.format, 256)));
      encode_blocks(info.format, x.data(), nullptr, 256, row.data());
      const bool fits = size < 1e30F || info.format == WeightFormat::kF32 ||
                        info.format == WeightFormat::kBF16 || info.format == WeightFormat::kMXFP4;
      if (!fits) continue;
      EXPECT_FALSE(find_non_finite(info.format, row.data(), 256)) << info.name;
    }
  }
}

double block_error(WeightFormat format, const std::vector<float>& x, const float* importance) {
  const auto k = static_cast<int64_t>(x.size());
  std::vector<std::byte> row(static_cast<size_t>(row_bytes(format, k)));
  encode_blocks(format, x.data(), importance, k, row.data());
  std::vector<double> values(x.size());
  dequantize_row_f64(format, row.data(), k, values.data());
  return error_of(x.data(), importance, values);
}

// The best scale is found among all half-precision ones, each weight with its nearest code.
TEST(EncodeBlocks, OneScaleOf32IsNearlyTheBestThereIs) {
  struct Case {
    WeightFormat format;
    int zero;
    int codes;
  };

  const std::vector<float> x = random_weights(32, 6);
  const std::vector<float> importance = random_importance(32, 7);
  for (const Case& test : {Case{WeightFormat::kQ4_0, 8, 16},
                           Case{WeightFormat::kQ5_0, 16, 32},
                           Case{WeightFormat::kIQ4_NL, 0, 16}}) {
    std::vector<double> values;
    for (int code = 0; code < test.codes; ++code) {
      values.push_back(test.zero == 0 ? kIq4Codebook[code] : code - test.zero);
    }
    double best = INFINITY;
    for (uint32_t half = 0; half < 0x10000; ++half) {
      const float scale = half_to_float(static_cast<uint16_t>(half));
      if (!(std::fabs(scale) < 1)) continue;
      best = std::min(best, error_at(values, x.data(), importance.data(), 32, double{scale}));
    }
    EXPECT_LE(block_error(test.format, x, importance.data()), best * 1.02)
        << format_info(test.format).name;
  }
}

// Lines have a minimum, and are within 5% of the best line on a grid.
TEST(EncodeBlocks, LinesOf32AreNearlyTheBest) {
  const std::vector<float> x = random_weights(32, 8);
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  for (const auto& [format, most] :
       {std::pair(WeightFormat::kQ4_1, 15), std::pair(WeightFormat::kQ5_1, 31)}) {
    double best = INFINITY;
    for (int i = 0; i < 60; ++i) {
      for (int j = 0; j < 60; ++j) {
        const double scale = double{*high - *low} / most * (0.75 + i * 0.01);
        const double min = double{*low} + double{*high - *low} * (j - 15) / 120.0;
        double error = 0;
        for (const float weight : x) {
          const double code =
              std::clamp(std::nearbyint((double{weight} - min) / scale), 0.0, double(most));
          error += std::pow(double{weight} - (scale * code + min), 2);
        }
        best = std::min(best, error);
      }
    }
    EXPECT_LE(block_error(format, x, nullptr), best * 1.05) << format_info(format).name;
  }
}

// The error of an encoder without a search: round-to-nearest with the largest magnitude of each 16
// or 32, and the part's scale in as many bits as the format has.
double plain_error(const std::vector<float>& x, int part, double end, int sub_limit, bool has_min) {
  double error = 0;
  for (size_t block = 0; block < x.size(); block += 256) {
    double top = 0;
    std::vector<double> scales, mins;
    double top_min = 0;
    for (size_t p = block; p < block + 256; p += static_cast<size_t>(part)) {
      const auto begin = x.begin() + static_cast<ptrdiff_t>(p);
      const auto [low, high] = std::minmax_element(begin, begin + part);
      const double min = has_min ? std::min(double{*low}, 0.0) : 0.0;
      const double reach = std::max(std::fabs(double{*low}), std::fabs(double{*high}));
      scales.push_back(has_min ? (double{*high} - min) / end : reach / end);
      mins.push_back(-min);
      top = std::max(top, scales.back());
      top_min = std::max(top_min, mins.back());
    }
    for (size_t i = 0; i < scales.size(); ++i) {
      const double scale = std::nearbyint(scales[i] / top * sub_limit) * top / sub_limit;
      const double min =
          has_min ? std::nearbyint(mins[i] / top_min * sub_limit) * top_min / sub_limit : 0;
      for (size_t j = 0; j < static_cast<size_t>(part); ++j) {
        const double weight = x[block + i * static_cast<size_t>(part) + j];
        const double code =
            scale == 0
                ? 0
                : std::clamp(std::nearbyint((weight + min) / scale), has_min ? 0 : -end, end);
        error += std::pow(weight - (scale * code - min), 2);
      }
    }
  }
  return error;
}

TEST(EncodeBlocks, BlocksOf256AreBetterThanWithoutASearch) {
  struct Case {
    WeightFormat format;
    int part;
    double end;
    int sub_limit;
    bool has_min;
    double at_most;  // factor of the plain error
  };

  const std::vector<float> x = random_weights(256 * 16, 9);
  for (const Case& test : {Case{WeightFormat::kQ2_K, 16, 3, 15, true, 0.8},
                           Case{WeightFormat::kQ3_K, 16, 3, 31, false, 0.8},
                           Case{WeightFormat::kQ4_K, 32, 15, 63, true, 0.9},
                           Case{WeightFormat::kQ5_K, 32, 31, 63, true, 0.95},
                           Case{WeightFormat::kQ6_K, 16, 31, 127, false, 0.95}}) {
    const double plain = plain_error(x, test.part, test.end, test.sub_limit, test.has_min);
    EXPECT_LE(block_error(test.format, x, nullptr), plain * test.at_most)
        << format_info(test.format).name;
  }
  // IQ4_NL's blocks of 32 have the same codes, but a scale each.
  EXPECT_LE(block_error(WeightFormat::kIQ4_XS, x, nullptr),
            block_error(WeightFormat::kIQ4_NL, x, nullptr) * 1.05);
}

// More bits give less error, and more important weights get more of the precision.
TEST(EncodeBlocks, ErrorFallsWithBitsAndFollowsImportance) {
  const std::vector<float> x = random_weights(256 * 8, 10);
  double before = INFINITY;
  for (const WeightFormat format : {WeightFormat::kQ2_K,
                                    WeightFormat::kQ3_K,
                                    WeightFormat::kQ4_K,
                                    WeightFormat::kQ5_K,
                                    WeightFormat::kQ6_K,
                                    WeightFormat::kQ8_0}) {
    const double error = block_error(format, x, nullptr);
    EXPECT_LT(error, before * 0.6) << format_info(format).name;
    before = error;
  }
  const std::vector<float> importance = random_importance(256 * 8, 11);
  for (const FormatInfo& info : format_table()) {
    if (!layout_of(info.format).is_integer() || info.format == WeightFormat::kQ8_0) continue;
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(info.format, 256 * 8)));
    std::vector<double> values(x.size());
    encode_blocks(info.format, x.data(), nullptr, 256 * 8, row.data());
    dequantize_row_f64(info.format, row.data(), 256 * 8, values.data());
    EXPECT_LT(block_error(info.format, x, importance.data()),
              error_of(x.data(), importance.data(), values))
        << info.name;
  }
}

// A matrix of a format's own values is encoded without error.
TEST(EncodeBlocks, ValuesOfAFormatComeBack) {
  const std::vector<float> x = random_weights(1024, 12);
  for (const WeightFormat format : {WeightFormat::kMXFP4, WeightFormat::kQ8_0}) {
    std::vector<std::byte> row(static_cast<size_t>(row_bytes(format, 1024)));
    encode_blocks(format, x.data(), nullptr, 1024, row.data());
    std::vector<float> values(1024);
    dequantize_row(format, row.data(), 1024, values.data());
    EXPECT_LE(block_error(format, values, nullptr), 1e-9) << format_info(format).name;
  }
}

}  // namespace
}  // namespace sluice
