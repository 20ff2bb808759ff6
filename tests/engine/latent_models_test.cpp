// SPDX-License-Identifier: Apache-2.0
// Models of latent attention from configurations as published: scale of scores, router, cache; and
// what is refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/models/model_spec.h"
#include "engine/plan/model_plan.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_store.h"
#include "kvcache/store/kv_storage.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/edited_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// DeepSeek-V3's configuration with fewer layers, three of them dense.
Json deepseek_v3() {
  return Json::parse(R"({"model_type":"deepseek_v3","hidden_size":7168,"intermediate_size":18432,
    "num_hidden_layers":4,"num_attention_heads":128,"num_key_value_heads":128,"q_lora_rank":1536,
    "kv_lora_rank":512,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
    "n_routed_experts":256,"num_experts_per_tok":8,"moe_intermediate_size":2048,"n_shared_experts":1,
    "n_group":8,"topk_group":4,"norm_topk_prob":true,"routed_scaling_factor":2.5,
    "first_k_dense_replace":3,"max_position_embeddings":163840,"rms_norm_eps":1e-6,
    "rope_theta":10000,"vocab_size":129280,"topk_method":"noaux_tc","scoring_func":"sigmoid",
    "rope_scaling":{"type":"yarn","factor":40,"mscale":1.0,"mscale_all_dim":1.0,"beta_fast":32,
    "beta_slow":1,"original_max_position_embeddings":4096}})");
}

class LatentModels : public ::testing::Test {
 protected:
  Expected<ModelConfig> read(const Json& json) {
    std::ofstream(folder_.at("config.json")) << json.dump();
    SLUICE_TRY(checkpoint_, Checkpoint::open(folder_.path(), LoadFormat::kDummy));
    SLUICE_TRY(spec_, find_model_spec(*checkpoint_));
    return read_model_config(*spec_, *checkpoint_);
  }

  const testing::TemporaryFolder folder_;
  std::unique_ptr<Checkpoint> checkpoint_;
  const ModelSpec* spec_ = nullptr;
};

TEST_F(LatentModels, YarnScalesScoresAndNotRotations) {
  const auto config = read(deepseek_v3());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  const double m = 0.1 * std::log(40.0) + 1;
  EXPECT_NEAR(m * m, 1.874, 1e-3);
  EXPECT_NEAR(double{config->attention_scale}, m * m / std::sqrt(192.0), 1e-7);
  EXPECT_EQ(config->ropes.front().attention_factor, 1.0F);
  EXPECT_EQ(config->ropes.front().rotary_dim, 64);
  Json plain = deepseek_v3();
  plain.erase("rope_scaling");
  const auto unscaled = read(plain);
  ASSERT_TRUE(unscaled.has_value());
  EXPECT_NEAR(double{unscaled->attention_scale}, 1 / std::sqrt(192.0), 1e-7);
}

// 1,152 bytes a token and layer, 70 KB for 61 layers.
TEST_F(LatentModels, ATokenTakesOneLatentInEachLayer) {
  const auto config = read(deepseek_v3());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  WeightStore weights(*checkpoint_, DeviceType::kCpu);
  const auto model = spec_->build(*config, {.max_model_len = 16}, weights);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::vector<LayerGroup> groups = (*model)->layer_groups(DType::kBF16);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].spec.kind, KvGroupKind::kLatent);
  EXPECT_EQ(groups[0].spec.num_layers, 4);
  int64_t bytes = 0;
  for (const KvPlane& plane : groups[0].spec.planes) {
    EXPECT_EQ(plane.num_heads, 1);
    bytes += kernels::kv_head_bytes(plane.dtype, plane.width, 1);
  }
  EXPECT_EQ(bytes, 1152);
}

