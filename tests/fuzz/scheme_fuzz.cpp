// SPDX-License-Identifier: Apache-2.0
// A matrix of codes of any scheme, with tensors of any type and shape: it is refused in one line,
// or every row can be read, and packed unless a scale or code is no number.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/pack.h"
#include "engine/weights/quantization.h"
#include "quant/plain_rows.h"
#include "quant/scheme.h"
#include "tests/fuzz/target.h"

namespace {

using sluice::CodedMatrix;
using sluice::Companion;
using sluice::ElementType;
using sluice::WeightScheme;

constexpr int kNumSchemes = static_cast<int>(sluice::SchemeKind::kAwq) + 1;
constexpr int kNumElementTypes = static_cast<int>(ElementType::kI64) + 1;
constexpr int64_t kMostWeights = 1 << 16;

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const uint8_t first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }

  int below(int count) { return byte() % count; }

  // So many bytes, zeros behind the last.
  std::vector<std::byte> take(size_t count) {
    std::vector<std::byte> taken(count);
    for (std::byte& each : taken) each = std::byte{byte()};
    return taken;
  }

 private:
  std::span<const uint8_t> bytes_;
};

struct Tensor {
  ElementType type = ElementType::kF32;
  std::vector<uint64_t> shape;
  std::vector<std::byte> bytes;
};

Tensor take_tensor(Input& input) {
  Tensor tensor;
  tensor.type = static_cast<ElementType>(input.below(kNumElementTypes));
  uint64_t count = 1;
  for (int i = input.below(7); i > 0; --i) {
    tensor.shape.push_back(input.byte() % 80U);
    count *= tensor.shape.back();
  }
  count = std::min<uint64_t>(count, kMostWeights);
  if (count == kMostWeights) tensor.shape = {count};
  tensor.bytes = input.take(count * static_cast<size_t>(sluice::element_info(tensor.type).bytes));
  return tensor;
}

WeightScheme take_scheme(Input& input) {
  const auto kind = static_cast<sluice::SchemeKind>(input.below(kNumSchemes));
  WeightScheme scheme = sluice::layer_scheme(kind).weights;
  const int more = input.byte();
  if (kind == sluice::SchemeKind::kInt8 || kind == sluice::SchemeKind::kFp8) {
    scheme.place = static_cast<sluice::ScalePlace>(more % 4);
  } else if (kind == sluice::SchemeKind::kPackedInts || kind == sluice::SchemeKind::kGptq ||
             kind == sluice::SchemeKind::kAwq) {
    scheme.place = static_cast<sluice::ScalePlace>(more % 3);
  }
  if (scheme.place == sluice::ScalePlace::kGroup && scheme.group == 0) {
    scheme.group = 1 + input.byte();
  }
  const bool eight = (more & 0x80) != 0 && kind != sluice::SchemeKind::kAwq;
  if (scheme.code == sluice::CodeKind::kInt4 && eight) scheme.code = sluice::CodeKind::kInt8;
  if (kind == sluice::SchemeKind::kPackedInts && (more & 0x40) != 0) {
    scheme.zeros = sluice::ZeroPoints::kWords;
  }
  if (kind == sluice::SchemeKind::kInt8) {
    if ((more & 0x40) != 0) scheme.zeros = sluice::ZeroPoints::kBytes;
    if ((more & 0x20) != 0) scheme.inputs = sluice::SchemeInputs::kInt8Token;
  }
  scheme.static_inputs = (more & 0x10) != 0;
  scheme.symmetric = (more & 0x08) != 0;
  return scheme;
}

void read_all(const CodedMatrix& matrix) {
  sluice::PlainReader reader(matrix);
  bool is_finite = true;
  for (int64_t first = 0; first < matrix.n(); first += 16) {
    const auto count = static_cast<int32_t>(std::min<int64_t>(16, matrix.n() - first));
    const sluice::PlainRows& rows = reader.read(first, count);
    is_finite = is_finite && !sluice::find_non_finite(rows);
    if (!is_finite) break;
    const double square = sluice::sum_of_squares(rows, 0);
    double sum = 0;
    for (int64_t k = 0; k < rows.k; ++k) {
      const double value = sluice::plain_value(rows, 0, k);
      sum += value * value;
    }
    CHECK(std::abs(sum - square) <= 1e-6 * sum || !std::isfinite(sum));
  }
  std::vector<std::byte> packed(
      static_cast<size_t>(sluice::packed_bytes(matrix.format(), matrix.n(), matrix.k())));
  const auto hash = sluice::pack_checked("fuzz: tensor a", matrix, 0, matrix.n(), packed.data());
  CHECK(is_finite || !hash);
  if (!hash) CHECK(hash.error().message.find(": found ") != std::string::npos);
}

}  // namespace

static int scheme_input(const uint8_t* data, size_t size) {
  Input input({data, size});
  const WeightScheme scheme = take_scheme(input);
  std::vector<Tensor> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(take_tensor(input));
  std::vector<Companion> companions;
  for (int i = 1; i < 8; ++i) {
    const Tensor& tensor = tensors[static_cast<size_t>(i)];
    if (i > 1 && input.below(2) == 0) continue;
    companions.push_back({.role = static_cast<sluice::CompanionRole>(i - 1),
                          .name = "a." + std::to_string(i),
                          .type = tensor.type,
                          .shape = tensor.shape,
                          .bytes = tensor.bytes});
  }
  const Tensor& codes = tensors.front();
  auto matrix = CodedMatrix::create(
      scheme,
      {.name = "a", .type = codes.type, .shape = codes.shape, .bytes = codes.bytes},
      std::move(companions));
  if (!matrix) {
    CHECK(matrix.error().message.starts_with("tensor \"a"));
    CHECK(matrix.error().message.find('\n') == std::string::npos);
    return 0;
  }
  read_all(*matrix);
  return 0;
}

const sluice::fuzz::Target scheme_target("scheme_fuzz", scheme_input);
