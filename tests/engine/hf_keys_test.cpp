// SPDX-License-Identifier: Apache-2.0
// What a directory's configuration promises, and the one-line refusals of what its tensors or
// another key contradict.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/config.h"
#include "engine/run/model_runner.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/shared_model.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

// Returns the error for a copy of a golden directory with an edited config.json.
std::string refusal(const std::string& name, const char* key, const nlohmann::json& value) {
  const std::string source = golden_folder() + "/models/" + name;
  const testing::TemporaryFolder folder;
  std::filesystem::copy(source, folder.path());
  std::ifstream in(source + "/config.json");
  nlohmann::json config = nlohmann::json::parse(in);
  config[key] = value;
  std::ofstream(folder.at("config.json")) << config.dump();
  Config options;
  options.model = folder.path();
  options.kv_cache_memory = 1 << 20;
  const auto planned = plan_model(options, {.num_threads = 1});
  return planned ? "" : planned.error().message;
}

// What a directory's configuration says of the model, without its tensors.
Expected<ModelConfig> read_config_of(const testing::TemporaryFolder& folder) {
  SLUICE_TRY(const auto checkpoint, Checkpoint::open(folder.path(), LoadFormat::kDummy));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  return read_model_config(*spec, *checkpoint);
}

TEST(HfKeys, TensorsThatTheConfigurationPromisesMustBeThere) {
  EXPECT_NE(refusal("llama-tied-mha", "tie_word_embeddings", false)
                .find("config.json: tie_word_embeddings: found false and no tensor lm_head.weight"),
            std::string::npos);
  EXPECT_NE(refusal("llama", "attention_bias", true)
                .find("tensor \"model.layers.0.self_attn.q_proj.bias\" is missing"),
            std::string::npos);
  EXPECT_NE(refusal("llama", "mlp_bias", true).find("bias\" is missing"), std::string::npos)
      << refusal("llama", "mlp_bias", true);
  EXPECT_NE(refusal("gpt-oss", "attention_bias", false).find("have no place"), std::string::npos);
  EXPECT_EQ(refusal("llama", "attention_bias", false), "");
}

TEST(HfKeys, NumbersThatContradictTheFileAreRefused) {
  EXPECT_NE(refusal("llama", "vocab_size", 72)
                .find("config.json: vocab_size: found 72, expected 71, the rows of the embedding"),
            std::string::npos);
  EXPECT_NE(refusal("llama", "rms_norm_eps", 1e30).find("rms_norm_eps: found 1"),
            std::string::npos);
  EXPECT_NE(refusal("llama", "layer_types", {"full_attention"})
                .find("layer_types: found [\"full_attention\"], expected one for each"),
            std::string::npos);
}

// A null power means weights that are not normalized; a missing one means those of a power of 1.
TEST(HfKeys, ANullPowerOfExpertsWeightsIsNoMissingOne) {
  const std::string path = golden_folder() + "/models/dbrx/config.json";
  std::ifstream in(path);
  nlohmann::json experts = nlohmann::json::parse(in)["ffn_config"];
  experts["moe_normalize_expert_weights"] = nullptr;
  EXPECT_NE(refusal("dbrx", "ffn_config", experts)
                .find("ffn_config.moe_normalize_expert_weights: found "),
            std::string::npos)
      << refusal("dbrx", "ffn_config", experts);
  experts.erase("moe_normalize_expert_weights");
  EXPECT_EQ(refusal("dbrx", "ffn_config", experts), "");
}

