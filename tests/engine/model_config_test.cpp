// SPDX-License-Identifier: Apache-2.0
// The model that a checkpoint's keys describe, and one-line refusals of unsupported ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/config.h"
#include "engine/run/model_runner.h"
#include "tests/engine/weights/gguf_builder.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr uint32_t kF32 = 0;
constexpr uint32_t kQ8 = 8;

// One layer of width 32 whose tensors are all zero.
class TinyGguf {
 public:
  explicit TinyGguf(std::string architecture, bool with_attention = true)
      : architecture_(std::move(architecture)) {
    image_.set_string("general.architecture", architecture_);
    for (const auto& [key, value] : {std::pair("block_count", 1U),
                                     std::pair("context_length", 256U),
                                     std::pair("embedding_length", 32U),
                                     std::pair("feed_forward_length", 32U),
                                     std::pair("attention.head_count", 2U)}) {
      set(key, uint32_t{value});
    }
    set("attention.layer_norm_rms_epsilon", 1e-5F);
    add("token_embd.weight", {32, 64});
    add("output_norm.weight", {32});
    for (const char* name : {"attn_norm", "ffn_norm"}) add(layer(name), {32});
    if (!with_attention) return;
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"})
      add(layer(name), {32, 32});
  }

  void set(const std::string& key, uint32_t value) { put(key, GgufType::kUint32, raw(value)); }

  void set(const std::string& key, float value) { put(key, GgufType::kFloat32, raw(value)); }

  void set(const std::string& key, bool value) {
    put(key, GgufType::kBool, std::string(1, static_cast<char>(value)));
  }

  void set(const std::string& key, const char* value) {
    put(key, GgufType::kString, raw_string(value));
  }

  void set_array(const std::string& key, const std::vector<int32_t>& values) {
    std::string elements;
    for (const int32_t value : values) elements += raw(value);
    put(key, GgufType::kArray, raw_array(GgufType::kInt32, values.size(), elements));
  }

  void add(const std::string& name, std::vector<uint64_t> dims, uint32_t type = kF32) {
    uint64_t bytes = type == kF32 ? 4 : 1;
    for (const uint64_t dim : dims) bytes *= dim;
    if (type == kQ8) bytes = bytes / 32 * 34;
    const auto count = static_cast<uint32_t>(dims.size());
    image_.tensors.push_back({name, count, std::move(dims), type, image_.data_bytes});
    image_.data_bytes += (bytes + 31) / 32 * 32;
  }

  // `dims` must not have more elements than the previous ones.
  void set_dims(const std::string& name, std::vector<uint64_t> dims) {
    for (GgufImage::Tensor& tensor : image_.tensors) {
      if (tensor.name != name) continue;
      tensor.num_dims = static_cast<uint32_t>(dims.size());
      tensor.dims = dims;
    }
  }

  void add_dense() {
    for (const char* name : {"ffn_gate", "ffn_up", "ffn_down"}) add(layer(name), {32, 32});
  }

