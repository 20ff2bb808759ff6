// SPDX-License-Identifier: Apache-2.0
// Families whose windowed layers differ from the full ones in more than the window: what their
// files say, in each of their spellings. The golden logits of models_test.cpp hold the computation;
// here each key that a reader could ignore changes them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/model.h"
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

const std::string kModels = golden_folder() + "/models/";

std::vector<float> logits_of(const std::string& path) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < 30; ++i) tokens.push_back(3 + i * 17 % 60);
  auto harness = ModelHarness::create(path, 32, DType::kF32, static_cast<int32_t>(tokens.size()));
  EXPECT_TRUE(harness.has_value()) << harness.error().message;
  return harness ? (*harness)->forward(tokens) : std::vector<float>();
}

using Changes = std::vector<std::pair<const char*, Json>>;

void expect_each_matters(const std::string& name, const Changes& changes) {
  const std::vector<float> usual = logits_of(kModels + name);
  for (const auto& [place, value] : changes) {
    EditedModel edited(name);
    edited.json[Json::json_pointer(place)] = value;
    EXPECT_NE(logits_of(edited.path()), usual) << name << ' ' << place;
  }
}

template <typename Value>
std::vector<Value> of_layers(const ModelConfig& config, Value LayerConfig::*field) {
  std::vector<Value> values;
  for (const LayerConfig& layer : config.layers) values.push_back(layer.*field);
  return values;
}

using Ints = std::vector<int32_t>;

TEST(Llama4, LayersWithPositionsSeeTheirChunk) {
  const auto config = read_model_config_at(kModels + "llama4");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(of_layers(*config, &LayerConfig::window), (Ints{11, 11, 0, 11, 11}));
  EXPECT_EQ(of_layers(*config, &LayerConfig::rope), (Ints{0, 0, 1, 0, 0}));
  EXPECT_EQ(of_layers(*config, &LayerConfig::is_chunked),
            (std::vector<bool>{true, true, false, true, true}));
  EXPECT_EQ(of_layers(*config, &LayerConfig::norms_qk),
            (std::vector<bool>{true, true, false, true, true}));
  EXPECT_EQ(config->qk_norm, QkNorm::kRotatedHead);
  EXPECT_EQ(config->ropes[0].style, kernels::RopeStyle::kInterleaved);
  EXPECT_EQ(config->ropes[0].query_scale.beta, 0);
  EXPECT_EQ(config->ropes[1].freq_factors, std::vector<float>{kernels::kUnturnedFactor});
  EXPECT_EQ(config->ropes[1].query_scale.context, 7);
  EXPECT_EQ(config->ropes[1].query_scale.shift, 1);
}

// Two widths: of dense halves, and of experts and the shared one.
TEST(Llama4, ExpertsAreInEveryNthLayerOrAsListed) {
  const auto config = read_model_config_at(kModels + "llama4");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(of_layers(*config, &LayerConfig::ffn_hidden), (Ints{56, 24, 56, 24, 56}));
  EXPECT_EQ(of_layers(*config, &LayerConfig::shared_hidden), (Ints{0, 24, 0, 24, 0}));
  EXPECT_TRUE(config->moe.scales_inputs);
  EXPECT_FALSE(config->moe.router.normalize);
  EditedModel edited("llama4");
  edited.json.erase("moe_layers");
  const auto counted = read_model_config_at(edited.path());
  ASSERT_TRUE(counted.has_value()) << counted.error().message;
  EXPECT_EQ(of_layers(*counted, &LayerConfig::ffn), of_layers(*config, &LayerConfig::ffn));
}

TEST(Llama4, FilesImplyWhatTheyDoNotSay) {
  const auto config = read_model_config_at(kModels + "llama4-file.gguf");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(of_layers(*config, &LayerConfig::window), (Ints{8192, 8192, 8192, 0}));
  EXPECT_EQ(of_layers(*config, &LayerConfig::rope), (Ints{0, 0, 0, 1}));
  EXPECT_EQ(config->ropes[1].query_scale.beta, 0.1);
  EXPECT_EQ(config->ropes[1].query_scale.context, 8192);
  EXPECT_EQ(config->qk_norm, QkNorm::kRotatedHead);
  EXPECT_FALSE(config->qk_norm_weights);
}