// Differences too small, or in cases too rare, for logits to show: what a sum is divided by, biases
// that change the choice alone, what a group is worth, and the normalization where no key says it.
TEST(HfKeys, EveryFamilyHasTheRouterOfItsClass) {
  using enum kernels::RouterScore;
  using enum kernels::GroupRule;

  struct Case {
    const char* name;
    kernels::RouterScore score;
    bool choice_bias;
    bool normalizes;
    float epsilon = 0;
    float floor = 0;
    bool gated_shared = false;
    kernels::GroupRule group_rule = kTwoBest;
  };

  constexpr Case kCases[] = {
      {"qwen2-moe", kSoftmax, false, false, 0, 0, /*gated_shared=*/true},
      {"qwen3-moe", kSoftmax, false, false},
      {"qwen3-5-moe", kSoftmax, false, true, 0, 0, /*gated_shared=*/true},
      {"olmoe", kSoftmax, false, false},
      {"mixtral", kSoftmax, false, true},
      {"gpt-oss", kSoftmax, false, true},
      {"granite-moe", kSoftmax, false, true},
      {"hunyuan-moe", kSoftmax, false, true},
      {"gemma4-moe", kSoftmax, false, true},
      {"deepseek-v2", kSoftmax, false, false, 0, 0, false, kBest},
      {"deepseek-v3", kSigmoid, true, true, 1e-20F},
      {"glm4-moe", kSigmoid, true, true, 1e-20F},
      {"glm4-moe-lite", kSigmoid, true, true, 1e-20F},
      {"glm-moe-dsa", kSigmoid, true, true, 1e-20F},
      {"nemotron-h-moe", kSigmoid, true, true, 1e-20F},
      {"solar-open", kSigmoid, true, true, 1e-20F},
      {"hy-v3", kSigmoid, true, true, 1e-20F},
      {"afmoe", kSigmoid, true, true, 1e-20F},
      {"mimo-v2", kSigmoid, true, true, 1e-20F},
      {"minimax-m2", kSigmoid, true, true},
      {"step3p5", kSigmoid, true, true},
      {"lfm2-moe", kSigmoid, true, true, 1e-6F},
      {"ernie4-5-moe", kSoftmax, true, true, 0, 1e-12F},
      {"llama4", kSigmoid, false, false},
  };
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    std::ifstream in(golden_folder() + "/models/" + each.name + "/config.json");
    nlohmann::json json = nlohmann::json::parse(in);
    json.erase("norm_topk_prob");
    const testing::TemporaryFolder folder;
    std::ofstream(folder.at("config.json")) << json.dump();
    const auto checkpoint = Checkpoint::open(folder.path(), LoadFormat::kDummy);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const auto spec = find_model_spec(**checkpoint);
    ASSERT_TRUE(spec.has_value()) << spec.error().message;
    const auto config = read_model_config(**spec, **checkpoint);
    ASSERT_TRUE(config.has_value()) << config.error().message;
    const kernels::Router& router = config->moe.router;
    EXPECT_EQ(router.score, each.score);
    EXPECT_EQ(config->moe.choice_bias, each.choice_bias);
    EXPECT_EQ(router.normalize, each.normalizes);
    EXPECT_EQ(router.epsilon, each.epsilon);
    EXPECT_EQ(router.floor, each.floor);
    EXPECT_EQ(config->moe.gated_shared, each.gated_shared);
    EXPECT_EQ(router.group_rule, each.group_rule);
  }
}

// The activation of the dense halves is also that of the convolutions, which know one.
TEST(HfKeys, ActivationsThatAConvolutionDoesNotHaveAreRefused) {
  for (const char* name : {"bamba", "qwen3-5", "falcon-h1", "granite-hybrid"}) {
    const std::string error = refusal(name, "hidden_act", "gelu_pytorch_tanh");
    EXPECT_NE(error.find("hidden_act: found \"gelu_pytorch_tanh\" for recurrent layers"),
              std::string::npos)
        << name << ": " << error;
    EXPECT_EQ(refusal(name, "hidden_act", "silu"), "") << name;
  }
}