  [[nodiscard]] std::string write() const {
    const std::string path = folder_.at("tiny.gguf");
    std::string bytes = image_.header();
    bytes.resize((bytes.size() + 31) / 32 * 32 + image_.data_bytes);
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  [[nodiscard]] Expected<PlannedModel> plan() const {
    Config config;
    config.model = write();
    config.kv_cache_memory = 1 << 20;
    return plan_model(config, {.num_threads = 1});
  }

  // Names the file without its folder.
  [[nodiscard]] std::string error() const {
    const auto planned = plan();
    if (planned) return "";
    const std::string folder = folder_.at("");
    const std::string& message = planned.error().message;
    return message.starts_with(folder) ? message.substr(folder.size()) : message;
  }

 private:
  static std::string layer(const std::string& stem) { return "blk.0." + stem + ".weight"; }

  void put(const std::string& key, GgufType type, std::string value) {
    image_.set(architecture_ + "." + key, type, std::move(value));
  }

  const testing::TemporaryFolder folder_;
  std::string architecture_;
  GgufImage image_;
};

kernels::RopeParams rope_of(const TinyGguf& file) {
  const auto planned = file.plan();
  EXPECT_TRUE(planned.has_value()) << planned.error().message;
  return planned ? planned->model.ropes.front() : kernels::RopeParams();
}

TEST(GgufKeys, LinearScalingIsOneOverTheFactorUnderEitherNameAndWithoutAType) {
  for (const char* key : {"rope.scale_linear", "rope.scaling.factor"}) {
    TinyGguf file("llama");
    file.add_dense();
    file.set(key, 4.0F);
    EXPECT_EQ(rope_of(file).freq_scale, 0.25F) << key;
    file.set("rope.scaling.type", "none");
    EXPECT_EQ(rope_of(file).freq_scale, 1.0F) << key;
  }
}

// Converters write 0 for a missing factor.
TEST(GgufKeys, AFactorOfNothingIsOne) {
  for (const char* key : {"rope.scale_linear", "rope.scaling.factor"}) {
    for (const char* type : {"", "linear", "yarn", "none"}) {
      TinyGguf file("llama");
      file.add_dense();
      if (*type != '\0') file.set("rope.scaling.type", type);
      file.set("rope.scaling.original_context_length", 0U);
      file.set(key, 0.0F);
      const std::string log = logged_by([&] {
        const kernels::RopeParams rope = rope_of(file);
        EXPECT_EQ(rope.freq_scale, 1.0F) << key << type;
        EXPECT_EQ(rope.attention_factor, 1.0F) << key << type;
      });
      EXPECT_NE(log.find("key=llama." + std::string(key) + " found=0 counts_as=1\n"),
                std::string::npos)
          << log;
      EXPECT_NE(log.find("original_context_length found=0 counts_as=256\n"), std::string::npos)
          << log;
      file.set(key, -1.0F);
      if (type == std::string("none")) continue;
      EXPECT_NE(file.error().find("found -1, expected a positive number"), std::string::npos);
    }
  }
}

// Converters write one number per layer where layers may differ.
TEST(GgufKeys, ArraysOfOneNumberForEachLayerAreThatNumber) {
  const char* const keys[] = {"attention.head_count",
                              "attention.head_count_kv",
                              "feed_forward_length",
                              "attention.key_length",
                              "attention.value_length",
                              "rope.dimension_count"};
  for (const char* key : keys) {
    const bool is_width = std::string(key) == "feed_forward_length";
    const bool is_head = std::string(key).find("head_count") != std::string::npos;
    const int32_t value = is_width ? 32 : is_head ? 2 : 16;
    TinyGguf file("llama");
    file.add_dense();
    file.set_array(key, {value});
    const auto planned = file.plan();
    ASSERT_TRUE(planned.has_value()) << key << ": " << planned.error().message;
    EXPECT_EQ(planned->model.layers.front().num_kv_heads, 2);
    EXPECT_EQ(planned->model.layers.front().head_dim, 16);
    EXPECT_EQ(planned->model.ffn_hidden, 32);
    file.set_array(key, {value, value});
    EXPECT_NE(file.error().find("llama." + std::string(key) + ": found an array of 2, expected"),
              std::string::npos)
        << file.error();
    file.set_array(key, {});
    EXPECT_NE(file.error().find("found an array of 0, expected"), std::string::npos) << key;
  }
  TinyGguf file("llama");
  file.add_dense();
  file.set("block_count", 2U);
  file.set_array("feed_forward_length", {32, 64});
  EXPECT_NE(file.error().find("feed_forward_length: found an array of 2 different numbers"),
            std::string::npos)
      << file.error();
}

TEST(GgufKeys, AFactorOfAttentionAddsToThatOfEveryScaling) {
  for (const char* type : {"none", "linear", "yarn"}) {
    TinyGguf file("llama");
    file.add_dense();
    file.set("rope.scaling.type", type);
    file.set("rope.scaling.factor", 4.0F);
    const float usual = rope_of(file).attention_factor;
    file.set("rope.scaling.attn_factor", 0.5F);
    EXPECT_EQ(rope_of(file).attention_factor, usual * 0.5F) << type;
  }
}

TEST(GgufKeys, GraniteMayHaveNoPositions) {
  TinyGguf file("granite");
  file.add_dense();
  EXPECT_EQ(file.plan()->model.layers.front().rope, 0);
  file.set("rope.scaling.finetuned", false);
  EXPECT_EQ(file.plan()->model.layers.front().rope, -1);
}

TEST(GgufKeys, AWindowOfNothingIsNone) {
  TinyGguf file("llama");
  file.add_dense();
  file.set("attention.sliding_window", 0U);
  EXPECT_EQ(file.plan()->model.layers.front().window, 0);
  for (const uint32_t window : {0U, 7U}) {
    TinyGguf phi("phi3", /*with_attention=*/false);
    phi.add("blk.0.attn_qkv.weight", {32, 96});
    phi.add("blk.0.attn_output.weight", {32, 32});
    phi.add("blk.0.ffn_up.weight", {32, 64});
    phi.add("blk.0.ffn_down.weight", {32, 32});
    phi.set("attention.sliding_window", window);
    const auto planned = phi.plan();
    ASSERT_TRUE(planned.has_value()) << planned.error().message;
    EXPECT_EQ(planned->model.layers.front().window, static_cast<int32_t>(window));
  }
}

TEST(GgufKeys, WhatNoModelHereDoesIsRefusedByName) {
  const auto refusal = [](const char* key, auto value) {
    TinyGguf file("llama");
    file.add_dense();
    file.set(key, value);
    return file.error();
  };
  const std::string start = "tiny.gguf: llama.";
  TinyGguf granite("granite");
  granite.add_dense();
  granite.set("attention.causal", false);
  EXPECT_EQ(granite.error(), "tiny.gguf: granite.attention.causal: found false, expected true");
  for (const bool is_causal : {false, true}) {  // with false, a model of vectors
    EXPECT_EQ(refusal("attention.causal", is_causal), "");
  }
  EXPECT_EQ(refusal("attention.clamp_kqv", 8.0F),
            start + "attention.clamp_kqv: found 8.000000, expected 0.000000");
  for (const char* key : {"attention.max_alibi_bias", "attention.temperature_scale"}) {
    EXPECT_NE(refusal(key, 8.0F).find("found 8.000000"), std::string::npos) << key;
    EXPECT_EQ(refusal(key, 0.0F), "") << key;
  }
  EXPECT_NE(refusal("rope.scaling.yarn_ext_factor", "one").find("found no number"),
            std::string::npos);
  EXPECT_NE(refusal("use_parallel_residual", true).find("found true"), std::string::npos);
}

// A factor of queries needs a context to count in.
TEST(GgufKeys, GrowthOfQueriesIsBounded) {
  const auto refusal = [](float beta, float context) {
    TinyGguf file("mistral3");
    file.add_dense();
    file.set("attention.temperature_scale", beta);
    file.set("rope.scaling.original_context_length", context);
    return file.error();
  };
  EXPECT_EQ(refusal(0.1F, 16), "");
  EXPECT_EQ(refusal(0.1F, 0.5F),
            "tiny.gguf: mistral3.rope.scaling.original_context_length: found 0.500000, expected 1 "
            "to 134217728");
  EXPECT_NE(refusal(-0.1F, 16).find("found -0.1"), std::string::npos);
  EXPECT_NE(refusal(1e9F, 16).find("expected 0 to 100"), std::string::npos);
}

// What it lacks, and what comes near. Kinds of layers that other families have here are no reason.
TEST(GgufKeys, AnUnknownFamilyIsRefusedByNameKindAndNeighbours) {
  TinyGguf strange("glm4x");
  strange.add("blk.0.cross_attn_q.weight", {32, 16});
  strange.add("blk.0.ssm_x.weight", {32, 16});
  const std::string text = strange.error();
  EXPECT_NE(text.find("architecture glm4x is not supported: it has a decoder that reads an encoder, "
                      "state-space layers of Mamba-1; nearest: glm4, glm4moe, "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("; supported: "), std::string::npos) << text;
  TinyGguf plain("zzz");
  plain.add_dense();
  for (const char* computed : {"blk.0.attn_kv_a_mqa.weight",
                               "blk.0.indexer.k_norm.weight",
                               "blk.0.shortconv.conv.weight",
                               "blk.0.ssm_norm.weight",
                               "per_layer_token_embd.weight",
                               "position_embd.weight"}) {
    plain.add(computed, {32});
  }
  EXPECT_NE(plain.error().find("architecture zzz is not supported; nearest: "), std::string::npos)
      << plain.error();
}

// A directory of which only config.json is there is refused by its family, not for its lack of
// weights.
TEST(HfConfig, FamiliesAreRefusedByTheirConfigurationsAlone) {
  struct Case {
    const char* config;
    const char* expected;
  };

  constexpr Case kCases[] = {
      {R"({"model_type": "t5"})", "t5 is not supported: it has a decoder that reads an encoder;"},
      {R"({"model_type": "whisper"})", "whisper is not supported: it has an encoder of sound"},
      {R"({"model_type": "wav2vec2"})", "wav2vec2 is not supported: it has an encoder of sound"},
      {R"({"model_type": "bart"})", "bart is not supported: it has a decoder that reads"},
      {R"({"model_type": "vit"})", "vit is not supported: it has an encoder of images"},
      {R"({"model_type": "clip", "text_config": {"hidden_size": 8}})",
       "clip is not supported: it has an encoder of images"},
      {R"({"model_type": "siglip"})", "siglip is not supported: it has an encoder of images"},
      {R"({"model_type": "mamba"})", "mamba is not supported: it has state-space layers of Mamba-1"},
      {R"({"model_type": "jamba"})", "jamba is not supported: it has state-space layers of Mamba-1"},
      {R"({"model_type": "rwkv"})", "rwkv is not supported: it has recurrent time mixing"},
      {R"({"model_type": "mamba2"})", "mamba2 is not supported: it has no layer of attention"},
      {R"({"model_type": "mpt"})", "mpt is not supported; nearest: "},
      {R"({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}})",
       "gemma3n_text is not supported: it has alternating updates; nearest: gemma3"},
      {R"({"model_type": "deepseek_v4"})", "it has compressed keys and values; nearest: deepseek"},
      {R"({"_class_name": "UNet2DConditionModel"})", "_class_name of a diffusion model"},
  };
  for (const Case& each : kCases) {
    const testing::TemporaryFolder folder;
    std::ofstream(folder.at("config.json")) << each.config;
    const auto checkpoint = Checkpoint::open(folder.path());
    const auto spec = checkpoint ? find_model_spec(**checkpoint)
                                 : Expected<const ModelSpec*>(tl::unexpected(checkpoint.error()));
    ASSERT_FALSE(spec.has_value()) << each.config;
    EXPECT_NE(spec.error().message.find(each.expected), std::string::npos) << spec.error().message;
  }
}

// A few numbers of the model that a configuration describes.
std::vector<int32_t> numbers_of(const ModelConfig& config) {
  const LayerConfig& layer = config.layers.front();
  const auto windowed = std::ranges::count_if(
      config.layers, [](const LayerConfig& each) { return each.window > 0; });
  return {config.num_layers,
          layer.num_heads,
          layer.num_kv_heads,
          layer.head_dim,
          config.ropes.front().rotary_dim,
          config.moe.num_experts,
          config.moe.top_k,
          static_cast<int32_t>(windowed)};
}

Expected<ModelConfig> config_of(const nlohmann::json& json) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder.at("config.json")) << json.dump();
  SLUICE_TRY(const auto checkpoint, Checkpoint::open(folder.path(), LoadFormat::kDummy));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  return read_model_config(*spec, *checkpoint);
}

