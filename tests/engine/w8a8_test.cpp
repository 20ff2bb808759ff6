// SPDX-License-Identifier: Apache-2.0
// INT8 W8A8 checkpoints of compressed-tensors against torch: decoded weights and inputs rounded to
// int8 per token (tests/golden/w8a8/make_w8a8.py).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"

namespace sluice {
namespace {

using testing::expect_same_bits_everywhere;
using testing::GoldenModel;
using testing::ModelHarness;
using testing::relative_error;

const std::string kGolden = golden_folder() + "/w8a8/";

std::vector<GoldenModel> rows() { return testing::read_golden_models(kGolden, "w8a8.json"); }

// Sums in another order could move a value across a rounding boundary, changing a code of an input
// by one and giving an error of some 1e-3; in these models none does.
TEST(W8A8, PrefillEqualsTorch) {
  for (const GoldenModel& model : rows()) {
    const auto num_tokens = static_cast<int32_t>(model.tokens.size());
    auto harness = ModelHarness::create(model.path, 32, DType::kF32, num_tokens);
    ASSERT_TRUE(harness.has_value()) << model.name << ": " << harness.error().message;
    const double error = relative_error(model.logits, (*harness)->forward(model.tokens));
    EXPECT_LE(error, 1e-5) << model.name;
    std::printf("%-32s %.2g\n", model.name.c_str(), error);
  }
}

// Chunks, instruction sets and --activation-bits, which such a checkpoint overrides.
TEST(W8A8, PiecesInstructionSetsAndActivationBitsGiveTheSameBits) {
  // The head is not an integer matrix, so its activations are floats at any number of bits.
  for (const GoldenModel& model : rows()) {
    expect_same_bits_everywhere(model, [](int32_t piece) { return piece == 7 ? 16 : 8; });
  }
}

TEST(W8A8, InspectionNamesTheType) {
  const auto checkpoint = Checkpoint::open(kGolden + "llama-w8a8");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const std::string text = (*checkpoint)->describe(false);
  EXPECT_NE(text.find("blk.0.attn_q.weight  INT8 [40, 64]"), std::string::npos) << text;
  EXPECT_NE(text.find("output.weight  BF16 [40, 71]"), std::string::npos) << text;
}

TEST(W8A8, DummyLayersAreInt8AndTheRestIsNot) {
  const auto checkpoint = Checkpoint::open(kGolden + "llama-w8a8", LoadFormat::kDummy);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  WeightStore store(**checkpoint);
  ASSERT_TRUE(store.allocate(1 << 16).has_value());
  const auto q = store.matrix("blk.0.attn_q.weight", 64, 40);
  ASSERT_TRUE(q.has_value());
  EXPECT_EQ(q->format, WeightFormat::kInt8Channel);
  float scale = 0;
  std::memcpy(&scale, q->data, sizeof(scale));
  EXPECT_NEAR(scale, std::sqrt(3.0 / 40) / 127, 1e-6);
  EXPECT_EQ(store.matrix("token_embd.weight", 71, 40)->format, WeightFormat::kBF16);
  EXPECT_EQ(store.matrix("blk.0.ffn_gate_inp.weight", 4, 40)->format, WeightFormat::kBF16);
}

// The plan counts what kernels read: a byte per weight, its padding, and a scale per output.
TEST(W8A8, ThePlanCountsCodesAndScales) {
  const auto checkpoint = Checkpoint::open(kGolden + "llama-w8a8");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  WeightStore store(**checkpoint);
  ASSERT_TRUE(store.matrix("blk.0.attn_q.weight", 64, 40).has_value());
  EXPECT_EQ(store.packed_bytes(), 4 * (64 + 16 * 64));
}

}  // namespace
}  // namespace sluice
