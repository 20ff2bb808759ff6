// SPDX-License-Identifier: Apache-2.0
// A quantized matrix as a checkpoint has it: codes, companions (scales, zero points, ...) and a
// scheme that says how they make weights. A reader turns some rows into plain ones (plain_rows.h),
// whatever the scheme; kernels' formats are made of those. Which file names a scheme has, and what
// a configuration must say, is the loader's (engine/weights/quantization.h).
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

// What a tensor of a safetensors file is made of.
enum class ElementType : uint8_t { kF32, kF16, kBF16, kE4M3, kE8M0, kI8, kU8, kI32, kI64 };

struct ElementInfo {
  ElementType type;
  std::string_view name;  // as safetensors spells it
  int32_t bytes;
};

const ElementInfo& element_info(ElementType type);
std::optional<ElementType> element_type(std::string_view name);
// The format of rows of plain floats; none for codes.
std::optional<WeightFormat> float_format(ElementType type);

// How the codes of W[n, k] lie in a tensor. Words are int32, whose first code is in the low bits.
enum class CodePacking : uint8_t {
  kBytes,    // [n, k], one code a byte
  kNibbles,  // [n, k / 2] bytes, the first code in the low nibble
  kWords,    // [n, ceil(k * bits / 32)] words along k; codes moved up by half of their range
  kGptq,     // [k * bits / 32, n] words along k
  kAwq,      // [k, n / 8] words along n: nibble i holds row 8 j + {0, 2, 4, 6, 1, 3, 5, 7}[i]
};

int32_t code_bits(CodeKind code);

enum class ScalePlace : uint8_t {
  kMatrix,  // one: [], [1] or [1, 1]
  kRow,     // [n] or [n, 1]; of kGptq and kAwq [1, n]
  kGroup,   // [n, ceil(k / group)]; of kGptq and kAwq [ceil(k / group), n]
  kBlock,   // [ceil(n / 128), ceil(k / 128)]
};

enum class ScaleType : uint8_t {
  kFloat,     // F32, F16 or BF16
  kE4M3,      // F8_E4M3
  kE8M0,      // U8 or F8_E8M0: 2^(e - 127)
  kAnyBlock,  // of FP8 in blocks: F32, F16, BF16 or F8_E8M0
};

enum class SecondScale : uint8_t { kNone, kMultiplier, kDivisor };  // F32, one a matrix

// What is taken off a code.
enum class ZeroPoints : uint8_t {
  kNone,    // nothing, of unsigned codes half of their range
  kBytes,   // I8, as the scales lie
  kWords,   // [ceil(n * bits / 32), groups] words along n, moved up as codes are
  kGptqV1,  // [groups, n * bits / 32] words along n, one less than what is taken off
  kGptqV2,  // the same, what is taken off
  kAwq,     // [groups, n / 8] words along n in the order of the codes
};

// What a scheme says of the rows it is multiplied with.
enum class SchemeInputs : uint8_t {
  kFloats,     // nothing, or 16 bits
  kInt8Token,  // int8 with a scale per row
  kE4M3Token,  // e4m3 with a scale per row
  kE4M3Group,  // e4m3 with a scale per 128 of k
  kFp4,        // e2m1 in groups, which run as --activation-bits says
};

struct WeightScheme {
  std::string_view name;  // for people: "GPTQ INT4"
  CodeKind code = CodeKind::kInt8;
  CodePacking packing = CodePacking::kBytes;
  ScalePlace place = ScalePlace::kRow;
  int32_t group = 0;  // weights per scale of kGroup
  ScaleType scales = ScaleType::kFloat;
  SecondScale second = SecondScale::kNone;
  ZeroPoints zeros = ZeroPoints::kNone;
  SchemeInputs inputs = SchemeInputs::kFloats;
  bool static_inputs = false;    // the rows' scale is a companion, where there is one for each row
  bool has_group_index = false;  // columns of a group may lie apart: kGroupIndex must be there
  bool symmetric = true;         // of kGptqV1 and kGptqV2: zero points are half of the range

  bool operator==(const WeightScheme&) const = default;
};

enum class CompanionRole : uint8_t {
  kScales,
  kSecondScale,
  kZeros,
  kGroupIndex,        // I32 [k]: the group of each column; all -1: in order
  kShape,             // I64 [2]: n and k
  kInputScale,        // one float
  kInputSecondScale,  // one float of kFp4
};

struct Companion {
  CompanionRole role;
  std::string name;  // in the file
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

// Dimensions that codes have at most; stacked matrices have more than two.
constexpr size_t kMaxCodesDims = 4;

class CodedMatrix {
 public:
  // Everything is checked here but values of scales and codes. kDataLoss or kUnsupported: "tensor
  // "name": found X, expected Y". Dimensions of codes and companions before the last two are rows;
  // codes have 2 to kMaxCodesDims, none of them 0.
  static Expected<CodedMatrix> create(const WeightScheme& scheme,
                                      CodesTensor codes,
                                      std::vector<Companion> companions);

  [[nodiscard]] const WeightScheme& scheme() const { return scheme_; }

  [[nodiscard]] int64_t n() const { return n_; }

  [[nodiscard]] int64_t k() const { return k_; }

  // What kernels read: kF32 where columns of one group do not lie together (act-order), which no
  // format of groups has.
  [[nodiscard]] WeightFormat format() const;

  // A row's codes do not lie together.
  [[nodiscard]] bool is_transposed() const {
    return scheme_.packing == CodePacking::kGptq || scheme_.packing == CodePacking::kAwq;
  }

  // Weights per scale along k; 0: one scale for each row.
  [[nodiscard]] int32_t group() const;

  // Zero points of GPTQ that are another version's than the scheme's label.
  [[nodiscard]] bool has_other_zeros() const { return has_other_zeros_; }

  // Of rows that it is multiplied with; 0: from the rows.
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
  float second_ = 1;  // multiplier
  float input_scale_ = 0;
  bool has_other_zeros_ = false;
  std::vector<int32_t> group_of_;  // by column, where they are not in order
};

// Rows of a matrix, which must outlive it. For one thread.
class PlainReader {
 public:
  explicit PlainReader(const CodedMatrix& matrix) : matrix_(matrix) {}

  // Valid until the next call. Columns of mixed groups have a scale each (group 1).
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

// A scale, or a code of kE4M3, that is infinite or NaN.
struct BadValue {
  int64_t row;  // of those given
  int64_t column;
  bool is_scale;
};

std::optional<BadValue> find_non_finite(const PlainRows& rows);

// The squares of one row's weights, summed.
double sum_of_squares(const PlainRows& rows, int32_t row);

}  // namespace sluice