// Published files say much that has no effect, in spellings of several years; all are taken. The
// "source" of a row is the copy that it is, repository@commit:path, or says whether its values were
// compared with one; such rows have the fields that the models' classes have.
TEST(HfConfig, PublishedOnesAreTaken) {
  const auto rows = nlohmann::json::parse(
      testing::read_whole_file(golden_folder() + "/configs/published.json"));
  ASSERT_GE(rows.size(), 50U);
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row["name"].get<std::string>());
    EXPECT_NE(row.value("source", ""), "");
    nlohmann::json json = row["config"];
    nlohmann::json& text = json.contains("text_config") ? json["text_config"] : json;
    // Gemma 3 leaves it to the class; a model is read with its embedding.
    if (!text.contains("vocab_size") && !json.contains("llm_config")) text["vocab_size"] = 64;
    const auto config = config_of(json);
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(numbers_of(*config), row["is"].get<std::vector<int32_t>>());
  }
}

// What would change the numbers is refused by its name.
TEST(HfConfig, PublishedOnesWithOtherNumbersAreRefused) {
  struct Case {
    const char* name;
    const char* change;
    const char* expected;
  };

  constexpr Case kCases[] = {
      {"Qwen3-VL-30B-A3B-Instruct",
       R"({"text_config": {"decoder_sparse_step": 2}})",
       "decoder_sparse_step: found 2, expected 1"},
      {"Qwen3-VL-30B-A3B-Instruct",
       R"({"text_config": {"mlp_only_layers": [3]}})",
       "mlp_only_layers: found [3], expected no layers"},
      {"Qwen2.5-7B-Instruct",
       R"({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}})",
       "found \"mrope\""},
      {"MiniCPM-2B-sft-bf16",
       R"({"sparse_config": {"kernel_size": 32}})",
       "sparse_config: found {\"kernel_size\":32}, expected nothing"},
      {"Ling-mini-2.0", R"({"score_function": "softmax"})", "found \"softmax\", expected sigmoid"},
      {"DeepSeek-V3", R"({"scoring_func": "softmax"})", "scoring_func: found \"softmax\""},
      {"MiniMax-M2.7", R"({"scoring_func": "softmax"})", "scoring_func: found \"softmax\""},
      {"Ling-mini-2.0", R"({"use_qk_norm": false})", "use_qk_norm: found false, expected true"},
      {"EXAONE-3.5-7.8B-Instruct",
       R"({"activation_function": "gelu"})",
       "activation_function: found \"gelu\""},
      {"gpt-j-6b", R"({"rotary": false})", "rotary: found false, expected 1"},
      {"starcoder", R"({"multi_query": false})", "multi_query: found false, expected 1"},
      {"phi-2", R"({"qk_layernorm": true})", "qk_layernorm: found true, expected 0"},
      {"phi-2", R"({"hidden_act": "xielu"})", "hidden_act: found \"xielu\", expected relu2, relu"},
      {"Phi-3.5-MoE-instruct",
       R"({"num_experts_per_tok": 4})",
       "num_experts_per_tok: found 4, expected 2"},
      {"dbrx-instruct",
       R"({"ffn_config": {"moe_normalize_expert_weights": 2}})",
       "ffn_config.moe_normalize_expert_weights: found 2"},
      {"dbrx-instruct",
       R"({"ffn_config": {"ffn_act_fn": {"name": "gelu"}}})",
       "ffn_act_fn.name: found \"gelu\", expected silu"},
      {"dbrx-instruct", R"({"attn_config": {"clip_qkv": -1}})", "clip_qkv: found -1"},
      {"phi-2", R"({"hidden_act": "mish"})", "hidden_act: found \"mish\", expected relu2, relu"},
      {"falcon-7b", R"({"alibi": true})", "alibi: found true, expected 0"},
      {"falcon-7b", R"({"multi_query": false})", "multi_query: found false, expected 1"},
      {"gpt2",
       R"({"scale_attn_by_inverse_layer_idx": true})",
       "scale_attn_by_inverse_layer_idx: found true, expected 0"},
      {"opt-125m",
       R"({"do_layer_norm_before": false})",
       "do_layer_norm_before: found false, expected 1"},
      {"opt-125m", R"({"word_embed_proj_dim": 512})", "word_embed_proj_dim: found 512, expected 768"},
  };
  const auto rows = nlohmann::json::parse(
      testing::read_whole_file(golden_folder() + "/configs/published.json"));
  for (const Case& each : kCases) {
    const auto row = std::ranges::find_if(
        rows, [&](const nlohmann::json& candidate) { return candidate["name"] == each.name; });
    ASSERT_NE(row, rows.end()) << each.name;
    nlohmann::json json = (*row)["config"];
    json.merge_patch(nlohmann::json::parse(each.change));
    const auto config = config_of(json);
    ASSERT_FALSE(config.has_value()) << each.name << " " << each.change;
    EXPECT_NE(config.error().message.find(each.expected), std::string::npos)
        << config.error().message;
  }
}

