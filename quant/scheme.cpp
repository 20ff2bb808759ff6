// SPDX-License-Identifier: Apache-2.0
#include "quant/scheme.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr ElementInfo kElements[] = {
    {ElementType::kF32, "F32", 4},
    {ElementType::kF16, "F16", 2},
    {ElementType::kBF16, "BF16", 2},
    {ElementType::kE4M3, "F8_E4M3", 1},
    {ElementType::kE8M0, "F8_E8M0", 1},
    {ElementType::kI8, "I8", 1},
    {ElementType::kU8, "U8", 1},
    {ElementType::kI32, "I32", 4},
    {ElementType::kI64, "I64", 8},
};

std::string shape_text(std::span<const uint64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string shape_text(std::initializer_list<int64_t> shape) {
  std::vector<uint64_t> dims;
  for (const int64_t dim : shape) dims.push_back(static_cast<uint64_t>(dim));
  return shape_text(dims);
}

tl::unexpected<Error> wrong(const std::string& name,
                            const std::string& found,
                            const std::string& expected,
                            ErrorCode code = ErrorCode::kDataLoss) {
  return make_error(code, "tensor \"" + name + "\": found " + found + ", expected " + expected);
}

uint64_t num_elements(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t dim : shape) count *= dim;
  return count;
}

bool is_float(ElementType type) { return float_format(type).has_value(); }

bool is_scale_type(ScaleType scales, ElementType type) {
  switch (scales) {
    case ScaleType::kFloat:
      return is_float(type);
    case ScaleType::kE4M3:
      return type == ElementType::kE4M3;
    case ScaleType::kE8M0:
      return type == ElementType::kE8M0 || type == ElementType::kU8;
    case ScaleType::kAnyBlock:
      return is_float(type) || type == ElementType::kE8M0;
  }
  return false;
}

const char* scale_types(ScaleType scales) {
  switch (scales) {
    case ScaleType::kFloat:
      return "F32, F16 or BF16";
    case ScaleType::kE4M3:
      return "F8_E4M3";
    case ScaleType::kE8M0:
      return "U8 or F8_E8M0";
    case ScaleType::kAnyBlock:
      return "F32, F16, BF16 or F8_E8M0";
  }
  return "";
}

ElementType codes_type(const WeightScheme& scheme) {
  switch (scheme.packing) {
    case CodePacking::kBytes:
      return scheme.code == CodeKind::kE4M3 ? ElementType::kE4M3 : ElementType::kI8;
    case CodePacking::kNibbles:
      return ElementType::kU8;
    case CodePacking::kWords:
    case CodePacking::kGptq:
    case CodePacking::kAwq:
      return ElementType::kI32;
  }
  return ElementType::kU8;
}

bool is_all(std::span<const std::byte> bytes, uint8_t value) {
  return std::ranges::all_of(bytes, [value](std::byte byte) { return byte == std::byte{value}; });
}

// Returns the byte of zero points that equal those of codes without any.
uint8_t neutral_byte(ZeroPoints zeros, int32_t bits) {
  if (zeros == ZeroPoints::kBytes) return 0;
  if (zeros == ZeroPoints::kGptqV1) return bits == 4 ? 0x77 : 0x7F;
  return bits == 4 ? 0x88 : 0x80;
}

}  // namespace

const ElementInfo& element_info(ElementType type) { return kElements[static_cast<size_t>(type)]; }

std::optional<ElementType> element_type(std::string_view name) {
  for (const ElementInfo& info : kElements) {
    if (info.name == name) return info.type;
  }
  return std::nullopt;
}

std::optional<WeightFormat> float_format(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return WeightFormat::kF32;
    case ElementType::kF16:
      return WeightFormat::kF16;
    case ElementType::kBF16:
      return WeightFormat::kBF16;
    default:
      return std::nullopt;
  }
}

int32_t code_bits(CodeKind code) {
  switch (code) {
    case CodeKind::kInt4:
    case CodeKind::kE2M1:
      return 4;
    case CodeKind::kInt8:
    case CodeKind::kE4M3:
      return 8;
  }
  return 0;
}

