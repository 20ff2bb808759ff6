// SPDX-License-Identifier: Apache-2.0
// config.json in Hugging Face's layout: spellings, defaults, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/weights/hf_config.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

HfConfig config_of(const std::string& text) {
  auto config = parse_hf_config(bytes_of(text), "config.json");
  EXPECT_TRUE(config.has_value()) << config.error().message;
  return std::move(*config);
}

TEST(HfConfig, ReadsOldAndNewSpellingsAlike) {
  const char* texts[] = {
      R"({"model_type":"llama","hidden_size":64,"max_position_embeddings":512,"rope_theta":5000.0,
          "rope_scaling":{"type":"linear","factor":4.0},"torch_dtype":"float16"})",
      R"({"model_type":"llama","hidden_size":64,"max_position_embeddings":512,"dtype":"float16",
          "rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":5000.0}})",
      R"({"model_type":"wrapper","text_config":{"model_type":"llama","hidden_size":64,
          "max_position_embeddings":512,"rope_theta":5000,
          "rope_scaling":{"rope_type":"linear","factor":4}}})"};
  for (const char* text : texts) {
    const auto config = parse_hf_config(bytes_of(std::string(text)), "config.json");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->model_type, "llama");
    EXPECT_EQ(*config->metadata.get_uint("embedding_length"), 64U);
    EXPECT_EQ(*config->metadata.get_float("rope.freq_base"), 5000.0);
    EXPECT_EQ(*config->metadata.get_string("rope.scaling.type"), "linear");
    EXPECT_EQ(*config->metadata.get_float("rope.scaling.factor"), 4.0);
  }
}

// Defaults are those of transformers' classes; null means "none".
TEST(HfConfig, LeavesOutWhatEveryoneKnows) {
  const HfConfig gemma =
      config_of(R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text",
      "hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"sliding_window":1024,
      "rope_scaling":{"factor":8.0,"rope_type":"linear"}}})");
  EXPECT_EQ(*gemma.metadata.get_uint("attention.head_count"), 8U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.head_count_kv"), 4U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.key_length"), 256U);
  EXPECT_EQ(*gemma.metadata.get_uint("context_length"), 131072U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.sliding_window"), 1024U);
  EXPECT_EQ(*gemma.metadata.get_float("rope.freq_base"), 1e6);
  EXPECT_EQ(*gemma.metadata.get_float("rope.scaling.factor"), 8.0);
  EXPECT_EQ(*gemma.metadata.get_float("attention.layer_norm_rms_epsilon"), 1e-6);
  EXPECT_TRUE(gemma.tied_embeddings);

  const HfConfig capped = config_of(R"({"model_type":"gemma2","final_logit_softcapping":null})");
  EXPECT_EQ(*capped.metadata.get_float("attn_logit_softcapping"), 50.0);
  EXPECT_FALSE(capped.metadata.has("final_logit_softcapping"));
  EXPECT_FALSE(config_of(R"({"model_type":"mistral","sliding_window":null})")
                   .metadata.has("attention.sliding_window"));
  EXPECT_FALSE(config_of(R"({"model_type":"llama"})").tied_embeddings);
  EXPECT_FALSE(config_of(R"({"model_type":"gemma2","tie_word_embeddings":false})").tied_embeddings);

  // Of a text model inside another one, the other one's word counts: it has the output layer.
  EXPECT_TRUE(config_of(R"({"model_type":"mistral3","tie_word_embeddings":true,
      "text_config":{"model_type":"mistral","tie_word_embeddings":false}})")
                  .tied_embeddings);
  EXPECT_EQ(*config_of(R"({"model_type":"gpt_oss"})").metadata.get_string("rope.scaling.type"),
            "yarn");
  EXPECT_FALSE(config_of(R"({"model_type":"gpt_oss","rope_scaling":null})")
                   .metadata.has("rope.scaling.type"));
  const HfConfig qwen = config_of(R"({"model_type":"qwen2","num_hidden_layers":30})");
  const auto windows = qwen.metadata.get_numbers("attention.sliding_layers");
  ASSERT_TRUE(windows.has_value()) << windows.error().message;
  EXPECT_EQ(std::count(windows->begin(), windows->end(), 1.0), 2);
  EXPECT_EQ(windows->at(27), 0);
  for (const char* early : {"su", "yarn"}) {
    const HfConfig phi = config_of(R"({"model_type":"phi3","rope_scaling":{"type":")" +
                                   std::string(early) + R"("}})");
    EXPECT_EQ(*phi.metadata.get_string("rope.scaling.type"), "longrope");
  }
}

TEST(HfConfig, LayersOfTwoKindsAreListed) {
  const auto recurrent = [](const std::string& text) {
    const auto config = parse_hf_config(bytes_of(text), "config.json");
    EXPECT_TRUE(config.has_value()) << config.error().message;
    return *config->metadata.get_numbers("attention.recurrent_layers");
  };
  const std::vector<double> expected = {1, 0};
  EXPECT_EQ(recurrent(R"({"model_type":"qwen3_5_text","hidden_size":64,
                          "layer_types":["linear_attention","full_attention"]})"),
            expected);
  EXPECT_EQ(recurrent(R"({"model_type":"lfm2","layer_types":["conv","full_attention"]})"),
            expected);
}