// The published configuration alone gives the plan: 70,272 bytes of cache a token, in blocks of
// 1.1 MB; weights in FP8 with a scale for 128 of them, but what the absorbed form multiplies by,
// embedding and head.
TEST_F(LatentModels, ThePlanOfDeepseekV3IsThatOfItsShapes) {
  Json json = deepseek_v3();
  json["num_hidden_layers"] = 61;
  json["num_nextn_predict_layers"] = 1;
  json["tie_word_embeddings"] = false;
  json["torch_dtype"] = "bfloat16";
  json["quantization_config"] = {{"activation_scheme", "dynamic"},
                                 {"fmt", "e4m3"},
                                 {"quant_method", "fp8"},
                                 {"weight_block_size", {128, 128}}};
  const auto config = read(json);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  WeightStore weights(*checkpoint_, DeviceType::kCpu);
  const auto model = spec_->build(*config, {.max_model_len = 8192}, weights);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::vector<LayerGroup> groups = (*model)->layer_groups(DType::kBF16);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(kv_block_bytes(groups[0].spec, 1), 70'272);
  EXPECT_EQ(kv_block_bytes(groups[0].spec, 16), 1'124'352);
  const double attention = 1536.0 * 7168 + 1536.0 * 128 * 192 + 576.0 * 7168 + 7168.0 * 128 * 128;
  const double experts = 257 * 3 * 7168.0 * 2048;
  const double dense = 3 * 7168.0 * 18432;
  const double absorbed = 128 * 256 * 512.0;
  const double bytes = (61 * attention + 58 * experts + 3 * dense) * (1 + 4.0 / 128) +
                       61 * 2 * absorbed + 58 * 4 * 256 * 7168.0 + 2 * 2 * 129280 * 7168.0;
  EXPECT_NEAR(static_cast<double>(weights.packed_bytes()), bytes, 0.01 * bytes);
}

TEST_F(LatentModels, EveryFamilyHasItsRouter) {
  const auto v3 = read(deepseek_v3());
  ASSERT_TRUE(v3.has_value());
  EXPECT_EQ(v3->moe.router.score, kernels::RouterScore::kSigmoid);
  EXPECT_EQ(v3->moe.router.group_rule, kernels::GroupRule::kTwoBest);
  EXPECT_TRUE(v3->moe.choice_bias);
  Json v2 = deepseek_v3();
  v2["model_type"] = "deepseek_v2";
  v2["topk_method"] = "group_limited_greedy";
  EXPECT_FALSE(read(v2).has_value());  // scoring_func is V3's
  v2["scoring_func"] = "softmax";
  const auto limited = read(v2);
  ASSERT_TRUE(limited.has_value()) << limited.error().message;
  EXPECT_EQ(limited->moe.router.score, kernels::RouterScore::kSoftmax);
  EXPECT_EQ(limited->moe.router.group_rule, kernels::GroupRule::kBest);
  EXPECT_EQ(limited->moe.router.num_groups, 8);
  EXPECT_FALSE(limited->moe.router.normalize);
  v2["topk_method"] = "greedy";
  const auto greedy = read(v2);
  ASSERT_TRUE(greedy.has_value());
  EXPECT_EQ(greedy->moe.router.num_groups, 0);
  v2["topk_method"] = "noaux_tc";
  EXPECT_FALSE(read(v2).has_value());
  Json kimi = deepseek_v3();
  kimi["model_type"] = "kimi_k2";
  kimi["n_group"] = 1;
  kimi["topk_group"] = 1;
  kimi["q_lora_rank"] = nullptr;
  const auto whole = read(kimi);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->moe.router.num_groups, 0);
  EXPECT_EQ(whole->latent.q_rank, 0);
}

// By V3's layers or its attention alone, under names of their own.
TEST_F(LatentModels, FamiliesWithOtherNamesAreReadAsV3) {
  Json joyai = deepseek_v3();
  joyai["model_type"] = "joyai_llm_flash";
  joyai["n_group"] = 1;
  joyai["topk_group"] = 1;
  joyai["first_k_dense_replace"] = 1;
  const auto flash = read(joyai);
  ASSERT_TRUE(flash.has_value()) << flash.error().message;
  EXPECT_EQ(flash->moe.router.score, kernels::RouterScore::kSigmoid);
  EXPECT_TRUE(flash->moe.choice_bias);
  for (const std::string name : {"youtu", "youtu_llm"}) {
    const auto youtu = read({{"model_type", name},
                             {"hidden_size", 2048},
                             {"intermediate_size", 6144},
                             {"num_hidden_layers", 32},
                             {"vocab_size", 128256},
                             {"rope_theta", 1600000}});
    ASSERT_TRUE(youtu.has_value()) << youtu.error().message;
    EXPECT_FALSE(youtu->has(FfnKind::kExperts));
    EXPECT_EQ(youtu->layers.front().num_heads, 16);
    EXPECT_EQ(youtu->latent.q_rank, 1536);
    EXPECT_EQ(youtu->ropes.front().style, kernels::RopeStyle::kInterleaved);
  }
}

