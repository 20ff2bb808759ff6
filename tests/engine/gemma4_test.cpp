// SPDX-License-Identifier: Apache-2.0
// What Gemma 4's files say, in each of their spellings, and what must not follow from them: the
// golden logits of models_test.cpp hold the computation, these the reading.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/models/output_layer.h"
#include "engine/weights/checkpoint.h"
#include "kernels/rope_scaling.h"
#include "tests/support/edited_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::EditedModel;
using testing::ModelHarness;
using testing::read_model_config_at;

const std::string kGolden = golden_folder() + "/models/";

std::vector<int32_t> kv_sources(const ModelConfig& config) {
  std::vector<int32_t> sources;
  for (const LayerConfig& layer : config.layers) sources.push_back(layer.kv_from);
  return sources;
}

void expect_equal(const ModelConfig& a, const ModelConfig& b) {
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerConfig& x = a.layers[i];
    const LayerConfig& y = b.layers[i];
    EXPECT_EQ(x.head_dim, y.head_dim) << i;
    EXPECT_EQ(x.num_kv_heads, y.num_kv_heads) << i;
    EXPECT_EQ(x.window, y.window) << i;
    EXPECT_EQ(x.rope, y.rope) << i;
    EXPECT_EQ(x.ffn, y.ffn) << i;
    EXPECT_EQ(x.ffn_hidden, y.ffn_hidden) << i;
    EXPECT_EQ(x.shared_hidden, y.shared_hidden) << i;
    EXPECT_EQ(x.kv_from, y.kv_from) << i;
    EXPECT_EQ(x.values_are_keys, y.values_are_keys) << i;
  }
  EXPECT_EQ(a.layer_input_width, b.layer_input_width);
  EXPECT_EQ(a.layer_input_vocab, b.layer_input_vocab);
  EXPECT_EQ(a.layer_scales, b.layer_scales);
  EXPECT_EQ(a.moe.expert_scales, b.moe.expert_scales);
  EXPECT_EQ(a.logit_soft_cap, b.logit_soft_cap);
  ASSERT_EQ(a.ropes.size(), b.ropes.size());
  for (size_t i = 0; i < a.ropes.size(); ++i) {
    EXPECT_EQ(a.ropes[i].rotary_dim, b.ropes[i].rotary_dim);
    EXPECT_EQ(a.ropes[i].freq_base, b.ropes[i].freq_base);
    EXPECT_EQ(a.ropes[i].style, b.ropes[i].style);
  }
}

TEST(Gemma4, DirectoriesAndFilesSayTheSame) {
  for (const std::string name : {"gemma4", "gemma4-shared", "gemma4-moe", "gemma4-all"}) {
    const auto directory = read_model_config_at(kGolden + name);
    const auto file = read_model_config_at(kGolden + name + ".gguf");
    ASSERT_TRUE(directory.has_value()) << directory.error().message;
    ASSERT_TRUE(file.has_value()) << file.error().message;
    SCOPED_TRACE(name);
    expect_equal(*directory, *file);
  }
}

TEST(Gemma4, FullLayersHaveHeadsOfTheirOwn) {
  const auto config = read_model_config_at(kGolden + "gemma4");
  ASSERT_TRUE(config.has_value());
  for (const LayerConfig& layer : config->layers) {
    const bool is_full = layer.window == 0;
    EXPECT_EQ(layer.head_dim, is_full ? 24 : 16);
    EXPECT_EQ(layer.num_kv_heads, is_full ? 1 : 2);
    EXPECT_EQ(layer.values_are_keys, is_full);
    EXPECT_EQ(layer.rope, is_full ? 0 : 1);
  }
  EXPECT_EQ(config->attention_scale, 1);
  EXPECT_EQ(config->norm_offset, 0);
}