TEST(Llama4, WhatItsLayersCannotBeIsRefused) {
  EditedModel two("llama4");
  two.json["num_experts_per_tok"] = 2;
  EXPECT_NE(two.error().find("num_experts_per_tok: found 2, expected 1"), std::string::npos)
      << two.error();
  EditedModel sliding("llama4");
  sliding.json["layer_types"][0] = "sliding_attention";
  EXPECT_NE(sliding.error().find("expected full_attention or chunked_attention"), std::string::npos)
      << sliding.error();
  EditedModel chunked("exaone4");
  chunked.json["layer_types"][0] = "chunked_attention";
  EXPECT_NE(chunked.error().find("expected full_attention or sliding_attention"), std::string::npos)
      << chunked.error();
  EditedModel few("llama4");
  few.json["no_rope_layers"] = {1, 0};
  EXPECT_NE(few.error().find("no_rope_layers: found 2 elements"), std::string::npos) << few.error();
}

TEST(Llama4, EveryKeyMatters) {
  expect_each_matters("llama4",
                      {{"/attention_chunk_size", 12},
                       {"/layer_types/0", "full_attention"},
                       {"/no_rope_layers/0", 0},
                       {"/use_qk_norm", false},
                       {"/attn_temperature_tuning", false},
                       {"/attn_scale", 0.5},
                       {"/floor_scale", 8},
                       {"/rms_norm_eps", 0.1},
                       {"/rope_parameters/factor", 2.0}});
}

TEST(MimoV2, PublishedKeysSayWhatTransformersWrites) {
  const auto written = read_model_config_at(kModels + "mimo-v2");
  const auto published = read_model_config_at(kModels + "mimo-v2-published");
  const auto file = read_model_config_at(kModels + "mimo-v2.gguf");
  ASSERT_TRUE(written.has_value()) << written.error().message;
  ASSERT_TRUE(published.has_value()) << published.error().message;
  ASSERT_TRUE(file.has_value()) << file.error().message;
  for (const ModelConfig* config : {&*written, &*published, &*file}) {
    EXPECT_EQ(of_layers(*config, &LayerConfig::window), (Ints{0, 9, 9, 0, 9}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::num_kv_heads), (Ints{2, 4, 4, 2, 4}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::rope), (Ints{0, 1, 1, 0, 1}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::ffn_hidden), (Ints{56, 24, 24, 24, 24}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::value_dim), (Ints{16, 16, 16, 16, 16}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::has_sinks),
              (std::vector<bool>{false, true, true, false, true}));
    EXPECT_EQ(config->ropes[0].rotary_dim, 8);
    EXPECT_EQ(config->ropes[0].freq_base, 5e4F);
    EXPECT_EQ(config->ropes[1].freq_base, 500.0F);
    EXPECT_FLOAT_EQ(config->value_scale, 0.6F);
    EXPECT_EQ(config->moe.router.score, kernels::RouterScore::kSigmoid);
  }
  EXPECT_EQ(written->ropes[1].rotary_dim, 12);
  EXPECT_EQ(published->ropes[1].rotary_dim, 8);
}

// Planes of K and V differ, and so do the groups of both kinds of layers.
TEST(MimoV2, ValuesTakeTheirOwnRoomInTheCache) {
  const auto harness = ModelHarness::create(kModels + "mimo-v2", 32, DType::kF32, 8);
  ASSERT_TRUE(harness.has_value()) << harness.error().message;
  const std::vector<LayerGroup> groups = (*harness)->layer_groups();
  ASSERT_EQ(groups.size(), 2U);
  for (const LayerGroup& group : groups) {
    const bool is_full = group.spec.window == 0;
    ASSERT_EQ(group.spec.planes.size(), 2U);
    EXPECT_EQ(group.spec.planes[0].width, 24);
    EXPECT_EQ(group.spec.planes[1].width, 16);
    EXPECT_EQ(group.spec.planes[0].num_heads, is_full ? 2 : 4);
  }
}

