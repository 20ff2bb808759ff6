// SPDX-License-Identifier: Apache-2.0
// One model in the several ways in which files say it: equal weights give equal logits, whatever
// their tensors and keys are called and however their rows lie.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/rope_scaling.h"
#include "quant/format.h"
#include "tests/support/edited_model.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/respelled_model.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::EditedModel;
using testing::ModelHarness;
using testing::relative_error;
using testing::RespelledDirectory;
using testing::RespelledGguf;
using testing::StoredTensor;

std::vector<float> logits_of(const std::string& path, int32_t num_tokens = 14) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < num_tokens; ++i) tokens.push_back((i * 37 + 5) % 71);
  auto harness = ModelHarness::create(path, 32, DType::kF32, num_tokens);
  EXPECT_TRUE(harness.has_value()) << harness.error().message;
  return harness ? (*harness)->forward(tokens) : std::vector<float>();
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Experts of Gemma 4 whose weights are whole numbers from -8 to 7, times 1/64, so that every format
// here has them exactly.
class GemmaExperts {
 public:
  enum class Format { kBF16, kE4M3, kInt4 };

  // `place`: what is before the experts' numbers in a layer; null: their matrices are stacked.
  static std::vector<float> logits(Format format, const char* place) {
    RespelledDirectory model("gemma4-moe");
    model.config["moe_intermediate_size"] = kWidth;
    std::erase_if(model.tensors, [](const StoredTensor& tensor) {
      return tensor.name.find(".experts.") != std::string::npos;
    });
    if (format != Format::kBF16) model.config["quantization_config"] = scheme(format, place);
    for (int layer = 0; layer < 3; ++layer) {
      const std::string prefix = "model.language_model.layers." + std::to_string(layer) + ".";
      if (place == nullptr) {
        add_stack(model, format, prefix + "experts.gate_up_proj", layer, {0, 1});
        add_stack(model, format, prefix + "experts.down_proj", layer, {2});
        continue;
      }
      for (int expert = 0; expert < kExperts; ++expert) {
        const std::string start = prefix + place + std::to_string(expert) + ".";
        add_matrix(model, format, start + "gate_proj", {layer, expert, 0});
        add_matrix(model, format, start + "up_proj", {layer, expert, 1});
        add_matrix(model, format, start + "down_proj", {layer, expert, 2});
      }
    }
    return logits_of(model.path());
  }

 private:
  static constexpr int kExperts = 6;
  static constexpr uint64_t kWidth = 32;  // of an expert and of the model
  static constexpr float kScale = 1.0F / 64;

  struct Which {
    int layer;
    int expert;
    int matrix;  // gate, up or down
  };

  static int number(const Which& which, uint64_t row, uint64_t column) {
    const int place = which.layer * 977 + which.expert * 131 + which.matrix * 71;
    const uint64_t mixed = (row * 31 + column) * 2654435761U + static_cast<uint64_t>(place);
    return static_cast<int>((mixed * 0x9E3779B97F4A7C15U) >> 60) - 8;
  }