struct FileShape {
  uint32_t layers = 4;
  uint64_t vocabulary = 64;
  uint32_t experts = 4;
  uint32_t score = 0;   // 0: the file does not say
  uint32_t groups = 0;  // likewise
};

// Reads the configuration of such a GGUF file. It has one tensor.
Expected<ModelConfig> read_file(const FileShape& shape) {
  GgufImage image;
  image.set_string("general.architecture", "deepseek2");
  const auto set = [&](const std::string& key, uint32_t value) {
    image.set("deepseek2." + key, GgufType::kUint32, raw(value));
  };
  for (const auto& [key, value] : {std::pair("context_length", 256U),
                                   std::pair("embedding_length", 1U),
                                   std::pair("feed_forward_length", 32U),
                                   std::pair("attention.head_count", 2U),
                                   std::pair("attention.kv_lora_rank", 32U),
                                   std::pair("attention.key_length_mla", 24U),
                                   std::pair("attention.value_length_mla", 16U),
                                   std::pair("rope.dimension_count", 8U),
                                   std::pair("expert_count", shape.experts),
                                   std::pair("expert_used_count", 2U),
                                   std::pair("expert_feed_forward_length", 32U)}) {
    set(key, value);
  }
  set("block_count", shape.layers);
  if (shape.score != 0) set("expert_gating_func", shape.score);
  if (shape.groups != 0) set("expert_group_count", shape.groups);
  image.set("deepseek2.attention.layer_norm_rms_epsilon", GgufType::kFloat32, raw(0.25F));
  image.tensors.push_back({"token_embd.weight", 2, {1, shape.vocabulary}, /*F32*/ 0, 0});
  const testing::TemporaryFolder folder;
  std::string bytes = image.header();
  bytes.resize((bytes.size() + 31) / 32 * 32 + shape.vocabulary * sizeof(float));
  std::ofstream(folder.at("latents.gguf"), std::ios::binary) << bytes;
  return testing::read_model_config_at(folder.at("latents.gguf"));
}

// A file without a gating function means a softmax, but for the first ones of GLM-4.7-Flash, which
// its layers and vocabulary tell.
TEST(LatentFiles, FirstFilesOfGlmFlashMeanSigmoids) {
  constexpr uint64_t kVocabulary = 154880;
  const auto score = [](uint32_t layers, uint64_t vocabulary, uint32_t stated = 0) {
    const auto config =
        read_file({.layers = layers, .vocabulary = vocabulary, .score = stated});
    EXPECT_TRUE(config.has_value()) << config.error().message;
    return config ? config->moe.router.score : kernels::RouterScore::kOneByOne;
  };
  EXPECT_EQ(score(47, kVocabulary), kernels::RouterScore::kSigmoid);
  EXPECT_EQ(score(48, kVocabulary), kernels::RouterScore::kSigmoid);
  EXPECT_EQ(score(46, kVocabulary), kernels::RouterScore::kSoftmax);
  EXPECT_EQ(score(47, 102400), kernels::RouterScore::kSoftmax);
  EXPECT_EQ(score(47, kVocabulary, 1), kernels::RouterScore::kSoftmax);
}

// The first files of DeepSeek's large models do not say that experts are in groups; layers, experts
// and vocabulary tell. A file that says something is believed, and so are those of other models.
TEST(LatentFiles, FirstFilesOfDeepseekMeanGroups) {
  const auto groups = [](const FileShape& shape) {
    const auto config = read_file(shape);
    EXPECT_TRUE(config.has_value()) << config.error().message;
    if (!config) return std::string("none");
    const kernels::Router& router = config->moe.router;
    const char* rule = router.group_rule == kernels::GroupRule::kTwoBest ? " by two" : " by one";
    return std::to_string(router.groups_kept) + " of " + std::to_string(router.num_groups) +
           (router.num_groups > 0 ? rule : "");
  };
  const FileShape v3 = {.layers = 61, .vocabulary = 129280, .experts = 256, .score = 2};
  const FileShape v2 = {.layers = 60, .vocabulary = 102400, .experts = 160};
  EXPECT_EQ(groups(v3), "4 of 8 by two");
  EXPECT_EQ(groups(v2), "3 of 8 by one");
  FileShape other = v3;
  other.groups = 1;
  EXPECT_EQ(groups(other), "0 of 0");
  other = v3;
  other.experts = 384;  // Kimi-K2
  EXPECT_EQ(groups(other), "0 of 0");
  other = v3;
  other.vocabulary = 163840;
  EXPECT_EQ(groups(other), "0 of 0");
  other = v2;
  other.layers = 27;  // V2-Lite
  EXPECT_EQ(groups(other), "0 of 0");
}

