// SPDX-License-Identifier: Apache-2.0
// Blocks of GGUF. A block of 32 has one scale (and minimum), searched for in its stored precision.
// A block of 256 has a scale per 16 or 32, a small whole number of the block's: these are searched
// for freely, then rounded, then both are improved in turns while the error falls.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/core/status.h"
#include "quant/encode.h"
#include "quant/encode_grid.h"
#include "quant/encode_line.h"

namespace sluice {
namespace {

using encode::CodebookGrid;
using encode::Fit;
using encode::fit;
using encode::fit_line;
using encode::IntegerGrid;
using encode::largest_magnitude;
using encode::Line;
using encode::line_codes;
using encode::LineFit;
using encode::round_even;
using encode::ScaleSearch;
using encode::search_line;
using encode::Weights;

constexpr int kSuperBlock = 256;
constexpr int kRounds = 3;  // rounds of improving a block's and its parts' scales

float as_is(float value) { return value; }

float as_half(float value) { return half_to_float(float_to_half(value)); }

void store_half(float value, std::byte* at) {
  const uint16_t half = float_to_half(value);
  std::memcpy(at, &half, sizeof(half));
}

Weights part_of(const Weights& in, int64_t first, int64_t count) {
  return {in.x + first, in.importance == nullptr ? nullptr : in.importance + first, count};
}

void add_bits(std::byte& byte, int bits) { byte |= static_cast<std::byte>(bits); }

// Stores the bits `mask` << `up` of 32 codes at `shift` of one byte each.
void store_plane(const uint8_t* codes, int up, int mask, int shift, std::byte* bytes) {
  for (int j = 0; j < 32; ++j) add_bits(bytes[j], (codes[j] >> up & mask) << shift);
}

// Stores codes 0 to 15 as low nibbles, 16 to 31 as high ones.
void store_split_nibbles(const uint8_t* codes, std::byte* bytes) {
  for (int j = 0; j < 16; ++j) {
    bytes[j] = static_cast<std::byte>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
  }
}

// Stores bit 4 of code j as bit j of four bytes.
void store_fifth_bits(const uint8_t* codes, std::byte* bytes) {
  uint32_t bits = 0;
  for (unsigned j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(codes[j] >> 4 & 1) << j;
  std::memcpy(bytes, &bits, sizeof(bits));
}

// Stores the codes of a block of 32 at its end; the block's code bits are 0.
void store_codes_of_32(const FormatInfo& info, const uint8_t* codes, std::byte* block) {
  const PackedLayout& layout = layout_of(info.format);
  CHECK_EQ(layout.low_bits, 4);
  std::byte* const low = block + info.block_bytes - 4 * kQuantGroup / 8;
  store_split_nibbles(codes, low);
  if (layout.high_bits == 1) store_fifth_bits(codes, low - kQuantGroup / 8);
}

// Stores the codes of group `g` in a block whose code bits are 0.
void store_codes(WeightFormat format, int g, const uint8_t* codes, std::byte* block) {
  const FormatInfo& info = format_info(format);
  if (info.block_elements == kQuantGroup) return store_codes_of_32(info, codes, block);
  switch (format) {
    case WeightFormat::kIQ4_XS:
      return store_split_nibbles(codes, block + 8 + 16 * g);
    case WeightFormat::kQ2_K:
      return store_plane(codes, 0, 3, 2 * (g % 4), block + 16 + g / 4 * 32);
    case WeightFormat::kQ3_K:
      store_plane(codes, 0, 3, 2 * (g % 4), block + 32 + g / 4 * 32);
      return store_plane(codes, 2, 1, g, block);
    case WeightFormat::kQ4_K:
      return store_plane(codes, 0, 15, g % 2 * 4, block + 16 + g / 2 * 32);
    case WeightFormat::kQ5_K:
      store_plane(codes, 0, 15, g % 2 * 4, block + 48 + g / 2 * 32);
      return store_plane(codes, 4, 1, g, block + 16);
    case WeightFormat::kQ6_K:
      store_plane(codes, 0, 15, g % 4 / 2 * 4, block + g / 4 * 64 + g % 2 * 32);
      return store_plane(codes, 4, 3, 2 * (g % 4), block + 128 + g / 4 * 32);
    default:
      SLUICE_UNREACHABLE("a format of no blocks that are searched for");
  }
}

// Stores the codes of all groups, [weights of a block].
void store_all_codes(WeightFormat format, const uint8_t* codes, std::byte* block) {
  const int groups = format_info(format).block_elements / kQuantGroup;
  for (int g = 0; g < groups; ++g) store_codes(format, g, codes + kQuantGroup * g, block);
}

// Searches scales of either sign that put the largest magnitude at, near or beyond the grid's end.
template <typename Grid, typename Store>
float symmetric_scale(const Grid& grid, const Weights& in, float end, const Store& store) {
  const float largest = largest_magnitude(in);
  ScaleSearch search(grid, in, store);
  for (const float sign : {-1.0F, 1.0F}) {
    for (int i = -7; i <= 15; ++i) {
      search.offer(sign * largest / (end * (1.0F - 0.02F * static_cast<float>(i))));
    }
  }
  search.refine();
  return search.best();
}

template <typename Grid>
void symmetric_codes(const Grid& grid, const Weights& in, float scale, int zero, uint8_t* codes) {
  const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
  for (int64_t i = 0; i < in.count; ++i) {
    const float x = std::isfinite(inverse) ? in.x[i] * inverse : 0.0F;
    codes[i] = static_cast<uint8_t>(static_cast<int>(grid.nearest(x)) + zero);
  }
}

void codebook_codes(const CodebookGrid& grid, const Weights& in, float scale, uint8_t* codes) {
  const float inverse = scale != 0 ? 1.0F / scale : 0.0F;
  for (int64_t i = 0; i < in.count; ++i) {
    const float x = std::isfinite(inverse) ? in.x[i] * inverse : 0.0F;
    codes[i] = static_cast<uint8_t>(grid.code(x));
  }
}

void encode_block_of_e2m1(WeightFormat format, const Weights& in, std::byte* block) {
  const Encoding encoding{.scheme = CodeScheme::kMxfp4, .group = 32};
  const FloatRows rows{.x = in.x, .importance = in.importance, .rows = 1, .k = 32};
  float scale = 1;
  uint8_t codes[32];
  choose_scales(encoding, rows, 1, {&scale});
  encode_codes(encoding, rows, 1, {&scale}, codes);
  block[0] = static_cast<std::byte>(std::ilogb(scale) + 127);
  store_all_codes(format, codes, block);
}

void encode_block_of_32(WeightFormat format, const Weights& in, std::byte* block) {
  const PackedLayout& layout = layout_of(format);
  if (layout.element == ElementFormat::kE2M1) return encode_block_of_e2m1(format, in, block);
  uint8_t codes[32];
  if (layout.has_min()) {
    const auto most = static_cast<float>((1 << layout.code_bits()) - 1);
    const Line line = search_line(in, most, /*falls=*/false, as_half);
    line_codes(in, line, most, codes);
    store_half(line.scale, block);
    store_half(line.min, block + 2);
  } else if (layout.codebook() != nullptr) {
    const CodebookGrid grid{layout.codebook()};
    const auto end = static_cast<float>(-layout.codebook()[0]);
    const float scale = symmetric_scale(grid, in, end, as_half);
    codebook_codes(grid, in, scale, codes);
    store_half(scale, block);
  } else {
    const auto zero = static_cast<float>(layout.zero_point);
    const IntegerGrid grid{-zero, zero - 1};
    const float scale = symmetric_scale(grid, in, zero, as_half);
    symmetric_codes(grid, in, scale, layout.zero_point, codes);
    store_half(scale, block);
  }
  store_all_codes(format, codes, block);
}

// The scale of a block of 256, and its multiple for each part.
struct SymmetricBlock {
  float scale = 0;
  std::array<int, 16> parts{};
  double error = 0;
};

// Chooses the best whole number for each part: the nearest to `wanted`, or a neighbour.
template <typename Grid>
SymmetricBlock choose_parts(const Grid& grid,
                            const Weights& in,
                            float scale,
                            const float* wanted,
                            int part_size,
                            int low,
                            int high) {
  SymmetricBlock block{.scale = scale};
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    const Weights part = part_of(in, p * part_size, part_size);
    const float ratio = scale != 0 ? wanted[p] / scale : 0.0F;
    const int nearest = static_cast<int>(round_even(std::clamp(ratio, float(low), float(high))));
    double least = -1;
    for (int i = std::max(low, nearest - 1); i <= std::min(high, nearest + 1); ++i) {
      const double error = fit(grid, part, scale * static_cast<float>(i)).error;
      if (least >= 0 && error >= least) continue;
      least = error;
      block.parts[static_cast<size_t>(p)] = i;
    }
    block.error += least;
  }
  return block;
}

// Returns the best scale for the block's values.
template <typename Grid>
float refit_scale(const Grid& grid, const Weights& in, const SymmetricBlock& block, int part_size) {
  double products = 0;
  double squares = 0;
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    const auto whole = static_cast<float>(block.parts[static_cast<size_t>(p)]);
    const Fit sums = fit(grid, part_of(in, p * part_size, part_size), block.scale * whole);
    products += sums.products * double{whole};
    squares += sums.squares * double{whole} * double{whole};
  }
  return squares > 0 ? static_cast<float>(products / squares) : block.scale;
}

// `low` and `high`: the range of a part's whole number.
template <typename Grid>
SymmetricBlock symmetric_block(
    const Grid& grid, const Weights& in, float end, int part_size, int low, int high) {
  std::array<float, 16> wanted{};
  float largest = 0;
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    wanted[static_cast<size_t>(p)] =
        symmetric_scale(grid, part_of(in, p * part_size, part_size), end, as_is);
    const float here = wanted[static_cast<size_t>(p)];
    if (std::fabs(here) > std::fabs(largest)) largest = here;
  }
  SymmetricBlock best;
  bool has_any = false;
  const auto offer = [&](float candidate) {
    const float scale = as_half(candidate);
    if (!std::isfinite(scale)) return;
    const SymmetricBlock block = choose_parts(grid, in, scale, wanted.data(), part_size, low, high);
    if (has_any && block.error >= best.error) return;
    has_any = true;
    best = block;
  };
  offer(largest / static_cast<float>(low));
  offer(largest / static_cast<float>(high));
  for (int i = 0; i < kRounds; ++i) offer(refit_scale(grid, in, best, part_size));
  return best;
}