// As transformers writes them: {"1": {"head_dim": 24, ...}}.
TEST(Gemma4, LayersMaySayTheirHeadsByNumber) {
  EditedModel changed("gemma4");
  const auto published = read_model_config_at(kGolden + "gemma4");
  Json& text = changed.text();
  text.erase("global_head_dim");
  text.erase("num_global_key_value_heads");
  for (const char* layer : {"1", "4"}) {
    text["per_layer_config"][layer] = {{"head_dim", 24}, {"num_key_value_heads", 1}};
  }
  const auto written = read_model_config_at(changed.path());
  ASSERT_TRUE(written.has_value()) << written.error().message;
  expect_equal(*written, *published);
  for (const Json& wrong : {Json{{"5", {{"head_dim", 24}}}},
                            Json{{"01", {{"head_dim", 24}}}},
                            Json{{"-1", {{"head_dim", 24}}}},
                            Json{{"1", {{"sliding_window", 24}}}},
                            Json{{"1", {{"head_dim", -24}}}},
                            Json{{"1", 24}},
                            Json(24)}) {
    text["per_layer_config"] = wrong;
    EXPECT_NE(changed.error().find("per_layer_config: found "), std::string::npos) << wrong;
  }
}

// The exponent is over the whole head; only pairs behind the part do not turn.
TEST(Gemma4, ProportionalRotationIsOverWholeHeads) {
  const auto config = read_model_config_at(kGolden + "gemma4");
  ASSERT_TRUE(config.has_value());
  const kernels::RopeParams& full = config->ropes[0];
  EXPECT_EQ(full.rotary_dim, 24);
  EXPECT_EQ(full.style, kernels::RopeStyle::kHalves);
  ASSERT_EQ(full.freq_factors.size(), 12U);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(full.freq_factors[i], i < 3 ? 1.0F : kernels::kUnturnedFactor) << i;
  }
  EXPECT_EQ(full.freq_base, 1e6F);
  EXPECT_EQ(config->ropes[1].rotary_dim, 16);
  EXPECT_EQ(config->ropes[1].freq_base, 1e4F);
  EXPECT_TRUE(config->ropes[1].freq_factors.empty());
  EditedModel changed("gemma4");
  changed.text().erase("rope_parameters");  // the class has these
  const auto usual = read_model_config_at(changed.path());
  ASSERT_TRUE(usual.has_value()) << usual.error().message;
  EXPECT_EQ(usual->ropes[0].freq_factors, full.freq_factors);
  EXPECT_EQ(usual->ropes[0].freq_base, 1e6F);
  EXPECT_EQ(usual->ropes[1].freq_base, 1e4F);
}

TEST(Gemma4, TheLastLayersReadTheLastOfTheirKind) {
  EditedModel changed("gemma4-shared");
  const auto config = read_model_config_at(changed.path());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(kv_sources(*config), (std::vector<int32_t>{-1, -1, -1, -1, 2, 2, 3, 3}));
  for (const LayerConfig& layer : config->layers) {
    EXPECT_EQ(layer.ffn_hidden, layer.kv_from >= 0 ? 80 : 40);
  }
  changed.text()["use_double_wide_mlp"] = false;
  const auto narrow = read_model_config_at(changed.path());
  ASSERT_TRUE(narrow.has_value());
  EXPECT_EQ(narrow->layers.back().ffn_hidden, 40);
  for (const int shared : {7, 8, 9}) {  // 7: no full layer is left
    changed.text()["num_kv_shared_layers"] = shared;
    EXPECT_NE(changed.error().find("num_kv_shared_layers: found " + std::to_string(shared)),
              std::string::npos)
        << changed.error();
  }
}

// A group has the layers that write it; readers add no planes.
TEST(Gemma4, SharedLayersAddNothingToTheCache) {
  const auto checkpoint = Checkpoint::open(kGolden + "gemma4-shared");
  ASSERT_TRUE(checkpoint.has_value());
  const auto harness = ModelHarness::create(kGolden + "gemma4-shared", 32, DType::kF32, 8);
  ASSERT_TRUE(harness.has_value()) << harness.error().message;
  const std::vector<LayerGroup> groups = (*harness)->layer_groups();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].layers, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(groups[1].layers, (std::vector<int32_t>{1, 3}));
  using Readers = std::vector<std::pair<int32_t, int32_t>>;
  EXPECT_EQ(groups[0].readers, (Readers{{4, 2}, {5, 2}}));
  EXPECT_EQ(groups[1].readers, (Readers{{6, 3}, {7, 3}}));
  EXPECT_EQ(groups[0].spec.num_layers, 2);
  EXPECT_EQ(groups[0].spec.planes.front().width, 16);
  EXPECT_EQ(groups[1].spec.planes.front().width, 24);
}

