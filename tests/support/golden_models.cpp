// SPDX-License-Identifier: Apache-2.0
#include "tests/support/golden_models.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tests/support/model_harness.h"

namespace sluice::testing {

std::string read_whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<GoldenModel> read_golden_models(const std::string& folder, const std::string& list) {
  std::vector<GoldenModel> models;
  const nlohmann::json document = nlohmann::json::parse(read_whole_file(folder + list));
  for (const nlohmann::json& entry : document["models"]) {
    const auto name = entry["name"].get<std::string>();
    const std::string raw = read_whole_file(folder + name + ".logits.f32");
    GoldenModel model;
    model.tokens = entry["tokens"].get<std::vector<TokenId>>();
    model.logits.resize(raw.size() / sizeof(float));
    std::memcpy(model.logits.data(), raw.data(), raw.size());
    for (const char* layout : {"directory", "gguf"}) {
      if (!entry.contains(layout)) continue;
      model.name = name + ", " + layout;
      model.path = folder + entry[layout].get<std::string>();
      models.push_back(model);
    }
  }
  return models;
}

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

void expect_same_bits_everywhere(const GoldenModel& model, int32_t (*bits_of)(int32_t piece)) {
  const auto num_tokens = static_cast<int32_t>(model.tokens.size());
  std::vector<float> expected;
  for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
    if (!kernels::Device::create({.isa = isa, .threads = 1})) continue;
    for (const int32_t piece : {num_tokens, 1, 7}) {
      auto harness =
          ModelHarness::create(model.path, bits_of(piece), DType::kBF16, num_tokens, isa);
      ASSERT_TRUE(harness.has_value()) << model.name << ": " << harness.error().message;
      const std::vector<float> logits = (*harness)->forward_in_pieces(model.tokens, piece);
      if (expected.empty()) expected = logits;
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
          << model.name << ", " << isa << ", pieces of " << piece;
    }
  }
}

}  // namespace sluice::testing