// Scales of a block of 256 with minima: a part's line is scale * scales[p] * code - min * mins[p].
struct LineBlock {
  float scale = 0;
  float min = 0;
  std::array<int, 16> scales{};
  std::array<int, 16> mins{};
  double error = 0;

  [[nodiscard]] Line line(int p) const {
    return {scale * static_cast<float>(scales[static_cast<size_t>(p)]),
            -(min * static_cast<float>(mins[static_cast<size_t>(p)]))};
  }
};

LineBlock choose_line_parts(const Weights& in,
                            float scale,
                            float min,
                            const Line* wanted,
                            int part_size,
                            int high,
                            float most) {
  LineBlock block{.scale = scale, .min = min};
  const auto nearest = [high](float ratio) {
    return static_cast<int>(round_even(std::clamp(ratio, 0.0F, static_cast<float>(high))));
  };
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    const Weights part = part_of(in, p * part_size, part_size);
    const auto at = static_cast<size_t>(p);
    const int s = nearest(scale != 0 ? wanted[p].scale / scale : 0.0F);
    const int m = nearest(min != 0 ? -wanted[p].min / min : 0.0F);
    double least = -1;
    for (int i = std::max(0, s - 1); i <= std::min(high, s + 1); ++i) {
      for (int j = std::max(0, m - 1); j <= std::min(high, m + 1); ++j) {
        const Line line{scale * static_cast<float>(i), -(min * static_cast<float>(j))};
        const double error = fit_line(part, line, most).error;
        if (least >= 0 && error >= least) continue;
        least = error;
        block.scales[at] = i;
        block.mins[at] = j;
      }
    }
    block.error += least;
  }
  return block;
}