Expected<CodedMatrix> CodedMatrix::create(const WeightScheme& scheme,
                                          CodesTensor codes,
                                          std::vector<Companion> companions) {
  CodedMatrix matrix(scheme, std::move(codes), std::move(companions));
  SLUICE_TRY_VOID(matrix.take_sizes());
  SLUICE_TRY_VOID(matrix.check_scales());
  SLUICE_TRY_VOID(matrix.check_zeros());
  SLUICE_TRY_VOID(matrix.take_zero_version());
  SLUICE_TRY_VOID(matrix.take_group_index());
  SLUICE_TRY(const float second, matrix.one_float(CompanionRole::kSecondScale, 1));
  if (scheme.second != SecondScale::kNone) {
    matrix.second_ = scheme.second == SecondScale::kDivisor ? 1 / second : second;
  }
  if (scheme.static_inputs) {
    SLUICE_TRY(matrix.input_scale_, matrix.one_float(CompanionRole::kInputScale, 0));
  }
  const std::string& name = matrix.codes_.name;
  if (!matrix.group_of_.empty()) return matrix;
  const std::optional<WeightFormat> format = matrix.plain_format_of();
  if (!format) {
    return wrong(name,
                 "groups of " + std::to_string(matrix.group()),
                 "another size: multiples of 32, of NVFP4 16",
                 ErrorCode::kUnsupported);
  }
  if (layout_of(*format).has_int32_sums() && matrix.k_ > kMaxChannelK) {
    return wrong(
        name, std::to_string(matrix.k_) + " columns", "at most " + std::to_string(kMaxChannelK));
  }
  return matrix;
}

std::optional<WeightFormat> CodedMatrix::plain_format_of() const {
  return plain_format(scheme_.code,
                      group(),
                      scheme_.zeros != ZeroPoints::kNone,
                      scheme_.inputs == SchemeInputs::kInt8Token);
}

WeightFormat CodedMatrix::format() const {
  return group_of_.empty() ? *plain_format_of() : WeightFormat::kF32;
}

int32_t CodedMatrix::group() const {
  constexpr int32_t kBlock = 128;
  if (scheme_.place == ScalePlace::kBlock) return kBlock;
  return scheme_.place == ScalePlace::kGroup ? scheme_.group : 0;
}

int64_t CodedMatrix::num_groups() const { return group() == 0 ? 1 : ceil_div(k_, group()); }

const Companion* CodedMatrix::companion(CompanionRole role) const {
  const auto found = std::ranges::find(companions_, role, &Companion::role);
  return found == companions_.end() ? nullptr : &*found;
}

Expected<void> CodedMatrix::take_sizes() {
  const std::vector<uint64_t>& shape = codes_.shape;
  const ElementType type = codes_type(scheme_);
  if (codes_.type != type) {
    return wrong(codes_.name,
                 "type " + std::string(element_info(codes_.type).name),
                 std::string(element_info(type).name) + " for " + std::string(scheme_.name));
  }
  if (shape.size() < 2 || shape.size() > (is_transposed() ? 2U : kMaxCodesDims)) {
    return wrong(codes_.name, "shape " + shape_text(shape), "a matrix");
  }
  if (std::ranges::find(shape, uint64_t{0}) != shape.end()) {
    return wrong(codes_.name, "shape " + shape_text(shape), "1 row and column or more");
  }
  constexpr uint64_t kMost = std::numeric_limits<int32_t>::max() / 16;
  const uint64_t last = shape.back();
  const uint64_t others = num_elements(shape) / last;
  if (last > kMost || others > kMost) {
    return wrong(codes_.name, "shape " + shape_text(shape), "fewer rows and columns");
  }
  const auto per_word = static_cast<uint64_t>(32 / code_bits(scheme_.code));
  uint64_t n = others;
  uint64_t k = last;
  switch (scheme_.packing) {
    case CodePacking::kBytes:
      break;
    case CodePacking::kNibbles:
      k = last * 2;
      break;
    case CodePacking::kWords:
      k = last * per_word;
      break;
    case CodePacking::kGptq:
      k = others * per_word;
      n = last;
      break;
    case CodePacking::kAwq:
      k = others;
      n = last * per_word;
      break;
  }
  n_ = static_cast<int64_t>(n);
  k_ = static_cast<int64_t>(k);
  return take_stated_shape();
}