TEST(GgufKeys, OllamasGrowthOfQueriesHasItsOwnName) {
  TinyGguf file("mistral3");
  file.add_dense();
  file.set("rope.scaling_beta", 0.1F);
  EXPECT_NEAR(file.plan().value().model.ropes.front().query_scale.beta, 0.1, 1e-6);
}

// block_count counts modules that guess further tokens; one layer too many would be built. Read on
// its own, the first is a model of one layer, without copies of the others' ends.
TEST(GgufKeys, ModulesBehindTheLayersAreNoLayers) {
  TinyGguf file("llama");
  file.add_dense();
  file.set("block_count", 2U);
  file.set("nextn_predict_layers", 1U);
  file.add("blk.1.nextn.eh_proj.weight", {64, 32});
  const auto planned = file.plan();
  ASSERT_TRUE(planned.has_value()) << planned.error().message;
  EXPECT_EQ(planned->model.num_layers, 1);
  EXPECT_EQ(planned->checkpoint->left_out(),
            std::vector<std::string>{"blk.1.nextn.eh_proj.weight"});

  file.set("block_count", 3U);
  file.set("nextn_predict_layers", 2U);
  for (const char* name : {"attn_norm", "nextn.shared_head_norm", "nextn.shared_head_head"}) {
    file.add("blk.1." + std::string(name) + ".weight", {32});
  }
  file.add("blk.2.nextn.enorm.weight", {32});
  const auto longer = file.plan();
  ASSERT_TRUE(longer.has_value()) << longer.error().message;
  EXPECT_EQ(longer->checkpoint->left_out().size(), 5U);
  const auto module = Checkpoint::open(
      longer->checkpoint->path(), LoadFormat::kAuto, CheckpointPart::kNextToken);
  ASSERT_TRUE(module.has_value()) << module.error().message;
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : (*module)->tensors()) names.push_back(tensor.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{
                "eh_proj.weight", "blk.0.attn_norm.weight", "shared_head_norm.weight"}));

  // Step-3.5's module has an output layer of its own, under the name of other families' copy.
  TinyGguf step("step35");
  step.set("block_count", 2U);
  step.set("nextn_predict_layers", 1U);
  step.add("blk.1.nextn.shared_head_head.weight", {32, 64});
  step.add("blk.1.nextn.embed_tokens.weight", {32, 64});
  const auto own = Checkpoint::open(step.write(), LoadFormat::kAuto, CheckpointPart::kNextToken);
  ASSERT_TRUE(own.has_value()) << own.error().message;
  ASSERT_EQ((*own)->tensors().size(), 1U);
  EXPECT_TRUE((*own)->has("output.weight"));
}