  static Json scheme(Format format, const char* place) {
    if (place == nullptr) {
      return {{"quant_method", "fp8"},
              {"activation_scheme", "dynamic"},
              {"weight_block_size", nullptr}};
    }
    const bool is_int4 = format == Format::kInt4;
    Json weights = {{"num_bits", is_int4 ? 4 : 8}, {"type", is_int4 ? "int" : "float"}};
    weights["strategy"] = is_int4 ? "group" : "channel";
    if (is_int4) weights["group_size"] = kWidth;
    Json group;
    group["targets"] = Json::array({"Linear"});
    group["weights"] = weights;
    if (!is_int4) {
      group["input_activations"] = {
          {"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}};
    }
    Json all;
    all["quant_method"] = "compressed-tensors";
    all["quantization_status"] = "compressed";
    all["format"] = is_int4 ? "pack-quantized" : "float-quantized";
    all["ignore"] = Json::array({"lm_head"});
    all["config_groups"]["group_0"] = group;
    return all;
  }

  static std::string codes(Format format, const Which& which) {
    std::string bytes;
    for (uint64_t row = 0; row < kWidth; ++row) {
      uint32_t word = 0;
      for (uint64_t column = 0; column < kWidth; ++column) {
        const int value = number(which, row, column);
        const float weight = static_cast<float>(value) * kScale;
        if (format == Format::kBF16) append(bytes, float_to_bf16(weight));
        if (format == Format::kE4M3) append(bytes, e4m3(value));
        word |= static_cast<uint32_t>(value + 8) << (4 * (column % 8));
        if (format != Format::kInt4 || column % 8 != 7) continue;
        append(bytes, word);
        word = 0;
      }
    }
    return bytes;
  }

  // Sign, 4 bits of exponent with a bias of 7, 3 of mantissa.
  static uint8_t e4m3(int value) {
    if (value == 0) return 0;
    const auto size = static_cast<unsigned>(std::abs(value));
    unsigned exponent = 0;
    while (size >> (exponent + 1) != 0) ++exponent;
    const unsigned mantissa = (size << 3 >> exponent) & 7U;
    return static_cast<uint8_t>((value < 0 ? 0x80U : 0U) | (exponent + 7) << 3 | mantissa);
  }

  static void add_stack(RespelledDirectory& model,
                        Format format,
                        const std::string& name,
                        int layer,
                        const std::vector<int>& matrices) {
    StoredTensor stack{.name = name,
                       .dtype = format == Format::kBF16 ? "BF16" : "F8_E4M3",
                       .shape = {kExperts, matrices.size() * kWidth, kWidth}};
    StoredTensor scales{.name = name + "_scale_inv", .dtype = "F32", .shape = {kExperts, 1, 1}};
    for (int expert = 0; expert < kExperts; ++expert) {
      append(scales.bytes, kScale);
      for (const int matrix : matrices) stack.bytes += codes(format, {layer, expert, matrix});
    }
    model.tensors.push_back(std::move(stack));
    if (format != Format::kBF16) model.tensors.push_back(std::move(scales));
  }

  static void add_matrix(RespelledDirectory& model,
                         Format format,
                         const std::string& name,
                         const Which& which) {
    const bool is_int4 = format == Format::kInt4;
    model.tensors.push_back({.name = name + (is_int4 ? ".weight_packed" : ".weight"),
                             .dtype = is_int4                    ? "I32"
                                      : format == Format::kBF16 ? "BF16"
                                                                 : "F8_E4M3",
                             .shape = {kWidth, is_int4 ? kWidth / 8 : kWidth},
                             .bytes = codes(format, which)});
    if (format == Format::kBF16) return;
    StoredTensor scales{.name = name + ".weight_scale", .dtype = "BF16", .shape = {kWidth, 1}};
    for (uint64_t row = 0; row < kWidth; ++row) append(scales.bytes, float_to_bf16(kScale));
    model.tensors.push_back(std::move(scales));
    if (!is_int4) return;
    StoredTensor shape{.name = name + ".weight_shape", .dtype = "I64", .shape = {2}};
    append(shape.bytes, int64_t{kWidth});
    append(shape.bytes, int64_t{kWidth});
    model.tensors.push_back(std::move(shape));
  }
};

TEST(Spellings, ExpertsOfGemma4MayBeApart) {
  using enum GemmaExperts::Format;
  const std::vector<float> usual = GemmaExperts::logits(kBF16, nullptr);
  ASSERT_FALSE(usual.empty());
  const std::vector<float> stacked = GemmaExperts::logits(kE4M3, nullptr);
  EXPECT_LE(relative_error(usual, stacked), 1e-5);
  for (const char* place : {"experts.", "moe.experts."}) {
    EXPECT_EQ(GemmaExperts::logits(kBF16, place), usual) << place;
    EXPECT_LE(relative_error(stacked, GemmaExperts::logits(kE4M3, place)), 1e-4) << place;
    EXPECT_LE(relative_error(usual, GemmaExperts::logits(kInt4, place)), 1e-4) << place;
  }
}

// Row numbers [first, first + count).
void append_rows(std::vector<uint64_t>& rows, uint64_t first, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) rows.push_back(first + i);
}

// Returns the rows of one tensor followed by those of another.
StoredTensor joined(const StoredTensor& a, const StoredTensor& b) {
  StoredTensor both = a;
  both.shape.front() += b.shape.front();
  both.bytes += b.bytes;
  return both;
}

// Qwen3-Next's first GGUF files have q, k, v and the gate of each key head together, as
// directories have.
TEST(Spellings, GatesOfQwen3NextMayBeBesideQueries) {
  constexpr uint64_t kKeyHeads = 2;
  constexpr uint64_t kKeys = 16;    // of a key head
  constexpr uint64_t kValues = 32;  // of a key head's value heads
  constexpr uint64_t kQkv = kKeyHeads * (2 * kKeys + kValues);
  RespelledGguf file("qwen3-next");
  const std::vector<float> usual = logits_of(file.path());
  std::vector<uint64_t> rows;
  for (uint64_t head = 0; head < kKeyHeads; ++head) {
    append_rows(rows, head * kKeys, kKeys);
    append_rows(rows, (kKeyHeads + head) * kKeys, kKeys);
    append_rows(rows, 2 * kKeyHeads * kKeys + head * kValues, kValues);
    append_rows(rows, kQkv + head * kValues, kValues);
  }
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    const StoredTensor gate = file.tensor(prefix + "attn_gate.weight");
    StoredTensor& qkv = file.tensor(prefix + "attn_qkv.weight");
    ASSERT_EQ(qkv.shape.front(), kQkv);
    qkv = with_rows(joined(qkv, gate), rows);
    qkv.name = prefix + "ssm_in.weight";
    std::erase_if(file.tensors, [&](const StoredTensor& each) { return each.name == gate.name; });
  }
  EXPECT_EQ(logits_of(file.path()), usual);
}

