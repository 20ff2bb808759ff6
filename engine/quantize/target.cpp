// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/target.h"

#include <algorithm>
#include <cctype>

namespace sluice {
namespace {

struct CodeRow {
  std::string_view name;
  Spelling spelling;
  CodeScheme code;
};

constexpr CodeRow kCodeRows[] = {
    {"int8", Spelling::kCompressedTensors, CodeScheme::kInt8Channel},
    {"fp8", Spelling::kCompressedTensors, CodeScheme::kE4M3Channel},
    {"fp8-tensor", Spelling::kCompressedTensors, CodeScheme::kE4M3Tensor},
    {"fp8-block", Spelling::kFp8, CodeScheme::kE4M3Block},
    {"nvfp4", Spelling::kModelopt, CodeScheme::kNvfp4},
    {"nvfp4-ct", Spelling::kCompressedTensors, CodeScheme::kNvfp4},
    {"mxfp4", Spelling::kCompressedTensors, CodeScheme::kMxfp4},
    {"int4", Spelling::kCompressedTensors, CodeScheme::kInt4Group},
    {"int4-asym", Spelling::kCompressedTensors, CodeScheme::kInt4Zeros},
};

struct GgufRow {
  std::string_view name;
  WeightFormat format;
  char mix;
  uint32_t file_type;
};

constexpr GgufRow kGgufRows[] = {
    {"Q2_K", WeightFormat::kQ2_K, 'M', 10},
    {"Q3_K_S", WeightFormat::kQ3_K, 'S', 11},
    {"Q3_K_M", WeightFormat::kQ3_K, 'M', 12},
    {"Q3_K_L", WeightFormat::kQ3_K, 'L', 13},
    {"Q4_0", WeightFormat::kQ4_0, 0, 2},
    {"Q4_1", WeightFormat::kQ4_1, 0, 3},
    {"Q4_K_S", WeightFormat::kQ4_K, 'S', 14},
    {"Q4_K_M", WeightFormat::kQ4_K, 'M', 15},
    {"Q5_0", WeightFormat::kQ5_0, 0, 8},
    {"Q5_1", WeightFormat::kQ5_1, 0, 9},
    {"Q5_K_S", WeightFormat::kQ5_K, 'S', 16},
    {"Q5_K_M", WeightFormat::kQ5_K, 'M', 17},
    {"Q6_K", WeightFormat::kQ6_K, 0, 18},
    {"Q8_0", WeightFormat::kQ8_0, 0, 7},
    {"IQ4_NL", WeightFormat::kIQ4_NL, 0, 25},
    {"IQ4_XS", WeightFormat::kIQ4_XS, 0, 30},
};

struct FloatRow {
  std::string_view name;
  WeightFormat format;
};

constexpr FloatRow kFloatRows[] = {
    {"bf16", WeightFormat::kBF16}, {"f16", WeightFormat::kF16}, {"f32", WeightFormat::kF32}};

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// True for layers at both ends and every third between them.
bool is_layer_of_more_bits(int32_t layer, int32_t num_layers) {
  const int32_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

// Replaces formats with blocks of 256 where k does not fit.
WeightFormat format_for(WeightFormat format, int64_t k) {
  if (k % format_info(format).block_elements == 0) return format;
  if (k % 32 != 0) return WeightFormat::kF16;
  switch (format) {
    case WeightFormat::kQ4_K:
      return WeightFormat::kQ5_0;
    case WeightFormat::kQ5_K:
      return WeightFormat::kQ5_1;
    case WeightFormat::kQ6_K:
      return WeightFormat::kQ8_0;
    default:
      return WeightFormat::kIQ4_NL;
  }
}

WeightFormat format_of_values(const TargetScheme& scheme, const MatrixPlace& place) {
  const bool is_more = is_layer_of_more_bits(place.layer, place.num_layers);
  if (place.num_experts >= 8 && scheme.mix != '\0') return WeightFormat::kQ8_0;
  switch (scheme.format) {
    case WeightFormat::kQ2_K:
      return place.query_groups >= 4 ? WeightFormat::kQ4_K : WeightFormat::kQ3_K;
    case WeightFormat::kQ3_K:
      if (scheme.mix == 'S') return scheme.format;
      return scheme.mix == 'L' || place.layer < 2 ? WeightFormat::kQ5_K : WeightFormat::kQ4_K;
    case WeightFormat::kQ4_K:
      if (scheme.mix == 'S') return place.layer < 4 ? WeightFormat::kQ5_K : scheme.format;
      return is_more ? WeightFormat::kQ6_K : scheme.format;
    case WeightFormat::kQ5_K:
      return scheme.mix == 'M' && is_more ? WeightFormat::kQ6_K : scheme.format;
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
      return place.query_groups >= 4 ? WeightFormat::kQ5_K : scheme.format;
    default:
      return scheme.format;
  }
}

WeightFormat format_of_down(const TargetScheme& scheme, const MatrixPlace& place) {
  const bool is_more = is_layer_of_more_bits(place.layer, place.num_layers);
  const bool is_first = place.layer < place.num_layers / 8;
  switch (scheme.format) {
    case WeightFormat::kQ2_K:
      return WeightFormat::kQ3_K;
    case WeightFormat::kQ3_K:
      if (scheme.mix == 'S') return scheme.format;
      return scheme.mix == 'L' || place.layer < place.num_layers / 16 ? WeightFormat::kQ5_K
                                                                      : WeightFormat::kQ4_K;
    case WeightFormat::kQ4_K:
      if (scheme.mix == 'S') return is_first ? WeightFormat::kQ5_K : scheme.format;
      return is_more ? WeightFormat::kQ6_K : scheme.format;
    case WeightFormat::kQ5_K:
      return scheme.mix == 'M' && is_more ? WeightFormat::kQ6_K : scheme.format;
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
      return is_first ? WeightFormat::kQ5_K : scheme.format;
    default:
      return scheme.format;
  }
}

WeightFormat format_of_output(const TargetScheme& scheme) {
  if (scheme.format == WeightFormat::kQ2_K) return WeightFormat::kQ3_K;
  if (scheme.format != WeightFormat::kQ3_K) return scheme.format;
  return scheme.mix == 'M'   ? WeightFormat::kQ4_K
         : scheme.mix == 'L' ? WeightFormat::kQ5_K
                             : scheme.format;
}

WeightFormat format_of_fused_qkv(const TargetScheme& scheme) {
  if (scheme.format == WeightFormat::kQ3_K && scheme.mix != 'S') return WeightFormat::kQ4_K;
  if (scheme.format == WeightFormat::kQ4_K && scheme.mix == 'M') return WeightFormat::kQ5_K;
  if (scheme.format == WeightFormat::kQ5_K && scheme.mix == 'M') return WeightFormat::kQ6_K;
  return scheme.format;
}

}  // namespace

std::string target_names() {
  std::string names;
  const auto add = [&names](std::string_view name) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  };
  for (const CodeRow& row : kCodeRows) add(row.name);
  for (const FloatRow& row : kFloatRows) add(row.name);
  for (const GgufRow& row : kGgufRows) add(row.name);
  return names;
}

Expected<TargetScheme> parse_target(std::string_view name) {
  for (const CodeRow& row : kCodeRows) {
    if (row.name != lower(name)) continue;
    return TargetScheme{.name = std::string(row.name),
                        .spelling = row.spelling,
                        .kind = TargetKind::kCodes,
                        .code = row.code};
  }
  for (const FloatRow& row : kFloatRows) {
    if (row.name != lower(name)) continue;
    return TargetScheme{
        .name = std::string(row.name), .kind = TargetKind::kBlocks, .format = row.format};
  }
  for (const GgufRow& row : kGgufRows) {
    if (row.name != upper(name)) continue;
    return TargetScheme{.name = std::string(row.name),
                        .spelling = Spelling::kGguf,
                        .kind = TargetKind::kBlocks,
                        .format = row.format,
                        .mix = row.mix};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "scheme \"" + std::string(name.substr(0, 60)) + "\": expected keep or one of " +
                        target_names(),
                    "to");
}

uint32_t gguf_file_type(const TargetScheme& scheme) {
  for (const GgufRow& row : kGgufRows) {
    if (row.name == scheme.name) return row.file_type;
  }
  constexpr uint32_t kMxfp4FileType = 38;
  if (scheme.format == WeightFormat::kMXFP4) return kMxfp4FileType;
  if (scheme.format == WeightFormat::kF32) return 0;
  return scheme.format == WeightFormat::kF16 ? 1 : 32;
}

Target target_of(const TargetScheme& scheme, int64_t k, bool search) {
  Target target{.kind = scheme.kind,
                .spelling = scheme.spelling,
                .format = scheme.format,
                .name = scheme.name};
  if (scheme.kind != TargetKind::kCodes) return target;
  target.encoding = {
      .scheme = scheme.code, .group = scheme_info(scheme.code).group, .search = search};
  int32_t& group = target.encoding.group;
  const auto keep = [&](const std::string& why) {
    return Target{.name = "kept: " + std::to_string(k) + " columns are no multiple of " + why};
  };
  const SchemeInfo& info = scheme_info(scheme.code);
  if (info.place != ScalePlace::kGroup) return target;
  while (info.code == CodeKind::kInt4 && group > 32 && k % group != 0) group /= 2;
  return k % group == 0 ? target : keep(std::to_string(group));
}

Target gguf_target(const TargetScheme& scheme, const MatrixPlace& place) {
  WeightFormat format = scheme.format;
  const auto is = [&](std::string_view part) {
    return place.name.find(part) != std::string_view::npos;
  };
  if (layout_of(format).is_integer()) {
    if (place.is_head) {
      if (format != WeightFormat::kQ8_0) format = WeightFormat::kQ6_K;
    } else if (is("attn_v.weight")) {
      format = format_of_values(scheme, place);
    } else if (is("attn_k.weight") && place.num_experts >= 8 && scheme.mix != '\0') {
      format = WeightFormat::kQ8_0;
    } else if (is("ffn_down")) {
      format = format_of_down(scheme, place);
    } else if (is("attn_output.weight")) {
      format = format_of_output(scheme);
    } else if (is("attn_qkv.weight")) {
      format = format_of_fused_qkv(scheme);
    }
    format = format_for(format, place.k);
  }
  return {.kind = TargetKind::kBlocks,
          .spelling = Spelling::kGguf,
          .format = format,
          .name = std::string(format_info(format).name)};
}

}  // namespace sluice