// Returns the block's best scale and minimum for its codes.
std::array<float, 2> refit_lines(const Weights& in,
                                 const LineBlock& block,
                                 int part_size,
                                 float most) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    const LineFit sums = fit_line(part_of(in, p * part_size, part_size), block.line(p), most);
    const double a = block.scales[static_cast<size_t>(p)];
    const double b = -block.mins[static_cast<size_t>(p)];
    aa += a * a * sums.qq;
    ab += a * b * sums.q;
    bb += b * b * sums.w;
    ax += a * sums.xq;
    bx += b * sums.x;
  }
  const double determinant = aa * bb - ab * ab;
  if (!(determinant > 1e-12 * aa * bb)) {
    return {aa > 0 ? static_cast<float>((ax - ab * double{block.min}) / aa) : block.scale,
            block.min};
  }
  return {static_cast<float>((ax * bb - bx * ab) / determinant),
          static_cast<float>((bx * aa - ax * ab) / determinant)};
}

// `high`: the largest whole number of a part; `most`: the largest code.
LineBlock line_block(const Weights& in, int part_size, int high, float most) {
  std::array<Line, 16> wanted{};
  Line largest;  // largest scale and largest minimum, negated
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    const Line line =
        search_line(part_of(in, p * part_size, part_size), most, /*falls=*/true, as_is);
    wanted[static_cast<size_t>(p)] = line;
    largest.scale = std::max(largest.scale, line.scale);
    largest.min = std::max(largest.min, -line.min);
  }
  LineBlock best;
  bool has_any = false;
  const auto offer = [&](float scale_wanted, float min_wanted) {
    const float scale = as_half(scale_wanted);
    const float min = as_half(min_wanted);
    if (!(scale >= 0) || !(min >= 0) || !std::isfinite(scale) || !std::isfinite(min)) return;
    const LineBlock block = choose_line_parts(in, scale, min, wanted.data(), part_size, high, most);
    if (has_any && block.error >= best.error) return;
    has_any = true;
    best = block;
  };
  offer(largest.scale / static_cast<float>(high), largest.min / static_cast<float>(high));
  for (int i = 0; i < kRounds; ++i) {
    const auto [scale, min] = refit_lines(in, best, part_size, most);
    offer(scale, min);
  }
  return best;
}

