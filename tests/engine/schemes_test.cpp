// SPDX-License-Identifier: Apache-2.0
// Whole quantized checkpoints of other packages (tests/golden/formats): logits against transformers
// with the packages' decoded weights, and equal bits by every instruction set and chunking.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::GoldenModel;
using testing::ModelHarness;
using testing::relative_error;

const std::string kFolder = golden_folder() + "/formats/";

std::vector<float> floats_of(const std::string& file) {
  const std::string raw = testing::read_whole_file(kFolder + file);
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), values.size() * sizeof(float));
  return values;
}

// Models with golden logits of a kind: "logits" with unchanged inputs, "rounded" with inputs
// rounded as in the scheme.
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

double error_of(const GoldenModel& model, int32_t bits) {
  const auto num_tokens = static_cast<int32_t>(model.tokens.size());
  auto harness = ModelHarness::create(model.path, bits, DType::kF32, num_tokens);
  EXPECT_TRUE(harness.has_value()) << model.name << ": " << harness.error().message;
  if (!harness) return INFINITY;
  const double error = relative_error(model.logits, (*harness)->forward(model.tokens));
  std::printf("%-32s %2d bits %.2g\n", model.name.c_str(), bits, error);
  return error;
}

// INT8 with a scale per row takes int8 rows at any number of bits.
bool has_int8_rows(const std::string& name) { return name.starts_with("ct-int8"); }

// Allows for sums of floats in another order.
constexpr double kSameValues = 1e-5;

// Inputs are finer here than in these schemes: int8 with a scale per 32.
bool has_finer_inputs(const std::string& name) {
  return std::ranges::any_of(std::initializer_list<const char*>{"nvfp4", "mxfp4", "mixed", "w4a8"},
                             [&](const char* part) { return name.find(part) != name.npos; });
}

TEST(Schemes, FloatActivationsGiveTheLogitsOfTheDecodedWeights) {
  for (const GoldenModel& model : models_with("logits")) {
    if (has_int8_rows(model.name)) continue;
    EXPECT_LE(error_of(model, 32), kSameValues) << model.name;
  }
}

// The groups of columns are those of g_idx, whatever the configuration says of their order.
TEST(Schemes, TheIndexOfGroupsCountsWithoutItsFlag) {
  size_t num_ordered = 0;
  for (GoldenModel& model : models_with("logits")) {
    std::string config = testing::read_whole_file(model.path + "/config.json");
    const std::string flag = "\"desc_act\": true";
    const size_t at = config.find(flag);
    if (at == std::string::npos) continue;
    ++num_ordered;
    const testing::TemporaryFolder folder;
    std::filesystem::copy(model.path, folder.path(), std::filesystem::copy_options::recursive);
    std::ofstream(folder.at("config.json"))
        << config.replace(at, flag.size(), "\"desc_act\": false");
    model.path = folder.path();
    EXPECT_LE(error_of(model, 32), kSameValues) << model.name;
  }
  EXPECT_EQ(num_ordered, 3U);
}

TEST(Schemes, RoundedActivationsGiveTheLogitsOfRoundedInputs) {
  size_t num_finer = 0;
  for (const GoldenModel& model : models_with("rounded")) {
    if (!has_finer_inputs(model.name)) {
      EXPECT_LE(error_of(model, 8), kSameValues) << model.name;
      continue;
    }
    // The error must not exceed the scheme's own rounding of inputs.
    ++num_finer;
    GoldenModel as_they_are = model;
    as_they_are.logits = floats_of(model.name + ".logits.f32");
    EXPECT_LE(error_of(as_they_are, 8), relative_error(as_they_are.logits, model.logits))
        << model.name;
  }
  EXPECT_GT(num_finer, 5U);
}

// Matrices with common inputs, which are quantized once: by a static scale or by dynamic ones.
TEST(Schemes, StaticAndDynamicInputsOfOneProductAreRefused) {
  struct Case {
    const char* folder;
    bool is_float;
    const char* dynamic;  // layers that take dynamic scales; the others have static ones
    const char* tensor;
  };

  const Case cases[] = {
      {"ct-int8-static",
       false,
       "re:.*layers\\.0\\.self_attn\\.k_proj",
       "layers.0.self_attn.k_proj.weight"},
      {"ct-fp8", true, "re:.*layers\\.0\\.self_attn\\.q_proj", "layers.0.self_attn.k_proj.weight"},
      {"modelopt-fp8-experts",
       true,
       "re:.*layers\\.0\\..*experts\\.1\\.down_proj",
       "layers.0.mlp.experts.1.down_proj.weight"},
      {"modelopt-fp8-experts",
       true,
       "re:.*layers\\.0\\..*experts\\.2\\.(gate|up)_proj",
       "layers.0.mlp.experts.2.gate_proj.weight"},
  };
  for (const Case& one : cases) {
    const testing::TemporaryFolder folder;
    std::filesystem::copy(kFolder + one.folder, folder.path());
    const char* const type = one.is_float ? "float" : "int";
    const Json tokens = {{"num_bits", 8}, {"type", type}, {"strategy", "token"}, {"dynamic", true}};
    const Json fixed = {
        {"num_bits", 8}, {"type", type}, {"strategy", "tensor"}, {"dynamic", false}};
    const Json weights = {
        {"num_bits", 8}, {"type", type}, {"strategy", one.is_float ? "tensor" : "channel"}};
    Json config = Json::parse(testing::read_whole_file(folder.at("config.json")));
    const Json ignored = config["quantization_config"]["ignore"];
    const auto group = [&](const Json& inputs, const char* target) {
      return Json{{"weights", weights}, {"input_activations", inputs}, {"targets", {target}}};
    };
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", one.is_float ? "float-quantized" : "int-quantized"},
        {"quantization_status", "compressed"},
        {"ignore", ignored},
        {"config_groups", {{"a", group(fixed, "Linear")}, {"b", group(tokens, one.dynamic)}}}};
    std::ofstream(folder.at("config.json")) << config.dump();
    const auto harness = ModelHarness::create(folder.path(), 8, DType::kF32, 4);
    ASSERT_FALSE(harness.has_value()) << one.dynamic;
    const std::string& message = harness.error().message;
    EXPECT_EQ(harness.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(message.find(one.tensor), std::string::npos) << message;
    EXPECT_NE(message.find("scale of its inputs"), std::string::npos) << message;
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
