// SPDX-License-Identifier: Apache-2.0
// Every architecture against transformers: tiny random checkpoints, in Hugging Face's layout and in
// GGUF (tests/golden/models/make_models.py), with float32 activations and cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::expect_same_bits_everywhere;
using testing::GoldenModel;
using testing::ModelHarness;
using testing::read_whole_file;

// The variable SLUICE_GOLDEN_MODELS selects another folder of the same layout.
const std::string kFolder = [] {
  const char* other = std::getenv("SLUICE_GOLDEN_MODELS");
  return other != nullptr ? std::string(other) + "/" : golden_folder() + "/models/";
}();
constexpr double kBound = 1e-4;  // relative to the logits' range

std::vector<GoldenModel> rows() { return testing::read_golden_models(kFolder, "models.json"); }

// Largest error, relative to the range of the expected logits.
double largest_error(const std::vector<float>& expected, const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error =
        std::fabs(static_cast<double>(expected[i]) - static_cast<double>(actual[i]));
    worst = std::isfinite(error) ? std::max(worst, error) : INFINITY;
  }
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  return worst / (static_cast<double>(*high) - static_cast<double>(*low));
}

TEST(Models, PrefillAndStepByStepEqualTransformers) {
  double worst = 0;
  for (const GoldenModel& model : rows()) {
    const auto num_tokens = static_cast<int32_t>(model.tokens.size());
    double errors[2] = {};
    for (const int32_t piece : {num_tokens, 1}) {
      auto harness = ModelHarness::create(model.path, 32, DType::kF32, num_tokens);
      EXPECT_TRUE(harness.has_value()) << model.name << ": " << harness.error().message;
      if (!harness) continue;
      double& error = errors[piece == 1 ? 1 : 0];
      error = largest_error(model.logits, (*harness)->forward_in_pieces(model.tokens, piece));
      EXPECT_LE(error, kBound) << model.name << ", pieces of " << piece;
      worst = std::max(worst, error);
    }
    std::printf("%-36s %.2g %.2g\n", model.name.c_str(), errors[0], errors[1]);
  }
  std::printf("%-36s %.2g\n", "the worst, of the logits' range", worst);
}

TEST(Models, StepByStepAndInstructionSetsGiveThePrefillsBits) {
  for (const GoldenModel& model : rows()) {
    expect_same_bits_everywhere(model, [](int32_t) { return 8; });
  }
}

// A directory with only configuration and tokenizer: weights are made up, equal at each load.
TEST(Models, DummyWeightsComeFromTheConfigurationAlone) {
  const nlohmann::json document = nlohmann::json::parse(read_whole_file(kFolder + "models.json"));
  for (const nlohmann::json& entry : document["models"]) {
    const auto name = entry["name"].get<std::string>();
    const testing::TemporaryFolder folder;
    nlohmann::json config = nlohmann::json::parse(read_whole_file(kFolder + name + "/config.json"));
    (config.contains("text_config") ? config["text_config"] : config)["vocab_size"] = 440;
    std::ofstream(folder.at("config.json")) << config.dump();
    std::ofstream(folder.at("tokenizer.json"))
        << read_whole_file(golden_folder() + "/tokenizer/json/qwen.json");
    std::vector<std::vector<TokenId>> answers;
    for (int run = 0; run < 2; ++run) {
      Config options;
      options.model = folder.path();
      options.load_format = "dummy";
      options.threads = 1;
      options.kv_cache_memory = 1 << 22;
      auto engine = create_engine(options);
      ASSERT_TRUE(engine.has_value()) << name << ": " << engine.error().message;
      EXPECT_GT((*engine)->model().num_parameters, 440 * 32) << name;
      ValidRequest request;
      request.prompt = {5, 6, 7, 8, 9};
      request.sampling.temperature = 0;
      request.sampling.max_tokens = 6;
      request.sampling.ignore_eos = true;
      testing::CollectingSink sink;
      const testing::Collected answer = sink.wait(*(*engine)->submit(std::move(request), sink));
      EXPECT_EQ(answer.finish_reason, FinishReason::kLength) << name << ": " << answer.error;
      answers.push_back(answer.tokens);
    }
    EXPECT_EQ(answers[0], answers[1]) << name;
  }
}

}  // namespace
}  // namespace sluice