TEST(HfKeys, WhatALayerOfOneHalfCannotBeIsRefused) {
  EXPECT_NE(refusal("nemotron-h", "layers_block_type", {"mamba", "mlp", "conv", "mlp", "mlp"})
                .find("layers_block_type: found an unknown type of layer 2"),
            std::string::npos);
  EXPECT_NE(refusal("nemotron-h", "num_hidden_layers", 4)
                .find("layers_block_type: found 5 elements, expected one for each of 4 layers"),
            std::string::npos);
  EXPECT_NE(refusal("nemotron-h", "mamba_hidden_act", "gelu_pytorch_tanh")
                .find("mamba_hidden_act: found \"gelu_pytorch_tanh\" for recurrent layers"),
            std::string::npos);
  EXPECT_NE(refusal("nemotron-h", "mlp_hidden_act", "silu").find("mlp_hidden_act: found"),
            std::string::npos);
  EXPECT_NE(refusal("nemotron-h-latent", "moe_latent_size", nullptr).find("up_proj"),
            std::string::npos)
      << refusal("nemotron-h-latent", "moe_latent_size", nullptr);
  EXPECT_NE(refusal("nemotron-h", "time_step_limit", {0.1, "large"}).find("time_step_limit: found"),
            std::string::npos);
  EXPECT_EQ(refusal("nemotron-h", "time_step_limit", {0.1, nullptr}), "");
}

TEST(HfKeys, KimiLinearsLayersRotateNothingAndAreListed) {
  constexpr const char* kName = "kimi-linear-published";
  EXPECT_EQ(refusal(kName, "mla_use_nope", true), "");
  EXPECT_NE(refusal(kName, "mla_use_nope", false).find("mla_use_nope: found false, expected true"),
            std::string::npos);
  EXPECT_NE(refusal(kName, "linear_attn_config", nullptr).find("found nothing"), std::string::npos);
  EXPECT_NE(refusal(kName, "moe_router_activation_func", "softmax").find("found \"softmax\""),
            std::string::npos);
}

TEST(HfKeys, FactorsThatHaveNoPlaceAreRefused) {
  const auto expect_refused = [](const char* key, const nlohmann::json& value, const char* what) {
    const std::string error = refusal("falcon-h1", key, value);
    EXPECT_NE(error.find(std::string(key) + ": found " + what), std::string::npos) << error;
  };
  expect_refused("ssm_multipliers", {1, 1, 1, 1}, "4 elements, expected 5 positive numbers");
  expect_refused("ssm_multipliers", {1, 1, 1, 1, -1}, "5 elements");
  expect_refused("mlp_multipliers", {1}, "1 elements");
  expect_refused("key_multiplier", -2, "-2");
  const std::string error = refusal("falcon-h1-norm", "mamba_norm_before_gate", true);
  EXPECT_NE(error.find("mamba_rms_norm: found a norm before the gate"), std::string::npos) << error;
  EXPECT_EQ(refusal("falcon-h1", "mamba_norm_before_gate", true), "");  // it has no norm
}

TEST(HfKeys, ScalingNeedsItsFactor) {
  for (const char* type : {"linear", "dynamic", "llama3"}) {
    EXPECT_NE(refusal("llama", "rope_parameters", {{"rope_type", type}}).find("found nothing"),
              std::string::npos)
        << type;
  }
}

// What dots.llm1's files call the score is the rule of choice, which goes with sigmoids.
TEST(HfKeys, ScoresOfDotsLlm1AreSigmoids) {
  const auto opened_with = [](const char* score) -> std::string {
    const testing::TemporaryFolder folder;
    testing::write_model(folder, "models/dots1", {{"scoring_func", score}});
    const auto config = read_config_of(folder);
    return config ? "" : config.error().message;
  };
  EXPECT_EQ(opened_with("noaux_tc"), "");
  EXPECT_EQ(opened_with("sigmoid"), "");
  EXPECT_NE(opened_with("softmax").find("scoring_func"), std::string::npos);
}

