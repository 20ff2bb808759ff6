// SPDX-License-Identifier: Apache-2.0
// Quantized checkpoints of other packages, whole (tests/golden/formats): logits against those of
// transformers with the packages' decoded weights, and the same bits by every instruction set and
// cut of a prompt.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::GoldenModel;
using testing::ModelHarness;

const std::string kFolder = std::string(SLUICE_TEST_DATA) + "/formats/";

std::vector<float> floats_of(const std::string& file) {
  const std::string raw = testing::read_whole_file(kFolder + file);
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), values.size() * sizeof(float));
  return values;
}

// Those whose logits of a kind there are: "logits" with inputs as they are, "rounded" with inputs
// as the scheme has them.
std::vector<GoldenModel> models_with(const std::string& kind) {
  std::vector<GoldenModel> models;
  const Json all = Json::parse(testing::read_whole_file(kFolder + "formats.json"));
  for (const auto& [name, entry] : all.items()) {
    if (!entry["logits"].contains(kind)) continue;
    models.push_back({.name = name,
                      .path = kFolder + name,
                      .tokens = entry["tokens"].get<std::vector<TokenId>>(),
                      .logits = floats_of(entry["logits"][kind].get<std::string>())});
  }
  return models;
}

// Root of the mean squared error, as a part of the expected logits' spread.
double relative_error(const std::vector<float>& expected, const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return INFINITY;
  double mean = 0;
  for (const float x : expected) mean += x / static_cast<double>(expected.size());
  double errors = 0;
  double spread = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto x = static_cast<double>(expected[i]);
    errors += (x - static_cast<double>(actual[i])) * (x - static_cast<double>(actual[i]));
    spread += (x - mean) * (x - mean);
  }
  return std::sqrt(errors / spread);
}

double error_of(const GoldenModel& model, int32_t bits) {
  const auto num_tokens = static_cast<int32_t>(model.tokens.size());
  auto harness = ModelHarness::create(model.path, bits, DType::kF32, num_tokens);
  EXPECT_TRUE(harness.has_value()) << model.name << ": " << harness.error().message;
  if (!harness) return INFINITY;
  const double error = relative_error(model.logits, (*harness)->forward(model.tokens));
  std::printf("%-32s %2d bits %.2g\n", model.name.c_str(), bits, error);
  return error;
}

// INT8 of a scale a row takes int8 rows whatever the bits.
bool has_int8_rows(const std::string& name) { return name.starts_with("ct-int8"); }

TEST(Schemes, FloatActivationsGiveTheLogitsOfTheDecodedWeights) {
  for (const GoldenModel& model : models_with("logits")) {
    if (has_int8_rows(model.name)) continue;
    EXPECT_LE(error_of(model, 32), 1e-5) << model.name;
  }
}

// One code that rounds the other way changes a logit by more than the order of sums does. NVFP4 and
// MXFP4 have finer inputs here than their schemes.
TEST(Schemes, RoundedActivationsGiveTheLogitsOfRoundedInputs) {
  for (const GoldenModel& model : models_with("rounded")) {
    const bool is_exact = model.name.find("fp8") != std::string::npos || has_int8_rows(model.name);
    EXPECT_LE(error_of(model, 8), is_exact ? 5e-3 : 0.5) << model.name;
  }
}

TEST(Schemes, PiecesAndInstructionSetsGiveTheSameBits) {
  for (const GoldenModel& model : models_with("logits")) {
    testing::expect_same_bits_everywhere(model, [](int32_t) { return 8; });
    if (HasFailure()) return;
  }
}

TEST(Schemes, WideActivationsGiveTheSameBitsEverywhere) {
  for (const GoldenModel& model : models_with("logits")) {
    testing::expect_same_bits_everywhere(model, [](int32_t) { return 16; });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sluice