// Stores 8 scales and 8 minima of 6 bits in 12 bytes, for Q4_K and Q5_K.
void store_six_bit_pairs(const LineBlock& block, std::byte* bytes) {
  for (size_t i = 0; i < 8; ++i) {
    const int scale = block.scales[i];
    const int min = block.mins[i];
    if (i < 4) {
      add_bits(bytes[i], scale);
      add_bits(bytes[i + 4], min);
    } else {
      add_bits(bytes[i + 4], (scale & 15) | (min & 15) << 4);
      add_bits(bytes[i - 4], scale >> 4 << 6);
      add_bits(bytes[i], min >> 4 << 6);
    }
  }
}

void encode_line_block(WeightFormat format, const Weights& in, std::byte* block) {
  const bool is_two = format == WeightFormat::kQ2_K;
  const bool is_five = format == WeightFormat::kQ5_K;
  const int part_size = is_two ? 16 : 32;
  const float most = is_two ? 3.0F : is_five ? 31.0F : 15.0F;
  const LineBlock lines = line_block(in, part_size, is_two ? 15 : 63, most);
  uint8_t codes[kSuperBlock];
  for (int p = 0; p < kSuperBlock / part_size; ++p) {
    line_codes(part_of(in, p * part_size, part_size), lines.line(p), most, codes + p * part_size);
  }
  std::byte* scales = block + format_info(format).scale_offset;
  store_half(lines.scale, scales);
  store_half(lines.min, scales + 2);
  if (is_two) {
    for (size_t p = 0; p < 16; ++p) add_bits(block[p], lines.scales[p] | lines.mins[p] << 4);
  } else {
    store_six_bit_pairs(lines, block + 4);
  }
  store_all_codes(format, codes, block);
}

void encode_q3_k(const Weights& in, std::byte* block) {
  const IntegerGrid grid{-4, 3};
  const SymmetricBlock parts = symmetric_block(grid, in, 4, 16, -32, 31);
  uint8_t codes[kSuperBlock];
  for (int p = 0; p < 16; ++p) {
    const int scale = parts.parts[static_cast<size_t>(p)];
    symmetric_codes(
        grid, part_of(in, 16 * p, 16), parts.scale * static_cast<float>(scale), 4, codes + 16 * p);
    const int stored = scale + 32;
    add_bits(block[96 + p % 8], (stored & 15) << (p < 8 ? 0 : 4));
    add_bits(block[104 + p % 4], stored >> 4 << (2 * (p / 4)));
  }
  store_half(parts.scale, block + 108);
  store_all_codes(WeightFormat::kQ3_K, codes, block);
}