// Sizes of experts may be listed by layer; only equal ones are a size.
TEST(HfConfig, ListedSizesOfExpertsAreOneIfEqual) {
  const HfConfig equal = config_of(R"({"model_type":"hunyuan_v1_moe","moe_topk":[8,8,8]})");
  EXPECT_EQ(*equal.metadata.get_uint("expert_used_count"), 8U);
  const HfConfig other = config_of(R"({"model_type":"hunyuan_v1_moe","moe_topk":[8,8,2]})");
  EXPECT_FALSE(other.metadata.get_uint("expert_used_count").has_value());
  const HfConfig none = config_of(R"({"model_type":"hunyuan_v1_moe","moe_topk":[]})");
  EXPECT_FALSE(none.metadata.get_uint("expert_used_count").has_value());
  // Other lists stay lists.
  const HfConfig windows = config_of(R"({"model_type":"llama","hidden_size":[64,64]})");
  EXPECT_FALSE(windows.metadata.get_uint("embedding_length").has_value());
}

TEST(HfConfig, GraniteCallsFullAttentionByAShorterName) {
  const char* const kAll = R"({"model_type":"granitemoehybrid","num_local_experts":0,
      "num_hidden_layers":2,"layer_types":["attention","attention"]})";
  const std::vector<double> full = {0, 0};
  EXPECT_EQ(*config_of(kAll).metadata.get_numbers("attention.sliding_layers"), full);
  EXPECT_EQ(*config_of(kAll).metadata.get_numbers("attention.recurrent_layers"), full);
  const char* const kMixed =
      R"({"model_type":"granitemoehybrid","layer_types":["mamba","attention"]})";
  const std::vector<double> mixed = {1, 0};
  EXPECT_EQ(*config_of(kMixed).metadata.get_numbers("attention.recurrent_layers"), mixed);
}

TEST(HfConfig, LayersOfOneHalfAreListedOrSpelledByLetters) {
  const std::vector<double> kinds = {1, 2, 0, 3, -1};
  const std::vector<double> recurrent = {1, 0, 0, 0, 0};
  for (const char* text :
       {R"({"model_type":"nemotron_h","layers_block_type":
            ["linear_attention","mlp","full_attention","moe","conv"]})",
        R"({"model_type":"nemotron_h","num_hidden_layers":null,"layers_block_type":
            ["mamba","mlp","attention","moe",7]})",
        R"({"model_type":"nemotron_h","hybrid_override_pattern":"M-*Ex"})"}) {
    const HfConfig config = config_of(text);
    EXPECT_EQ(*config.metadata.get_numbers("layer_kinds"), kinds) << text;
    EXPECT_EQ(*config.metadata.get_numbers("attention.recurrent_layers"), recurrent) << text;
    EXPECT_EQ(*config.metadata.get_uint("block_count"), 5U) << text;
  }
  // What else the file says is left, for the family to compare.
  const HfConfig other = config_of(
      R"({"model_type":"nemotron_h","num_hidden_layers":3,"hybrid_override_pattern":"M-"})");
  EXPECT_EQ(*other.metadata.get_uint("block_count"), 3U);
}

TEST(HfConfig, StepsMayHaveOneLimitOnly) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const auto limits_of = [](const std::string& limits) {
    const HfConfig config =
        config_of(R"({"model_type":"nemotron_h","time_step_limit":)" + limits + "}");
    return config.metadata.get_numbers("ssm.step_limits");
  };
  const std::vector<double> least = {0.25, kNone};
  for (const char* text : {"[0.25,Infinity]",
                           "[0.25,null]",
                           R"([0.25,"inf"])",
                           R"([0.25,"Infinity"])",
                           R"([0.25,{"__float__":"Infinity"}])"}) {
    const Expected<std::vector<double>> limits = limits_of(text);
    ASSERT_TRUE(limits.has_value()) << text;
    EXPECT_EQ(*limits, least) << text;
  }
  const std::vector<double> both = {0, 1.5};
  EXPECT_EQ(*limits_of("[0,1.5]"), both);
  for (const char* text : {R"([0.25,"more"])", R"([{"__float__":"NaN"},1])", "\"(0, 1)\""}) {
    EXPECT_FALSE(limits_of(text).has_value()) << text;
  }
}

// Files with a scheme for each expert's matrices have megabytes, and take no time.
TEST(HfConfig, AConfigurationMayNameEveryMatrix) {
  std::string text = R"({"model_type":"llama","quantization_config":{"quant_method":"modelopt",
      "quant_algo":"MIXED_PRECISION","ignore":["lm_head"],"quantized_layers":{)";
  std::string last;
  for (int i = 0; i < 20'000; ++i) {
    last = "backbone.layers." + std::to_string(i % 40) + ".mixer.experts." + std::to_string(i) +
           ".up_proj";
    text += (i == 0 ? "\"" : ",\"") + last + R"(": {"quant_algo":"NVFP4","group_size":16})";
  }
  text += "}}}";
  ASSERT_GT(text.size(), 1U << 20);
  const HfConfig config = testing::in_time([&] { return config_of(text); });
  const LayerScheme* const scheme = config.quantization.scheme_of(last);
  ASSERT_NE(scheme, nullptr);
  EXPECT_EQ(scheme->weights.name, "NVFP4");
}