// Norms of latents have the file's epsilon; in a directory that of their class.
TEST(LatentFiles, EpsilonsOfLatentsAreTheFiles) {
  const auto config = read_file({});
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->latent.norm_eps, 0.25F);
}

TEST_F(LatentModels, EpsilonsOfLatentsAreTheirClasss) {
  Json json = deepseek_v3();
  json["rms_norm_eps"] = 0.25;
  const auto config = read(json);
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->norm_eps, 0.25F);
  EXPECT_EQ(config->latent.norm_eps, 1e-6F);
}

// 256 bytes more a token in each layer with an indexer; layers without one have a group of their
// own.
TEST_F(LatentModels, IndexersHaveTheirKeysBesideTheLatents) {
  Json json = deepseek_v3();
  json["model_type"] = "deepseek_v32";
  const auto v32 = read(json);
  ASSERT_TRUE(v32.has_value()) << v32.error().message;
  EXPECT_EQ(v32->latent.index_heads, 64);
  EXPECT_EQ(v32->latent.index_top_k, 2048);
  EXPECT_EQ(v32->latent.index_style, kernels::RopeStyle::kHalves);
  EXPECT_EQ(v32->ropes.front().style, kernels::RopeStyle::kInterleaved);
  json["model_type"] = "glm_moe_dsa";
  json["num_hidden_layers"] = 6;
  json["index_topk_freq"] = 3;
  const auto glm = read(json);
  ASSERT_TRUE(glm.has_value()) << glm.error().message;
  EXPECT_EQ(glm->latent.index_heads, 32);
  EXPECT_EQ(glm->latent.index_style, kernels::RopeStyle::kInterleaved);
  std::string choices;
  for (const LayerConfig& layer : glm->layers) {
    choices += layer.key_choice == KeyChoice::kOwn ? 'F' : 'S';
  }
  EXPECT_EQ(choices, "FFSSFS");
  WeightStore weights(*checkpoint_, DeviceType::kCpu);
  const auto model = spec_->build(*glm, {.max_model_len = 16}, weights);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  const std::vector<LayerGroup> groups = (*model)->layer_groups(DType::kBF16);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].layers, (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(kv_block_bytes(groups[0].spec, 1), 3 * (1152 + 256));
  EXPECT_EQ(kv_block_bytes(groups[1].spec, 1), 3 * 1152);
}

TEST_F(LatentModels, WrongIndexersAreRefusedByName) {
  const auto refusal = [this](const char* key, const Json& value) {
    Json json = deepseek_v3();
    json["model_type"] = "glm_moe_dsa";
    json[key] = value;
    const auto refused = read(json);
    EXPECT_FALSE(refused.has_value()) << key;
    return refused.has_value() ? std::string() : refused.error().message;
  };
  EXPECT_NE(refusal("indexer_types", {"shared", "full", "full", "full"}).find("indexer_types"),
            std::string::npos);
  EXPECT_NE(refusal("indexer_types", {"full", "full"}).find("2 layers"), std::string::npos);
  EXPECT_NE(refusal("index_topk_pattern", "FSXS").find("full or shared"), std::string::npos);
  EXPECT_NE(refusal("index_head_dim", 40).find("index_head_dim"), std::string::npos);
  EXPECT_NE(refusal("index_topk", 0).find("index_topk"), std::string::npos);
  EXPECT_NE(refusal("q_lora_rank", nullptr).find("q_lora_rank"), std::string::npos);
  // transformers' name of such layers, and the one that it had before.
  for (const std::string name : {"indexed_attention", "deepseek_sparse_attention"}) {
    Json plain = deepseek_v3();
    plain["layer_types"] = {name, name, name, name};
    EXPECT_FALSE(read(plain).has_value()) << name;
    plain["model_type"] = "glm_moe_dsa";
    EXPECT_TRUE(read(plain).has_value()) << name;
  }
}

TEST_F(LatentModels, WhatHasNoLatentFormIsRefusedByName) {
  Config serve;
  serve.model = golden_folder() + "/models/engine-latents.gguf";
  serve.kv_cache_dtype = "int8";
  serve.max_model_len = 64;
  const auto plan = plan_model(serve, {});
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().message.find("caches latents"), std::string::npos) << plan.error().message;
}

}  // namespace
}  // namespace sluice