void encode_q6_k(const Weights& in, std::byte* block) {
  const IntegerGrid grid{-32, 31};
  const SymmetricBlock parts = symmetric_block(grid, in, 32, 16, -128, 127);
  uint8_t codes[kSuperBlock];
  for (int p = 0; p < 16; ++p) {
    const int scale = parts.parts[static_cast<size_t>(p)];
    symmetric_codes(
        grid, part_of(in, 16 * p, 16), parts.scale * static_cast<float>(scale), 32, codes + 16 * p);
    block[192 + p] = static_cast<std::byte>(scale);
  }
  store_half(parts.scale, block + 208);
  store_all_codes(WeightFormat::kQ6_K, codes, block);
}

void encode_iq4_xs(const Weights& in, std::byte* block) {
  const CodebookGrid grid{kIq4Codebook};
  const SymmetricBlock parts = symmetric_block(grid, in, 127, 32, -32, 31);
  uint16_t high = 0;
  uint8_t codes[kSuperBlock];
  for (int g = 0; g < 8; ++g) {
    const int scale = parts.parts[static_cast<size_t>(g)];
    codebook_codes(
        grid, part_of(in, 32 * g, 32), parts.scale * static_cast<float>(scale), codes + 32 * g);
    const int stored = scale + 32;
    add_bits(block[4 + g / 2], (stored & 15) << (g % 2 * 4));
    high = static_cast<uint16_t>(high | stored >> 4 << (2 * g));
  }
  store_half(parts.scale, block);
  std::memcpy(block + 2, &high, sizeof(high));
  store_all_codes(WeightFormat::kIQ4_XS, codes, block);
}

void encode_block_of_256(WeightFormat format, const Weights& in, std::byte* block) {
  switch (format) {
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
      return encode_line_block(format, in, block);
    case WeightFormat::kQ3_K:
      return encode_q3_k(in, block);
    case WeightFormat::kQ6_K:
      return encode_q6_k(in, block);
    case WeightFormat::kIQ4_XS:
      return encode_iq4_xs(in, block);
    default:
      SLUICE_UNREACHABLE("a format whose blocks are not of 256");
  }
}

}  // namespace

void replace_codes(WeightFormat format, int64_t group, const uint8_t* codes, std::byte* row) {
  const FormatInfo& info = format_info(format);
  const int64_t groups = info.block_elements / kQuantGroup;
  const auto in_block = static_cast<int>(group % groups);
  std::byte* const block = row + group / groups * info.block_bytes;
  // Every bit that a code of this group can set.
  std::array<std::byte, 256> bits{};
  CHECK_LE(static_cast<size_t>(info.block_bytes), bits.size());
  std::array<uint8_t, kQuantGroup> all;
  all.fill(0xFF);
  store_codes(format, in_block, all.data(), bits.data());
  std::array<std::byte, 256> own{};
  store_codes(format, in_block, codes, own.data());
  for (size_t i = 0; i < static_cast<size_t>(info.block_bytes); ++i) {
    block[i] = (block[i] & ~bits[i]) | own[i];
  }
}

void encode_blocks(
    WeightFormat format, const float* row, const float* importance, int64_t k, std::byte* out) {
  const FormatInfo& info = format_info(format);
  CHECK_EQ(k % info.block_elements, 0);
  if (!layout_of(format).is_integer() || format == WeightFormat::kQ8_0) {
    return quantize_row(format, row, k, out);
  }
  std::memset(out, 0, static_cast<size_t>(row_bytes(format, k)));
  const Weights whole{row, importance, k};
  for (int64_t i = 0; i < k / info.block_elements; ++i) {
    const Weights block = part_of(whole, i * info.block_elements, info.block_elements);
    std::byte* at = out + i * info.block_bytes;
    if (info.block_elements == kSuperBlock) {
      encode_block_of_256(format, block, at);
    } else {
      encode_block_of_32(format, block, at);
    }
  }
}

}  // namespace sluice
