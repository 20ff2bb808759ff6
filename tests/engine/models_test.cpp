// SPDX-License-Identifier: Apache-2.0
// Every architecture against transformers: tiny random checkpoints, in Hugging Face's layout and in
// GGUF (tests/golden/models/make_models.py), float32 activations and cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/model_harness.h"

namespace sluice {
namespace {

using testing::ModelHarness;

// SLUICE_GOLDEN_MODELS: another folder of the same layout.
const std::string kFolder = [] {
  const char* other = std::getenv("SLUICE_GOLDEN_MODELS");
  return other != nullptr ? std::string(other) + "/" : std::string(SLUICE_TEST_DATA) + "/models/";
}();
constexpr double kBound = 1e-4;  // of the logits' range

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Row {
  std::string name;
  std::string path;
  std::vector<TokenId> tokens;
  std::vector<float> logits;
};

std::vector<Row> rows() {
  std::vector<Row> result;
  const nlohmann::json document = nlohmann::json::parse(read_file(kFolder + "models.json"));
  for (const nlohmann::json& entry : document["models"]) {
    const auto name = entry["name"].get<std::string>();
    const std::string raw = read_file(kFolder + name + ".logits.f32");
    Row row;
    row.tokens = entry["tokens"].get<std::vector<TokenId>>();
    row.logits.resize(raw.size() / sizeof(float));
    std::memcpy(row.logits.data(), raw.data(), raw.size());
    for (const char* layout : {"directory", "gguf"}) {
      if (!entry.contains(layout)) continue;
      row.name = name + ", " + layout;
      row.path = kFolder + entry[layout].get<std::string>();
      result.push_back(row);
    }
  }
  return result;
}

// Largest error, as a part of the expected logits' range.
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

TEST(Models, PrefillEqualsTransformers) {
  for (const Row& row : rows()) {
    auto harness =
        ModelHarness::create(row.path, 32, DType::kF32, static_cast<int32_t>(row.tokens.size()));
    EXPECT_TRUE(harness.has_value()) << row.name << ": " << harness.error().message;
    if (!harness) continue;
    const double error = largest_error(row.logits, (*harness)->forward(row.tokens));
    EXPECT_LE(error, kBound) << row.name;
    std::printf("%-36s %.2g\n", row.name.c_str(), error);
  }
}

TEST(Models, StepByStepAndInstructionSetsGiveThePrefillsBits) {
  for (const Row& row : rows()) {
    const auto num_tokens = static_cast<int32_t>(row.tokens.size());
    std::vector<float> expected;
    for (const char* isa : {"scalar", "avx2", "avx512"}) {
      if (!kernels::Device::create({.isa = isa, .threads = 1})) continue;
      for (const int32_t piece : {num_tokens, 1, 7}) {
        auto harness = ModelHarness::create(row.path, 8, DType::kBF16, num_tokens, isa);
        ASSERT_TRUE(harness.has_value()) << row.name << ": " << harness.error().message;
        std::vector<float> logits;
        for (int32_t begin = 0; begin < num_tokens; begin += piece) {
          const int32_t end = std::min(num_tokens, begin + piece);
          const std::vector<TokenId> part(row.tokens.begin() + begin, row.tokens.begin() + end);
          const std::vector<float> some = (*harness)->forward(part, begin);
          logits.insert(logits.end(), some.begin(), some.end());
        }
        if (expected.empty()) expected = logits;
        ASSERT_EQ(logits.size(), expected.size());
        EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
            << row.name << ", " << isa << ", pieces of " << piece;
      }
    }
  }
}

// A directory with configuration and tokenizer only: weights are made up, the same each time.
TEST(Models, DummyWeightsComeFromTheConfigurationAlone) {
  const nlohmann::json document = nlohmann::json::parse(read_file(kFolder + "models.json"));
  for (const nlohmann::json& entry : document["models"]) {
    const auto name = entry["name"].get<std::string>();
    const std::string folder = ::testing::TempDir() + "dummy-" + name;
    std::filesystem::create_directories(folder);
    nlohmann::json config = nlohmann::json::parse(read_file(kFolder + name + "/config.json"));
    config["vocab_size"] = 440;
    std::ofstream(folder + "/config.json") << config.dump();
    std::ofstream(folder + "/tokenizer.json")
        << read_file(std::string(SLUICE_TEST_DATA) + "/tokenizer/json/qwen.json");
    std::vector<std::vector<TokenId>> answers;
    for (int run = 0; run < 2; ++run) {
      Config options;
      options.model = folder;
      options.load_format = "dummy";
      options.threads = 1;
      options.kv_cache_memory = 1 << 22;
      auto engine = create_engine(options);
      ASSERT_TRUE(engine.has_value()) << name << ": " << engine.error().message;
      EXPECT_GT((*engine)->model().num_parameters, 440 * 32) << name;
      ValidRequest request;
      request.prompt.push_back({{5, 6, 7, 8, 9}});
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