TEST(GgufKeys, GroupsOfExpertsMustHoldTheChoice) {
  const auto refusal = [](uint32_t groups, uint32_t kept) {
    TinyGguf file("qwen3moe");
    file.set("expert_count", 8U);
    file.set("expert_used_count", 3U);
    file.set("expert_group_count", groups);
    file.set("expert_group_used_count", kept);
    return file.error();
  };
  EXPECT_NE(refusal(3, 1).find("expert_group_count: found 3, expected equal groups"),
            std::string::npos);
  EXPECT_NE(refusal(8, 4).find("expert_group_count: found 8, expected equal groups"),
            std::string::npos);
  EXPECT_NE(refusal(4, 1).find("expert_group_used_count: found 1, expected groups with 3"),
            std::string::npos);
  EXPECT_EQ(refusal(4, 2).find("expert_group"), std::string::npos);
}

TEST(GgufKeys, ValuesWithoutEffectAreTaken) {
  const auto log_of = [](const char* type, const char* key, auto value) {
    TinyGguf file("llama");
    file.add_dense();
    if (*type != '\0') file.set("rope.scaling.type", type);
    file.set(key, value);
    return logged_by([&] {
      const auto planned = file.plan();
      EXPECT_TRUE(planned.has_value()) << type << key << planned.error().message;
      if (!planned) return;
      EXPECT_EQ(planned->model.ropes.front().freq_scale, 1.0F) << type << key;
      EXPECT_EQ(planned->model.ropes.front().attention_factor, 1.0F) << type << key;
    });
  };
  EXPECT_EQ(log_of("", "expert_group_count", 1U), "");  // a single group has all experts
  for (const float share : {0.0F, -1.0F}) {
    for (const char* type : {"", "none", "linear"}) {
      EXPECT_NE(log_of(type, "rope.scaling.yarn_ext_factor", share).find("yarn_ext_factor"),
                std::string::npos)
          << type;
    }
  }
  for (const float factor : {-1.0F, __builtin_inff(), 1e6F}) {
    EXPECT_NE(log_of("none", "rope.scaling.factor", factor).find("key=rope.scaling"),
              std::string::npos)
        << factor;
  }
  EXPECT_NE(log_of("none", "rope.scaling.original_context_length", -1.0F).find("counts_as="),
            std::string::npos);
  TinyGguf yarn("llama");
  yarn.add_dense();
  yarn.set("rope.scaling.type", "yarn");
  yarn.set("rope.scaling.factor", 4.0F);
  yarn.set("rope.scaling.yarn_ext_factor", 0.0F);
  EXPECT_NE(yarn.error().find("yarn_ext_factor: found 0.000000, expected 1"), std::string::npos);
  yarn.set("rope.scaling.yarn_ext_factor", -1.0F);
  EXPECT_EQ(yarn.error(), "");
}