// Mistral 4 as GGUF files of two architectures have it.
class Mistral4File {
 public:
  static constexpr int32_t kTokens = 264;  // queries grow from 64 on

  explicit Mistral4File(const std::string& architecture) : prefix_(architecture + ".") {
    file.set_string("general.architecture", architecture);
    for (const auto& [key, value] : {std::pair("block_count", 3U),
                                     std::pair("context_length", 512U),
                                     std::pair("embedding_length", 48U),
                                     std::pair("feed_forward_length", 40U),
                                     std::pair("attention.head_count", kHeads),
                                     std::pair("attention.head_count_kv", 1U),
                                     std::pair("attention.q_lora_rank", 40U),
                                     std::pair("attention.kv_lora_rank", kRank),
                                     std::pair("attention.key_length", kRank + 8),
                                     std::pair("attention.value_length", kRank),
                                     std::pair("attention.key_length_mla", kKeys + 8),
                                     std::pair("attention.value_length_mla", kValues),
                                     std::pair("rope.dimension_count", 8U),
                                     std::pair("rope.scaling.original_context_length", 64U),
                                     std::pair("leading_dense_block_count", 1U),
                                     std::pair("expert_count", 12U),
                                     std::pair("expert_used_count", 3U),
                                     std::pair("expert_group_count", 1U),
                                     std::pair("expert_group_used_count", 1U),
                                     std::pair("expert_shared_count", 2U),
                                     std::pair("expert_feed_forward_length", 24U)}) {
      file.set_uint(prefix_ + key, value);
    }
    file.set_float(prefix_ + "attention.layer_norm_rms_epsilon", 1e-6F);
    file.set_float(prefix_ + "expert_weights_scale", 1.3F);
    file.set_bool(prefix_ + "expert_weights_norm", true);
    file.set_float(prefix_ + "rope.freq_base", 10000);
    file.set_string(prefix_ + "rope.scaling.type", "yarn");
    file.set_float(prefix_ + "rope.scaling.factor", 4);
    file.set_float(prefix_ + "rope.scaling.yarn_log_multiplier", 0.1F);
    for (const StoredTensor& tensor : RespelledDirectory("mistral4").tensors) add(tensor);
  }

