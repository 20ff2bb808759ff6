// SPDX-License-Identifier: Apache-2.0
// Every architecture against transformers: tiny random checkpoints, in Hugging Face's layout and in
// GGUF (tests/golden/models/make_models.py), with float32 activations and cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
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

constexpr const char* kLists[] = {"models.json", "latent_models.json", "window_models.json"};

std::vector<GoldenModel> rows() {
  std::vector<GoldenModel> models;
  for (const char* list : kLists) {
    const std::vector<GoldenModel> some = testing::read_golden_models(kFolder, list);
    models.insert(models.end(), some.begin(), some.end());
  }
  return models;
}

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

// Writes a copy of the model whose rotary factors from pair `first` on are `factor`.
std::string with_factors(const testing::TemporaryFolder& folder,
                         const std::string& source,
                         size_t first,
                         float factor) {
  std::string bytes = read_whole_file(source);
  const auto checkpoint = Checkpoint::open(source);
  EXPECT_TRUE(checkpoint.has_value());
  const std::span<const std::byte> stored = (*checkpoint)->find("rope_freqs.weight")->data;
  const std::string_view old(reinterpret_cast<const char*>(stored.data()), stored.size());
  const size_t at = bytes.rfind(old);
  EXPECT_EQ(bytes.find(old), at);
  for (size_t i = first; i < old.size() / sizeof(float); ++i) {
    std::memcpy(bytes.data() + at + i * sizeof(float), &factor, sizeof(float));
  }
  const std::string path = folder.at("factors.gguf");
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::vector<float> logits_of(const std::string& path, const std::vector<TokenId>& tokens) {
  auto harness = ModelHarness::create(path, 32, DType::kF32, static_cast<int32_t>(tokens.size()));
  EXPECT_TRUE(harness.has_value()) << harness.error().message;
  return harness ? (*harness)->forward(tokens) : std::vector<float>();
}

// Without rotation the model sees a set of tokens, each through its own past: the first row cannot
// tell, later ones can.
TEST(Models, PairsMayBeMarkedAsUnturned) {
  const testing::TemporaryFolder folder;
  const std::string source = kFolder + "llama3-rope.gguf";
  const std::vector<TokenId> tokens = {3, 9, 4, 1};
  const std::vector<float> turned = logits_of(source, tokens);
  const std::vector<float> still = logits_of(with_factors(folder, source, 0, 1e30F), tokens);
  ASSERT_EQ(turned.size(), still.size());
  const auto row = static_cast<std::ptrdiff_t>(turned.size() / tokens.size());
  EXPECT_TRUE(std::equal(turned.begin(), turned.begin() + row, still.begin()));
  EXPECT_FALSE(std::equal(turned.begin() + row, turned.end(), still.begin() + row));
  for (const float logit : still) ASSERT_TRUE(std::isfinite(logit));
}

TEST(Models, OtherFactorsOutOfRangeAreRefused) {
  const testing::TemporaryFolder folder;
  for (const float factor : {0.0F, -1.0F, 2e5F, 1e29F, 2e30F}) {
    const std::string path = with_factors(folder, kFolder + "llama3-rope.gguf", 1, factor);
    const auto harness = ModelHarness::create(path, 32, DType::kF32, 4);
    ASSERT_FALSE(harness.has_value()) << factor;
    EXPECT_NE(harness.error().message.find("or 1e30 for none"), std::string::npos)
        << harness.error().message;
  }
}

// A directory with only configuration and tokenizer: weights are made up, equal at each load.
TEST(Models, DummyWeightsComeFromTheConfigurationAlone) {
  const nlohmann::json document = nlohmann::json::parse(read_whole_file(kFolder + "models.json"));
  for (const nlohmann::json& entry : document["models"]) {
    const auto name = entry["name"].get<std::string>();
    const testing::TemporaryFolder folder;
    nlohmann::json config = nlohmann::json::parse(read_whole_file(kFolder + name + "/config.json"));
    nlohmann::json& text = config.contains("text_config") ? config["text_config"] : config;
    for (const char* key : {"vocab_size", "vocab_size_per_layer_input"}) {
      if (text.contains(key)) text[key] = 440;
    }
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