TEST(HfConfig, EveryCorruptConfigGetsItsLine) {
  std::string deep = R"({"model_type":"llama","a":)";
  for (int i = 0; i < 30; ++i) deep += "[";
  const std::vector<CorruptText> cases = {
      {"nothing", "", "no JSON object"},
      {"cut", R"({"model_type":)", "no JSON object"},
      {"array", "[]", "no JSON object"},
      {"no type", "{}", "model_type: found nothing"},
      {"type a number", R"({"model_type":3})", "model_type"},
      {"deep", deep, "nested deeper"},
      {"large", std::string((64 << 20) + 1, ' '), "at most 64 MiB"},
      {"quantized", R"({"model_type":"llama","quantization_config":{}})", "quantization_config"},
      {"rotary part above 1",
       R"({"model_type":"phi3","hidden_size":64,"num_attention_heads":4,"partial_rotary_factor":2})",
       "partial_rotary_factor: found 2.0"},
      {"rotary part of no width",
       R"({"model_type":"phi3","partial_rotary_factor":0.5})",
       "embedding_length: found nothing"},
      {"both directions",
       R"({"model_type":"gemma2","use_bidirectional_attention":true})",
       "use_bidirectional_attention: found true, expected false"},
      {"both directions, nested",
       R"({"model_type":"x","text_config":{"model_type":"gemma2",
           "use_bidirectional_attention":"all"}})",
       "use_bidirectional_attention: found \"all\", expected false"},
      {"dense layers",
       R"({"model_type":"qwen3_moe","mlp_only_layers":[0,3]})",
       "mlp_only_layers: found [0,3], expected no layers"},
      {"recurrent layers",
       R"({"model_type":"granitemoe","layer_types":["mamba","attention"]})",
       "layer_types: found [\"mamba\",\"attention\"], expected full_attention"},
      {"other clamp",
       R"({"model_type":"gpt_oss","swiglu_limit":5.5})",
       "swiglu_limit: found 5.5, expected 7"},
      {"rotation as a list",
       R"({"model_type":"llama","rope_parameters":[1]})",
       "rope_parameters: found [1], expected an object"},
      {"scaling as a name",
       R"({"model_type":"llama","rope_scaling":"yarn"})",
       "rope_scaling: found \"yarn\", expected an object"},
      {"tied perhaps",
       R"({"model_type":"llama","tie_word_embeddings":"yes"})",
       "tie_word_embeddings: found \"yes\", expected true or false"},
      {"other slope of the clamp",
       R"({"model_type":"gpt_oss","swiglu_alpha":1.5})",
       "swiglu_alpha: found 1.5, expected 1.702"},
      {"a part of the rotation where none is",
       R"({"model_type":"llama","partial_rotary_factor":0.5})",
       "partial_rotary_factor: found 0.500000, expected 1 in a model of type llama"},
      {"windows where none are",
       R"({"model_type":"llama","layer_types":["full_attention","sliding_attention"]})",
       "layer_types: found [\"full_attention\",\"sliding_attention\"], expected full_attention for "
       "each"},
      {"layers without the window of all",
       R"({"model_type":"mistral","layer_types":["full_attention","sliding_attention"]})",
       "expected sliding_attention for each layer of mistral"},
      {"unknown layer type",
       R"({"model_type":"llama","layer_types":["full_attention","chunked_attention\u001b\u007f"]})",
       R"(layer_types: found ["full_attention","chunked_attention\u001b\u007f"], expected full_attention)"},
      {"layer types no list",
       R"({"model_type":"llama","layer_types":{"0":"full_attention"}})",
       "layer_types: found {\"0\":\"full_attention\"}, expected full_attention"},
      {"recurrent layers where none are",
       R"({"model_type":"llama","layer_types":["full_attention","linear_attention"]})",
       R"(layer_types: found ["full_attention","linear_attention"], expected full_attention)"},
      {"long layer types",
       R"({"model_type":"llama","layer_types":")" + std::string(500, 'x') + "\"}",
       "xxx..., expected full_attention"},
      {"scaled local rope",
       R"({"model_type":"gemma3_text","rope_parameters":{"sliding_attention":
           {"rope_type":"linear","factor":2,"rope_theta":10000}}})",
       "rope_parameters.sliding_attention.rope_type: found \"linear\", expected default"},
  };
  for (const CorruptText& c : cases) {
    CorruptFile corrupt("config " + c.what, c.text.size());
    const auto parsed = parse_hf_config(bytes_of(c.text), "config.json");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "config.json", c.message);
  }
}

}  // namespace
}  // namespace sluice
