// SPDX-License-Identifier: Apache-2.0
// A quantized matrix in a checkpoint's form: codes, companions (scales, zero points, ...) and a
// scheme that says how they make weights. PlainReader turns some rows into plain ones
// (plain_rows.h), whatever the scheme; kernels' formats are made of those. The loader
// (engine/weights/quantization.h) knows a scheme's names in a file and its configuration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "quant/format.h"
#include "quant/plain_rows.h"

namespace sluice {

// The element types of a safetensors file.
enum class ElementType : uint8_t { kF32, kF16, kBF16, kE4M3, kE8M0, kI8, kU8, kI32, kI64 };

struct ElementInfo {
  ElementType type;
  std::string_view name;  // the spelling of safetensors
  int32_t bytes;
};

const ElementInfo& element_info(ElementType type);
std::optional<ElementType> element_type(std::string_view name);
// Returns the format of rows of plain floats; none for codes.
std::optional<WeightFormat> float_format(ElementType type);

// The layout of the codes of W[n, k] in a tensor. Words are int32, the first code in the low bits.
enum class CodePacking : uint8_t {
  kBytes,    // [n, k], one code a byte
  kNibbles,  // [n, k / 2] bytes, the first code in the low nibble
  kWords,    // [n, ceil(k * bits / 32)] words along k; codes plus half of their range
  kGptq,     // [k * bits / 32, n] words along k
  kAwq,      // [k, n / 8] words along n: nibble i holds row 8 j + {0, 2, 4, 6, 1, 3, 5, 7}[i]
};

int32_t code_bits(CodeKind code);

enum class ScalePlace : uint8_t {
  kMatrix,  // one scale: [], [1] or [1, 1]
  kRow,     // [n] or [n, 1]; with kGptq and kAwq [1, n]
  kGroup,   // [n, ceil(k / group)]; with kGptq and kAwq [ceil(k / group), n]
  kBlock,   // [ceil(n / 128), ceil(k / 128)]
};

enum class ScaleType : uint8_t {
  kFloat,     // F32, F16 or BF16
  kE4M3,      // F8_E4M3
  kE8M0,      // U8 or F8_E8M0: 2^(e - 127)
  kAnyBlock,  // FP8 in blocks: F32, F16, BF16 or F8_E8M0
};

enum class SecondScale : uint8_t { kNone, kMultiplier, kDivisor };  // F32, one a matrix

// The numbers that are subtracted from codes.
enum class ZeroPoints : uint8_t {
  kNone,    // nothing, or half of the range from unsigned codes
  kBytes,   // I8, in the layout of the scales
  kWords,   // [ceil(n * bits / 32), groups] words along n, moved up like codes
  kGptqV1,  // [groups, n * bits / 32] words along n, one less than the zero point
  kGptqV2,  // likewise, the zero point itself
  kAwq,     // [groups, n / 8] words along n in the order of the codes
};

// A scheme's demand on the rows that its matrix is multiplied with.
enum class SchemeInputs : uint8_t {
  kFloats,     // nothing, or 16 bits
  kInt8Token,  // int8 with a scale per row
  kE4M3Token,  // e4m3 with a scale per row
  kE4M3Group,  // e4m3 with a scale per 128 of k
  kFp4,        // e2m1 in groups; run by --activation-bits
};

struct WeightScheme {
  std::string_view name;  // for people: "GPTQ INT4"
  CodeKind code = CodeKind::kInt8;
  CodePacking packing = CodePacking::kBytes;
  ScalePlace place = ScalePlace::kRow;
  int32_t group = 0;  // weights per scale, for kGroup
  ScaleType scales = ScaleType::kFloat;
  SecondScale second = SecondScale::kNone;
  ZeroPoints zeros = ZeroPoints::kNone;
  SchemeInputs inputs = SchemeInputs::kFloats;
  bool static_inputs = false;    // one scale for all rows, a companion; only with a scale per row
  bool has_group_index = false;  // columns of a group may be apart: kGroupIndex must be there
  bool symmetric = true;         // kGptqV1 and kGptqV2: zero points are half of the range