// Takes the stated shape: words may have room for more columns than it has.
Expected<void> CodedMatrix::take_stated_shape() {
  const Companion* stated = companion(CompanionRole::kShape);
  if (stated == nullptr) return {};
  int64_t sizes[2] = {0, 0};
  const bool is_wide = stated->type == ElementType::kI64;
  const bool is_pair = num_elements(stated->shape) == 2 && stated->shape.size() == 1;
  if (!is_pair || (!is_wide && stated->type != ElementType::kI32)) {
    return wrong(stated->name, "another type or shape", "I64 [2]");
  }
  for (size_t i = 0; i < 2; ++i) {
    int32_t narrow = 0;
    const std::byte* at = stated->bytes.data() + i * (is_wide ? sizeof(int64_t) : sizeof(narrow));
    std::memcpy(is_wide ? static_cast<void*>(&sizes[i]) : &narrow,
                at,
                is_wide ? sizeof(int64_t) : sizeof(narrow));
    if (!is_wide) sizes[i] = narrow;
  }
  const int64_t per_word = 32 / code_bits(scheme_.code);
  if (sizes[0] != n_ || sizes[1] > k_ || sizes[1] <= k_ - per_word) {
    return wrong(stated->name,
                 std::to_string(sizes[0]) + " and " + std::to_string(sizes[1]),
                 "the size of the codes, " + shape_text({n_, k_}));
  }
  k_ = sizes[1];
  return {};
}

Expected<void> CodedMatrix::check_scales() const {
  const Companion* scales = companion(CompanionRole::kScales);
  if (scales == nullptr) return wrong(codes_.name, "no scales", "some");
  if (!is_scale_type(scheme_.scales, scales->type)) {
    return wrong(scales->name,
                 "type " + std::string(element_info(scales->type).name),
                 scale_types(scheme_.scales));
  }
  const std::vector<uint64_t>& shape = scales->shape;
  const uint64_t count = num_elements(shape);
  const uint64_t last = shape.empty() ? 1 : shape.back();
  const auto has_shape = [&](int64_t rows, int64_t columns) {
    return shape.size() >= 2 && last == static_cast<uint64_t>(columns) &&
           count / last == static_cast<uint64_t>(rows);
  };
  constexpr int64_t kBlock = 128;
  const auto refuse = [&](const std::string& expected) {
    return wrong(scales->name, "shape " + shape_text(shape), expected);
  };
  switch (scheme_.place) {
    case ScalePlace::kMatrix:
      return count == 1 ? Expected<void>() : refuse("[1], one scale");
    case ScalePlace::kRow: {
      const bool whole = count == static_cast<uint64_t>(n_);
      if (whole && (is_transposed() || last == 1 || shape.size() < codes_.shape.size())) return {};
      return refuse(shape_text({n_, 1}) + ", one scale per row");
    }
    case ScalePlace::kGroup: {
      const int64_t groups = num_groups();
      const std::string more = ", a scale per " + std::to_string(group());
      if (!is_transposed()) {
        return has_shape(n_, groups) ? Expected<void>() : refuse(shape_text({n_, groups}) + more);
      }
      return has_shape(groups, n_) ? Expected<void>() : refuse(shape_text({groups, n_}) + more);
    }
    case ScalePlace::kBlock: {
      if (codes_.shape.size() > 2 && codes_.shape[codes_.shape.size() - 2] % kBlock != 0) {
        return wrong(codes_.name,
                     "stacked matrices of shape " + shape_text(codes_.shape),
                     "rows that are multiples of 128",
                     ErrorCode::kUnsupported);
      }
      const int64_t rows = ceil_div(n_, kBlock);
      return has_shape(rows, num_groups())
                 ? Expected<void>()
                 : refuse(shape_text({rows, num_groups()}) + ", a scale per 128 x 128");
    }
  }
  return {};
}