// DeepSeek-R1-0528-Qwen3-8B's value takes the usual factor of YaRN back.
TEST(HfKeys, YarnsFactorOfAttentionMayBeChanged) {
  const auto factor_of = [](const nlohmann::json& more) {
    nlohmann::json scaling = {
        {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
    scaling.update(more);
    const testing::TemporaryFolder folder;
    testing::write_model(folder, "models/qwen3", {{"rope_parameters", scaling}});
    const auto config = read_config_of(folder);
    EXPECT_TRUE(config.has_value()) << config.error().message;
    return config ? config->ropes.front().attention_factor : 0;
  };
  EXPECT_NEAR(factor_of(nlohmann::json::object()), 1.1386294F, 1e-6);
  EXPECT_NEAR(factor_of({{"attn_factor", 0.8782488562869419}}), 1.0F, 1e-6);
  EXPECT_NEAR(factor_of({{"attn_factor", 0.5}, {"attention_factor", 1.5}}), 1.5F, 1e-6);
}

// Cards say how to add YaRN to a file whose max_position_embeddings stays. Published files whose
// context is the stretched one keep it.
TEST(HfKeys, YarnStretchesTheContext) {
  const auto context_of = [](const nlohmann::json& config) {
    const testing::TemporaryFolder folder;
    std::ofstream(folder.at("config.json")) << config.dump();
    const auto found = read_config_of(folder);
    EXPECT_TRUE(found.has_value()) << found.error().message;
    return found ? found->context_len : 0;
  };
  const nlohmann::json qwen = {{"model_type", "qwen3"},       {"vocab_size", 64},
                               {"num_hidden_layers", 1},      {"hidden_size", 64},
                               {"num_attention_heads", 2},    {"intermediate_size", 64},
                               {"num_key_value_heads", 2},    {"head_dim", 32},
                               {"rms_norm_eps", 1e-6},        {"rope_theta", 1000000},
                               {"max_position_embeddings", 40960}};
  const auto scaled = [&](const nlohmann::json& scaling) {
    nlohmann::json config = qwen;
    config["rope_scaling"] = scaling;
    return context_of(config);
  };
  EXPECT_EQ(context_of(qwen), 40960);
  constexpr const char* kOriginal = "original_max_position_embeddings";
  EXPECT_EQ(scaled({{"rope_type", "yarn"}, {"factor", 4.0}, {kOriginal, 32768}}), 131072);
  EXPECT_EQ(scaled({{"type", "yarn"}, {"factor", 4.0}, {kOriginal, 32768}}), 131072);
  EXPECT_EQ(scaled({{"rope_type", "yarn"}, {"factor", 4.0}, {kOriginal, 8192}}), 40960);
  EXPECT_EQ(scaled({{"rope_type", "yarn"}, {"factor", 4.0}}), 40960);
  EXPECT_EQ(scaled({{"rope_type", "yarn"}, {"factor", 1e5}, {kOriginal, 32768}}), 1 << 27);
  EXPECT_EQ(scaled({{"rope_type", "llama3"}, {"factor", 4.0}, {kOriginal, 32768}}), 40960);
  const auto rows = nlohmann::json::parse(
      testing::read_whole_file(golden_folder() + "/configs/published.json"));
  int num_stretched = 0;
  for (const nlohmann::json& row : rows) {
    nlohmann::json config = row["config"];
    const nlohmann::json text = config.contains("text_config") ? config["text_config"] : config;
    const nlohmann::json scaling = text.value("rope_scaling", nlohmann::json());
    if (!scaling.is_object() || !text.contains("max_position_embeddings")) continue;
    if (scaling.value("rope_type", scaling.value("type", "")) != "yarn") continue;
    EXPECT_EQ(context_of(config), text["max_position_embeddings"].get<int32_t>()) << row["name"];
    ++num_stretched;
  }
  EXPECT_GE(num_stretched, 4);
}

TEST(HfKeys, AGateOfAnotherNameIsReadOrRefused) {
  EXPECT_EQ(refusal("llama", "hidden_act", "swish"), "");
  EXPECT_NE(refusal("llama", "hidden_act", "relu").find("hidden_act: found \"relu\""),
            std::string::npos);
  EXPECT_NE(refusal("llama", "hidden_act", nlohmann::json::array({"silu"}))
                .find("hidden_act: found \"[\"silu\"]\", expected silu"),
            std::string::npos);
  EXPECT_NE(refusal("gemma2", "hidden_activation", "gelu").find("hidden_activation: found"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