  bool operator==(const WeightScheme&) const = default;
};

enum class CompanionRole : uint8_t {
  kScales,
  kSecondScale,
  kZeros,
  kGroupIndex,        // I32 [k]: the group of each column; all -1: in order
  kShape,             // I64 [2]: n and k
  kInputScale,        // one float
  kInputSecondScale,  // one float, for kFp4
};

struct Companion {
  CompanionRole role;
  std::string name;  // the file's
  ElementType type;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

struct CodesTensor {
  std::string name;
  ElementType type;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

// The most dimensions of codes; stacked matrices have more than two.
constexpr size_t kMaxCodesDims = 4;

class CodedMatrix {
 public:
  // Checks everything except the values of scales and codes. Errors: kDataLoss or kUnsupported,
  // 'tensor "name": found X, expected Y'. Dimensions of codes and companions before the last two
  // are rows; codes have 2 to kMaxCodesDims, each above 0.
  static Expected<CodedMatrix> create(const WeightScheme& scheme,
                                      CodesTensor codes,
                                      std::vector<Companion> companions);

  [[nodiscard]] const WeightScheme& scheme() const { return scheme_; }

  [[nodiscard]] int64_t n() const { return n_; }

  [[nodiscard]] int64_t k() const { return k_; }

  // Returns the format that kernels read: kF32 if columns of one group are not contiguous
  // (act-order), which no grouped format has.
  [[nodiscard]] WeightFormat format() const;

  // Whether a row's codes are not contiguous.
  [[nodiscard]] bool is_transposed() const {
    return scheme_.packing == CodePacking::kGptq || scheme_.packing == CodePacking::kAwq;
  }

  // Weights per scale along k; 0: one scale for each row.
  [[nodiscard]] int32_t group() const;

  // Whether GPTQ's zero points are those of another version than the scheme's label.
  [[nodiscard]] bool has_other_zeros() const { return has_other_zeros_; }

  // Returns the scale of the rows that the matrix is multiplied with; 0: rows have their own.
  [[nodiscard]] float input_scale() const { return input_scale_; }

  [[nodiscard]] const CodesTensor& codes() const { return codes_; }

  [[nodiscard]] const Companion* companion(CompanionRole role) const;

 private:
  friend class PlainReader;

  CodedMatrix(const WeightScheme& scheme, CodesTensor codes, std::vector<Companion> companions)
      : scheme_(scheme), codes_(std::move(codes)), companions_(std::move(companions)) {}

  Expected<void> take_sizes();
  Expected<void> take_stated_shape();
  Expected<void> check_scales() const;
  Expected<void> check_zeros() const;
  Expected<void> take_zero_version();
  Expected<void> take_group_index();
  Expected<float> one_float(CompanionRole role, float otherwise) const;
  [[nodiscard]] std::optional<WeightFormat> plain_format_of() const;
  [[nodiscard]] int64_t num_groups() const;

  WeightScheme scheme_;
  CodesTensor codes_;
  std::vector<Companion> companions_;
  int64_t n_ = 0;
  int64_t k_ = 0;
  float second_ = 1;  // the multiplier
  float input_scale_ = 0;
  bool has_other_zeros_ = false;
  std::vector<int32_t> group_of_;  // by column, where they are not in order
};

// Reads rows of a matrix, which must outlive the reader. One thread.
class PlainReader {
 public:
  explicit PlainReader(const CodedMatrix& matrix) : matrix_(matrix) {}

  // The result is valid until the next call. Columns of mixed groups have a scale each (group 1).
  const PlainRows& read(int64_t first_row, int32_t num_rows);

 private:
  void read_codes(int64_t first_row, int32_t num_rows);
  void read_scales(int64_t first_row, int32_t num_rows);
  void read_zeros(int64_t first_row, int32_t num_rows);
  void spread_groups(int32_t num_rows);

  const CodedMatrix& matrix_;
  PlainRows rows_{};
  std::vector<uint8_t> codes_;
  std::vector<float> scales_;
  std::vector<uint8_t> zeros_;
  std::vector<float> row_scales_;
};

// An infinite or NaN scale or code of kE4M3.
struct BadValue {
  int64_t row;  // within the given rows
  int64_t column;
  bool is_scale;
};

std::optional<BadValue> find_non_finite(const PlainRows& rows);

// Returns the sum of the squares of one row's weights.
double sum_of_squares(const PlainRows& rows, int32_t row);

}  // namespace sluice
