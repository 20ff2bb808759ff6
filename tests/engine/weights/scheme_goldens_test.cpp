// SPDX-License-Identifier: Apache-2.0
// Checkpoints of packages that write and decode them (tests/golden/formats): our unrounded decoding
// of every quantized matrix equals the doubles of the package's own code.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "quant/plain_rows.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

const std::string kFolder = golden_folder() + "/formats/";

Json goldens() {
  std::ifstream in(kFolder + "formats.json");
  return Json::parse(in, nullptr, false);
}

std::vector<double> decoded(const CodedMatrix& matrix, bool with_second_scale) {
  std::vector<double> values;
  PlainReader reader(matrix);
  constexpr int32_t kRows = 5;  // reads end inside groups and blocks of rows
  for (int64_t first = 0; first < matrix.n(); first += kRows) {
    const auto count = static_cast<int32_t>(std::min<int64_t>(kRows, matrix.n() - first));
    PlainRows rows = reader.read(first, count);
    if (!with_second_scale) rows.row_scales = nullptr;
    EXPECT_FALSE(find_non_finite(rows).has_value());
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t k = 0; k < rows.k; ++k) values.push_back(plain_value(rows, r, k));
    }
  }
  return values;
}

// The digest of formats.json: every bit of every element counts.
std::string digest(const std::vector<double>& values) {
  uint64_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += (2 * i + 1) * std::bit_cast<uint64_t>(values[i] + 0.0);
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(sum));
  return text;
}

const CheckpointTensor* find_coded(const Checkpoint& checkpoint, const std::string& layer) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.coded && tensor.coded->codes().name.starts_with(layer + ".") &&
        tensor.coded->codes().name.find('.', layer.size() + 1) == std::string::npos) {
      return &tensor;
    }
  }
  return nullptr;
}

// Some packages multiply codes and scales as floats.
std::vector<double> rounded(std::vector<double> values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
  return values;
}

// Compares with the package's doubles; if its second scale is a divisor, before applying it,
// because the reciprocal is rounded to a float.
void expect_decoded(const CodedMatrix& matrix, const Json& want, bool as_floats) {
  ASSERT_EQ(Json({matrix.n(), matrix.k()}), want["shape"]);
  const bool divides = matrix.scheme().second == SecondScale::kDivisor;
  const std::vector<double> values = decoded(matrix, !divides);
  EXPECT_EQ(digest(as_floats ? rounded(values) : values), want["digest"].get<std::string>());
  EXPECT_EQ(divides, want.contains("divisor"));
  if (!divides) return;
  const std::vector<double> divided = decoded(matrix, true);
  const double divisor = want["divisor"].get<double>();
  PlainReader reader(matrix);
  EXPECT_EQ(reader.read(0, 1).row_scales[0], static_cast<float>(1 / divisor));
  for (size_t i = 0; i < want["divided"].size(); ++i) {
    const auto value = want["divided"][i].get<double>();
    EXPECT_NEAR(divided[i], value, std::abs(value) * 0x1p-24);
  }
}

TEST(SchemeGoldens, EveryMatrixDecodesToThePackagesDoubles) {
  const Json all = goldens();
  ASSERT_TRUE(all.is_object());
  size_t num_matrices = 0;
  for (const auto& [name, model] : all.items()) {
    SCOPED_TRACE(name);
    std::string refusal;
    const std::string log = logged_by([&] {
      const auto checkpoint = Checkpoint::open(kFolder + name);
      if (!checkpoint) {
        refusal = checkpoint.error().message;
        return;
      }
      for (const auto& [layer, want] : model["decoded"].items()) {
        SCOPED_TRACE(layer);
        const CheckpointTensor* tensor = find_coded(**checkpoint, layer);
        ASSERT_NE(tensor, nullptr);
        expect_decoded(*tensor->coded, want, model.value("decoded_type", "") == "fp32");
        ++num_matrices;
      }
    });
    EXPECT_EQ(refusal, "") << name;
  }
  EXPECT_GT(num_matrices, 250U);
}

}  // namespace
}  // namespace sluice