// A matrix of one row also has trailing dimensions of 1, while a vector is not a matrix.
TEST(GgufTensors, TrailingDimensionsOfOneDoNotCount) {
  const auto opened = [](std::vector<uint64_t> norm, std::vector<uint64_t> embedding) {
    TinyGguf file("llama");
    file.add_dense();
    file.set_dims("output_norm.weight", std::move(norm));
    file.set_dims("token_embd.weight", std::move(embedding));
    return file.error();
  };
  EXPECT_EQ(opened({32}, {32, 64}), "");
  EXPECT_EQ(opened({32, 1}, {32, 64, 1}), "");
  EXPECT_EQ(opened({32, 1, 1, 1}, {32, 64, 1, 1}), "");
  EXPECT_EQ(opened({32}, {32, 1}), "");
  EXPECT_NE(opened({1, 32}, {32, 64}).find("output_norm.weight: found 32 elements in 2"),
            std::string::npos);
  EXPECT_NE(opened({32}, {32, 1, 64}).find("token_embd.weight: found another shape"),
            std::string::npos);
}

// A product of some experts runs for each kind of inputs.
TEST(GgufKeys, ExpertsOfOneLayerMayBeOfSeveralTypes) {
  TinyGguf file("llama");
  file.set("expert_count", 2U);
  file.set("expert_used_count", 1U);
  file.add("blk.0.ffn_gate_inp.weight", {32, 2});
  for (const char* stem : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
    for (const char* expert : {".0", ".1"}) {
      const bool other = std::string(stem) + expert == "ffn_up_exps.1";
      file.add(std::string("blk.0.") + stem + expert + ".weight", {32, 32}, other ? kQ8 : kF32);
    }
  }
  EXPECT_EQ(file.error(), "");
}

}  // namespace
}  // namespace sluice