  void set_growth(float growth) { file.set_float(prefix_ + "attention.temperature_scale", growth); }

  [[nodiscard]] std::string key(const char* suffix) const { return prefix_ + suffix; }

  RespelledGguf file;

 private:
  static constexpr uint32_t kBf16 = 30;
  static constexpr uint32_t kHeads = 3;
  static constexpr uint32_t kRank = 96;
  static constexpr uint32_t kKeys = 24;
  static constexpr uint32_t kValues = 20;

  void add(StoredTensor tensor) {
    constexpr std::pair<std::string_view, std::string_view> kNames[] = {
        {"model.embed_tokens", "token_embd"},
        {"model.norm", "output_norm"},
        {"lm_head", "output"},
        {"model.layers", "blk"},
        {"input_layernorm", "attn_norm"},
        {"post_attention_layernorm", "ffn_norm"},
        {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
        {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
        {"self_attn.q_a_layernorm", "attn_q_a_norm"},
        {"self_attn.q_a_proj", "attn_q_a"},
        {"self_attn.q_b_proj", "attn_q_b"},
        {"self_attn.o_proj", "attn_output"},
        {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
        {"mlp.experts.down_proj", "ffn_down_exps.weight"},
        {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
        {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
        {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
        {"mlp.gate.", "ffn_gate_inp."},
        {"mlp.gate_proj", "ffn_gate"},
        {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"}};
    for (const auto& [stored, name] : kNames) {
      const size_t at = tensor.name.find(stored);
      if (at != std::string::npos) tensor.name.replace(at, stored.size(), name);
    }
    tensor.type = kBf16;
    const size_t halves = tensor.name.find("self_attn.kv_b_proj");
    if (halves == std::string::npos) return file.tensors.push_back(std::move(tensor));
    add_halves(tensor, tensor.name.substr(0, halves));
  }

  // Each head's rows of keys, transposed, and of values.
  void add_halves(const StoredTensor& whole, const std::string& prefix) {
    StoredTensor keys{
        .name = prefix + "attn_k_b.weight", .type = kBf16, .shape = {kHeads, kRank, kKeys}};
    StoredTensor values{
        .name = prefix + "attn_v_b.weight", .type = kBf16, .shape = {kHeads, kValues, kRank}};
    constexpr size_t kBytes = sizeof(uint16_t);
    for (size_t head = 0; head < kHeads; ++head) {
      const size_t first = head * (kKeys + kValues);
      for (size_t column = 0; column < kRank; ++column) {
        for (size_t row = first; row < first + kKeys; ++row) {
          keys.bytes += whole.bytes.substr((row * kRank + column) * kBytes, kBytes);
        }
      }
      values.bytes +=
          whole.bytes.substr((first + kKeys) * kRank * kBytes, kValues * kRank * kBytes);
    }
    file.tensors.push_back(std::move(keys));
    file.tensors.push_back(std::move(values));
  }

  std::string prefix_;
};

TEST(Spellings, Mistral4MayBeAFile) {
  RespelledDirectory directory("mistral4");
  Mistral4File file("mistral4");
  file.set_growth(0.3F);
  const std::vector<float> usual = logits_of(directory.path(), Mistral4File::kTokens);
  EXPECT_LE(relative_error(usual, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-5);
  // Converters leave the growth out.
  directory.config["rope_parameters"]["llama_4_scaling_beta"] = 0.1;
  file.file.erase(file.key("attention.temperature_scale"));
  const std::vector<float> slower = logits_of(directory.path(), Mistral4File::kTokens);
  EXPECT_GT(relative_error(usual, slower), 1e-3);
  EXPECT_LE(relative_error(slower, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-5);
}

// Mistral Large 3's files say that they are DeepSeek's, and what they have otherwise.
TEST(Spellings, MistralLarge3MayBeAFileOfDeepseek) {
  const std::vector<float> usual =
      logits_of(RespelledDirectory("mistral4").path(), Mistral4File::kTokens);
  Mistral4File file("deepseek2");
  file.set_growth(0.3F);
  file.file.set_uint(file.key("expert_gating_func"), 1);
  EXPECT_LE(relative_error(usual, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-5);
  // The step has a key of its own.
  file.file.set_uint(file.key("attention.temperature_length"), 16);
  EXPECT_GT(relative_error(usual, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-3);
  file.file.set_uint(file.key("attention.temperature_length"), 64);
  EXPECT_LE(relative_error(usual, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-5);
  file.file.set_bool(file.key("expert_weights_norm"), false);
  EXPECT_GT(relative_error(usual, logits_of(file.file.path(), Mistral4File::kTokens)), 1e-3);
}

// GLM-4.1V's files have the rotated rows of q and k in halves, and say so by three positions.
TEST(Spellings, RowsOfGlm4MayRotateInHalves) {
  constexpr uint64_t kHead = 16;
  constexpr uint64_t kRotated = 8;
  constexpr const char* kSections = "glm4.rope.dimension_sections";
  RespelledGguf file("glm4");
  const std::vector<float> usual = logits_of(file.path());
  for (StoredTensor& tensor : file.tensors) {
    const bool is_rotated = tensor.name.find("attn_q.") != std::string::npos ||
                            tensor.name.find("attn_k.") != std::string::npos;
    if (!is_rotated) continue;
    std::vector<uint64_t> rows;
    for (uint64_t head = 0; head < tensor.shape.front(); head += kHead) {
      for (uint64_t i = 0; i < kRotated; i += 2) rows.push_back(head + i);
      for (uint64_t i = 1; i < kRotated; i += 2) rows.push_back(head + i);
      append_rows(rows, head + kRotated, kHead - kRotated);
    }
    tensor = with_rows(tensor, rows);
  }
  EXPECT_GT(relative_error(usual, logits_of(file.path())), 1e-3);
  file.set_ints(kSections, {1, 1, 2, 0});
  EXPECT_LE(relative_error(usual, logits_of(file.path())), 1e-5);
  for (const std::vector<int32_t>& wrong :
       {std::vector<int32_t>{4, 0, 0, 0}, {1, 1, 1, 1}, {1, 1, 1, 0}, {2, 2}}) {
    file.set_ints(kSections, wrong);
    const auto refused = testing::read_model_config_at(file.path());
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().message.find(kSections), std::string::npos)
        << refused.error().message;
  }
}

// Files of Olmo 3 have the whole factor of YaRN where others have what goes beyond it.
TEST(Spellings, Olmo3sFilesHaveTheWholeFactorOfAttention) {
  constexpr int32_t kTokens = 100;
  for (const float factor : {0.9F, kernels::yarn_attention_factor(4, 1)}) {
    RespelledDirectory directory("olmo3");
    directory.config["rope_parameters"]["full_attention"]["attention_factor"] = factor;
    const std::vector<float> usual = logits_of(directory.path(), kTokens);
    for (const char* key :
         {"olmo2.rope.scaling.attn_factor", "olmo2.rope.scaling.yarn_attn_factor"}) {
      RespelledGguf file("olmo3");
      file.set_float(key, factor);
      EXPECT_LE(relative_error(usual, logits_of(file.path(), kTokens)), 1e-5) << key << factor;
    }
  }
}

// A search has taken halves of Llama's layers away, and left others with other KV heads and
// columns: as if what is away wrote zeros, or each query head had a KV head of its own.
class NemotronNas {
 public:
  static constexpr int kHeads = 4;
  static constexpr uint64_t kHead = 16;
  static constexpr uint64_t kWidth = 40;

  NemotronNas() {
    model.config["model_type"] = "nemotron-nas";
    model.config["intermediate_size"] = nullptr;
    model.config["num_key_value_heads"] = nullptr;
    model.config["rms_norm_eps"] = 1e-6;
    model.config["block_configs"] = {block(1, nullptr), block(nullptr, 2 * kWidth)};
    std::vector<uint64_t> rows;  // of the KV head that each query head reads
    for (uint64_t head = 0; head < kHeads; ++head) append_rows(rows, head / 2 * kHead, kHead);
    std::erase_if(model.tensors, [](const StoredTensor& each) {
      return each.name.find("layers.0.mlp.") != std::string::npos ||
             each.name.find("layers.1.self_attn.") != std::string::npos ||
             each.name == "model.layers.0.post_attention_layernorm.weight" ||
             each.name == "model.layers.1.input_layernorm.weight";
    });
    for (StoredTensor& tensor : model.tensors) {
      const bool is_kv = tensor.name.ends_with(".k_proj.weight") ||
                         tensor.name.ends_with(".v_proj.weight");
      if (is_kv) tensor = with_rows(tensor, rows);
      if (tensor.name.ends_with(".down_proj.weight")) tensor = with_zero_columns(tensor);
      const bool is_up = tensor.name.ends_with(".gate_proj.weight") ||
                         tensor.name.ends_with(".up_proj.weight");
      if (is_up) tensor = joined(tensor, tensor);
    }
  }

  // KV heads' queries and columns of a layer; null: no such half.
  static Json block(const Json& group, const Json& width) {
    return {{"attention",
             {{"no_op", group.is_null()},
              {"n_heads_in_group", group},
              {"replace_with_linear", false},
              {"window_length", nullptr}}},
            {"ffn",
             {{"no_op", width.is_null()},
              {"intermediate_size", width},
              {"replace_with_linear", false}}}};
  }

  RespelledDirectory model{"llama"};

 private:
  static StoredTensor with_zero_columns(const StoredTensor& tensor) {
    StoredTensor wide = tensor;
    wide.shape.back() *= 2;
    wide.bytes.clear();
    for (uint64_t row = 0; row < tensor.shape.front(); ++row) {
      wide.bytes += tensor.bytes.substr(row * tensor.row_bytes(), tensor.row_bytes());
      wide.bytes.append(tensor.row_bytes(), '\0');
    }
    return wide;
  }
};

TEST(Spellings, LayersOfNemotronNasAreWhatIsLeftOfLlamas) {
  RespelledDirectory whole("llama");
  for (StoredTensor& tensor : whole.tensors) {
    const bool is_away = tensor.name == "model.layers.0.mlp.down_proj.weight" ||
                         tensor.name == "model.layers.1.self_attn.o_proj.weight";
    if (is_away) tensor.bytes.assign(tensor.bytes.size(), '\0');
  }
  const std::vector<float> usual = logits_of(whole.path());
  const NemotronNas nas;
  EXPECT_LE(relative_error(usual, logits_of(nas.model.path())), 1e-5);
}

TEST(Spellings, WidthsOfNemotronNasAreMultiples) {
  RespelledDirectory model("llama");
  model.config["model_type"] = "nemotron-nas";
  model.config["hidden_size"] = 8192;
  Json& blocks = model.config["block_configs"];
  blocks = {NemotronNas::block(2, 1), NemotronNas::block(4, 1)};
  blocks[0]["ffn"]["ffn_mult"] = 2.625;
  blocks[1]["ffn"]["ffn_mult"] = 1.3125;
  const auto config = testing::read_model_config_at(model.path());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->layers[0].ffn_hidden, 14336);
  EXPECT_EQ(config->layers[1].ffn_hidden, 7168);
  EXPECT_EQ(config->layers[0].num_kv_heads, 2);
  EXPECT_EQ(config->layers[1].num_kv_heads, 1);
}

TEST(Spellings, WhatElseALayerOfNemotronNasMayBeIsRefusedByName) {
  const auto refusal = [](const char* half, const char* key, const Json& value) {
    NemotronNas nas;
    nas.model.config["block_configs"][1][half][key] = value;
    const auto refused = testing::read_model_config_at(nas.model.path());
    EXPECT_FALSE(refused.has_value()) << key;
    return refused ? std::string() : refused.error().message;
  };
  for (const char* half : {"attention", "ffn"}) {
    const std::string error = refusal(half, "replace_with_linear", true);
    EXPECT_NE(error.find("block_configs: found replace_with_linear of layer 1"), std::string::npos)
        << error;
  }
  EXPECT_NE(refusal("attention", "window_length", 8).find("window_length"), std::string::npos);
  EXPECT_NE(refusal("attention", "no_op", false).find("n_heads_in_group"), std::string::npos);
  EXPECT_NE(refusal("ffn", "no_op", true).find("neither half of layer 1"), std::string::npos);
  EXPECT_NE(refusal("ffn", "intermediate_size", "40").find("ffn of layer 1"), std::string::npos);
}

// Granite's models of vectors have gates by SiLU.
TEST(Spellings, FilesOfModernBertNameTheirFunction) {
  using Function = kernels::GateFunction;
  RespelledGguf file("../embeddings/modernbert-mean");
  const auto read = [&](const char* name) {
    file.set_string("modern-bert.hidden_activation", name);
    return testing::read_model_config_at(file.path());
  };
  EXPECT_EQ(testing::read_model_config_at(file.path())->gate_function, Function::kGeluErf);
  EXPECT_EQ(read("gelu")->gate_function, Function::kGeluErf);
  EXPECT_EQ(read("silu")->gate_function, Function::kSilu);
  const auto refused = read("relu");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("hidden_activation: found \"relu\""), std::string::npos)
      << refused.error().message;
}

TEST(Spellings, GeluOfTheFirstGemmaIsItsTanhApproximation) {
  EditedModel gemma("gemma");
  gemma.json["hidden_act"] = "gelu";
  const auto config = testing::read_model_config_at(gemma.path());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->gate_function, kernels::GateFunction::kGeluTanh);
  EditedModel llama("llama");
  llama.json["hidden_act"] = "gelu";
  EXPECT_NE(llama.error().find("hidden_act: found \"gelu\""), std::string::npos);
}

TEST(Spellings, AnotherModelThanTheTextConfigSaysIsRefusedByItsName) {
  EditedModel wrapper("gemma");
  wrapper.json = {{"model_type", "wrapper"}, {"text_config", wrapper.json}};
  EXPECT_EQ(wrapper.error(), "");
  wrapper.json["model_type"] = "paligemma";
  EXPECT_NE(wrapper.error().find("architecture paligemma is not supported: it has prompts whose"),
            std::string::npos)
      << wrapper.error();
  EditedModel granite("granite");
  granite.json["model_type"] = "hyperclovax";
  EXPECT_NE(granite.error().find("use_post_norm"), std::string::npos) << granite.error();
  granite.json["use_post_norm"] = false;
  granite.json["logits_scaling"] = 2;
  const auto config = testing::read_model_config_at(granite.path());
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->logit_scale, 2);
}

TEST(Spellings, ClassesHaveBasesOfTheirOwn) {
  const std::pair<const char*, float> rows[] = {{"mixtral", 1e6F}, {"olmo3", 5e5F}};
  for (const auto& [name, base] : rows) {
    EditedModel model(name);
    for (const char* key : {"rope_theta", "rope_parameters", "rope_scaling"}) model.json.erase(key);
    const auto config = testing::read_model_config_at(model.path());
    ASSERT_TRUE(config.has_value()) << config.error().message;
    for (const auto& rope : config->ropes) EXPECT_EQ(rope.freq_base, base) << name;
  }
}

}  // namespace
}  // namespace sluice