// The class makes the last layer a full one; experts need enable_moe_block.
TEST(Gemma4, DirectoriesAreReadAsTheirClassReadsThem) {
  EditedModel changed("gemma4-moe");
  changed.text()["enable_moe_block"] = false;
  const auto dense = read_model_config_at(changed.path());
  ASSERT_TRUE(dense.has_value()) << dense.error().message;
  EXPECT_EQ(dense->layers.front().ffn, FfnKind::kDense);
  EXPECT_EQ(dense->moe.num_experts, 0);
  changed.text()["enable_moe_block"] = true;
  changed.text()["num_experts"] = nullptr;
  EXPECT_NE(changed.error().find("found no experts"), std::string::npos) << changed.error();
  EditedModel last("gemma4");
  last.text()["layer_types"][4] = "sliding_attention";
  last.text()["use_bidirectional_attention"] = "vision";  // no matter to text
  const auto config = read_model_config_at(last.path());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->layers.back().window, 0);
  last.text()["use_bidirectional_attention"] = "all";
  EXPECT_NE(last.error().find("use_bidirectional_attention"), std::string::npos);
}

TEST(Gemma4, ATableWithFewerRowsThanTokensIsRefused) {
  EditedModel changed("gemma4-shared");
  changed.text()["vocab_size_per_layer_input"] = 70;
  EXPECT_NE(changed.error().find("vocab_size_per_layer_input: found 70, expected at least"),
            std::string::npos)
      << changed.error();
}

// Each key of config.json that a reader could ignore changes the result.
TEST(Gemma4, EveryKeyMatters) {
  const std::vector<TokenId> tokens = {3, 9, 4, 17, 5, 21, 8, 33, 40, 12, 6, 7, 11, 60};
  const auto logits = [&](const std::string& path) {
    auto harness = ModelHarness::create(path, 32, DType::kF32, static_cast<int32_t>(tokens.size()));
    EXPECT_TRUE(harness.has_value()) << harness.error().message;
    return harness ? (*harness)->forward(tokens) : std::vector<float>();
  };
  const std::vector<float> usual = logits(kGolden + "gemma4");
  const std::pair<const char*, Json> changes[] = {
      {"/final_logit_softcapping", 4.0},
      {"/sliding_window", 8},
      {"/rope_parameters/full_attention/partial_rotary_factor", 0.5},
      {"/rope_parameters/full_attention/rope_theta", 1000.0},
      {"/rope_parameters/full_attention/factor", 8.0},
      {"/rope_parameters/sliding_attention/rope_theta", 1000.0},
      {"/rms_norm_eps", 0.1},
      {"/hidden_activation", "silu"},
  };
  for (const auto& [place, value] : changes) {
    EditedModel changed("gemma4");
    changed.text()[Json::json_pointer(place)] = value;
    EXPECT_NE(logits(changed.path()), usual) << place;
  }
}

// Markers of images are never written: no other logit changes, and their own are below all.
TEST(Gemma4, SuppressedTokensHaveNoProbability) {
  const std::vector<TokenId> tokens = {3, 4, 5, 6, 7, 8};
  const auto logits_of = [&](const std::string& path) {
    const auto harness = ModelHarness::create(path, 32, DType::kF32, 16);
    EXPECT_TRUE(harness.has_value()) << harness.error().message;
    return harness ? (*harness)->forward_in_pieces(tokens, 4) : std::vector<float>();
  };
  EditedModel model("gemma4-unified");
  const std::string path = model.path();
  const std::vector<float> all = logits_of(path);
  ASSERT_FALSE(all.empty());
  const size_t vocab = all.size() / tokens.size();
  const std::set<size_t> suppressed = {0, 17, 18, vocab - 1};
  Json list = Json::array();
  for (const size_t id : suppressed) list.push_back(id);
  std::ofstream(path + "/generation_config.json") << Json{{"suppress_tokens", list}};
  const std::vector<float> left = logits_of(path);
  ASSERT_EQ(left.size(), all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(left[i], suppressed.contains(i % vocab) ? kSuppressedLogit : all[i]) << i;
  }
}

}  // namespace
}  // namespace sluice