TEST(MimoV2, OtherHeadsOfWindowedLayersAreRefused) {
  for (const char* key : {"swa_num_attention_heads", "swa_head_dim", "swa_v_head_dim"}) {
    EditedModel edited("mimo-v2-published");
    edited.json[key] = 4;
    EXPECT_NE(edited.error().find(std::string(key) + ": found 4"), std::string::npos)
        << edited.error();
  }
}

TEST(MimoV2, EveryKeyMatters) {
  expect_each_matters("mimo-v2-published",
                      {{"/attention_value_scale", 1.0},
                       {"/sliding_window_size", 9},
                       {"/rope_theta", 500.0},
                       {"/swa_rope_theta", 5e4},
                       {"/partial_rotary_factor", 0.5},
                       {"/routed_scaling_factor", 1.0},
                       {"/norm_topk_prob", false},
                       {"/num_experts_per_tok", 1}});
}

TEST(Step3p5, PublishedKeysSayWhatTransformersWrites) {
  const auto published = read_model_config_at(kModels + "step3p5");
  const auto written = read_model_config_at(kModels + "step3p7");
  const auto file = read_model_config_at(kModels + "step3p5.gguf");
  ASSERT_TRUE(published.has_value()) << published.error().message;
  ASSERT_TRUE(written.has_value()) << written.error().message;
  ASSERT_TRUE(file.has_value()) << file.error().message;
  for (const ModelConfig* config : {&*published, &*written, &*file}) {
    EXPECT_EQ(of_layers(*config, &LayerConfig::window), (Ints{0, 9, 9, 0, 9}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::num_heads), (Ints{4, 6, 6, 4, 6}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::num_kv_heads), (Ints{2, 2, 2, 2, 2}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::ffn_hidden), (Ints{56, 24, 24, 24, 24}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::shared_hidden), (Ints{0, 40, 40, 40, 40}));
    EXPECT_EQ(config->ropes[0].rotary_dim, 8);
    EXPECT_EQ(config->ropes[1].rotary_dim, 16);
    EXPECT_EQ(config->ropes[0].freq_base, 5e4F);
    EXPECT_EQ(config->ropes[1].freq_base, 500.0F);
    EXPECT_TRUE(config->gates_heads);
    EXPECT_EQ(config->moe.router.epsilon, 0);
    EXPECT_FLOAT_EQ(config->moe.router.scale, 1.7F);
  }
  for (const ModelConfig* config : {&*published, &*file}) {
    EXPECT_EQ(of_layers(*config, &LayerConfig::expert_limit),
              (std::vector<float>{0, 0, 0.05F, 0.07F, 0}));
    EXPECT_EQ(of_layers(*config, &LayerConfig::dense_limit),
              (std::vector<float>{0.09F, 0, 0, 0.1F, 0.2F}));
  }
  EXPECT_EQ(published->norm_offset, 1);
  EXPECT_EQ(file->norm_offset, 0);
}

TEST(Step3p5, RotationsAreEqualInAllLayersOfAKind) {
  EditedModel edited("step3p5");
  edited.json["rope_theta"][3] = 7.0;
  EXPECT_NE(edited.error().find("expected one number for all layers of a kind"), std::string::npos)
      << edited.error();
}

TEST(Step3p5, EveryKeyMatters) {
  expect_each_matters("step3p5",
                      {{"/sliding_window", 8},
                       {"/swiglu_limits/2", 0.0},
                       {"/swiglu_limits_shared/0", 0.0},
                       {"/swiglu_limits_shared/3", 0.0},
                       {"/moe_router_scaling_factor", 1.0},
                       {"/moe_top_k", 1},
                       {"/rope_scaling/factor", 2.0},
                       {"/partial_rotary_factors", {1, 1, 1, 1, 1, 1}},
                       {"/rope_theta", 500.0}});
}

}  // namespace
}  // namespace sluice