Expected<void> CodedMatrix::check_zeros() const {
  const Companion* zeros = companion(CompanionRole::kZeros);
  if (zeros == nullptr) {
    if (scheme_.zeros == ZeroPoints::kNone) return {};
    return wrong(codes_.name, "no zero points", "some, as the scheme is not symmetric");
  }
  const int64_t per_word = 32 / code_bits(scheme_.code);
  const int64_t groups = num_groups();
  ElementType type = ElementType::kI32;
  std::vector<uint64_t> shape;
  switch (scheme_.zeros) {
    case ZeroPoints::kNone:
      return wrong(zeros->name, "zero points", "none of " + std::string(scheme_.name));
    case ZeroPoints::kBytes:
      type = ElementType::kI8;
      shape = {scheme_.place == ScalePlace::kMatrix ? 1 : static_cast<uint64_t>(n_),
               static_cast<uint64_t>(groups)};
      break;
    case ZeroPoints::kWords:
      shape = {static_cast<uint64_t>(ceil_div(n_, per_word)), static_cast<uint64_t>(groups)};
      break;
    case ZeroPoints::kGptqV1:
    case ZeroPoints::kGptqV2:
    case ZeroPoints::kAwq:
      shape = {static_cast<uint64_t>(groups), static_cast<uint64_t>(ceil_div(n_, per_word))};
      break;
  }
  if (zeros->type == type && num_elements(zeros->shape) == num_elements(shape) &&
      (zeros->shape == shape || groups == 1)) {
    return {};
  }
  return wrong(zeros->name,
               std::string(element_info(zeros->type).name) + " " + shape_text(zeros->shape),
               std::string(element_info(type).name) + " " + shape_text(shape));
}

// Tells GPTQ's versions apart by symmetric zero points, whatever the label says, and drops zero
// points that change nothing.
Expected<void> CodedMatrix::take_zero_version() {
  const Companion* zeros = companion(CompanionRole::kZeros);
  if (zeros == nullptr) return {};
  const int32_t bits = code_bits(scheme_.code);
  const bool is_gptq = scheme_.zeros == ZeroPoints::kGptqV1 || scheme_.zeros == ZeroPoints::kGptqV2;
  if (is_gptq && scheme_.symmetric) {
    const ZeroPoints label = scheme_.zeros;
    for (const ZeroPoints version : {ZeroPoints::kGptqV1, ZeroPoints::kGptqV2}) {
      if (is_all(zeros->bytes, neutral_byte(version, bits))) scheme_.zeros = version;
    }
    has_other_zeros_ = scheme_.zeros != label;
  }
  if (is_all(zeros->bytes, neutral_byte(scheme_.zeros, bits))) scheme_.zeros = ZeroPoints::kNone;
  return {};
}

Expected<void> CodedMatrix::take_group_index() {
  const Companion* index = companion(CompanionRole::kGroupIndex);
  if (index == nullptr) return {};
  const bool is_list = index->type == ElementType::kI32 && index->shape.size() == 1 &&
                       index->shape[0] == static_cast<uint64_t>(k_);
  if (!is_list) return wrong(index->name, "another type or shape", "I32 " + shape_text({k_}));
  std::vector<int32_t> groups(static_cast<size_t>(k_));
  std::memcpy(groups.data(), index->bytes.data(), index->bytes.size());
  if (std::ranges::all_of(groups, [](int32_t each) { return each == -1; })) return {};
  bool in_order = true;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] < 0 || groups[i] >= num_groups()) {
      return wrong(index->name,
                   "group " + std::to_string(groups[i]) + " of column " + std::to_string(i),
                   "0 to " + std::to_string(num_groups() - 1));
    }
    const int64_t usual = group() == 0 ? 0 : static_cast<int64_t>(i) / group();
    in_order = in_order && groups[i] == usual;
  }
  if (!in_order) group_of_ = std::move(groups);
  return {};
}

Expected<float> CodedMatrix::one_float(CompanionRole role, float otherwise) const {
  const Companion* found = companion(role);
  if (found == nullptr) return otherwise;
  const std::optional<WeightFormat> format = float_format(found->type);
  if (!format || num_elements(found->shape) != 1) {
    return wrong(found->name,
                 std::string(element_info(found->type).name) + " " + shape_text(found->shape),
                 "one float");
  }
  float value = 0;
  dequantize_row(*format, found->bytes.data(), 1, &value);
  if (!(value > 0) || !std::isfinite(value) || !std::isfinite(1 / value)) {
    return wrong(found->name, std::to_string(value), "a scale above 0");
  }
  return value;
}

}  // namespace sluice
