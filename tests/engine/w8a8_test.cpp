// SPDX-License-Identifier: Apache-2.0
// INT8 W8A8 checkpoints of compressed-tensors against torch: decoded weights and inputs rounded to
// int8 per token (tests/golden/w8a8/make_w8a8.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "tests/support/model_harness.h"

namespace sluice {
namespace {

using testing::ModelHarness;

const std::string kFolder = std::string(SLUICE_TEST_DATA) + "/w8a8/";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Row {
  std::string name;
  std::vector<TokenId> tokens;
  std::vector<float> logits;
};

std::vector<Row> rows() {
  std::vector<Row> result;
  const nlohmann::json document = nlohmann::json::parse(read_file(kFolder + "w8a8.json"));
  for (const nlohmann::json& entry : document["models"]) {
    Row row{.name = entry["name"], .tokens = entry["tokens"], .logits = {}};
    const std::string raw = read_file(kFolder + row.name + ".logits.f32");
    row.logits.resize(raw.size() / sizeof(float));
    std::memcpy(row.logits.data(), raw.data(), raw.size());
    result.push_back(std::move(row));
  }
  return result;
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

// Sums in another order could move a value across a rounding boundary, so that a code of an input
// differs by one and the error is some 1e-3; in these models none does.
TEST(W8A8, PrefillEqualsTorch) {
  for (const Row& row : rows()) {
    const auto num_tokens = static_cast<int32_t>(row.tokens.size());
    auto harness = ModelHarness::create(kFolder + row.name, 32, DType::kF32, num_tokens);
    ASSERT_TRUE(harness.has_value()) << row.name << ": " << harness.error().message;
    const double error = relative_error(row.logits, (*harness)->forward(row.tokens));
    EXPECT_LE(error, 1e-5) << row.name;
    std::printf("%-20s %.2g\n", row.name.c_str(), error);
  }
}

// Chunks, instruction sets and --activation-bits, which such a checkpoint decides itself.
TEST(W8A8, PiecesInstructionSetsAndActivationBitsGiveTheSameBits) {
  for (const Row& row : rows()) {
    const auto num_tokens = static_cast<int32_t>(row.tokens.size());
    std::vector<float> expected;
    for (const char* isa : {"scalar", "avx2", "avx512"}) {
      if (!kernels::Device::create({.isa = isa, .threads = 1})) continue;
      for (const int32_t piece : {num_tokens, 1, 7}) {
        // The head of these is no integer, so that its activations are floats whatever the bits.
        const int32_t bits = piece == 7 ? 16 : 8;
        auto harness =
            ModelHarness::create(kFolder + row.name, bits, DType::kBF16, num_tokens, isa);
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

TEST(W8A8, InspectionNamesTheType) {
  const auto checkpoint = Checkpoint::open(kFolder + "llama-w8a8");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const std::string text = (*checkpoint)->describe(false);
  EXPECT_NE(text.find("blk.0.attn_q.weight  INT8 [40, 64]"), std::string::npos) << text;
  EXPECT_NE(text.find("output.weight  BF16 [40, 71]"), std::string::npos) << text;
}

// What the kernels read: a byte a weight, its padding, and a scale per output.
TEST(W8A8, ThePlanCountsCodesAndScales) {
  const auto checkpoint = Checkpoint::open(kFolder + "llama-w8a8");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  WeightStore store(**checkpoint);
  ASSERT_TRUE(store.matrix("blk.0.attn_q.weight", 64, 40).has_value());
  EXPECT_EQ(store.packed_bytes(), 4 * (64 + 16 * 64));
}

}  // namespace
}  // namespace sluice
