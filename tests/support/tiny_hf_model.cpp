// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_hf_model.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <vector>

#include "quant/format.h"

namespace sluice::testing {
namespace {

constexpr int64_t kVocab = 440;
constexpr int64_t kHidden = 64;
constexpr int64_t kFfn = 72;
constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 16;
constexpr int kLayers = 2;
constexpr int kExperts = 5;
constexpr int64_t kExpertFfn = 40;

bool is_int8(TinyWeights weights) {
  return weights == TinyWeights::kInt8 || weights == TinyWeights::kInt8Experts ||
         weights == TinyWeights::kInt8Tied;
}

bool is_tied(TinyWeights weights) {
  return !is_int8(weights) || weights == TinyWeights::kInt8Tied;
}

bool has_experts(TinyWeights weights) {
  return weights == TinyWeights::kInt8Experts || weights == TinyWeights::kBF16Experts;
}

class Writer {
 public:
  explicit Writer(TinyWeights weights) : weights_(weights) {}

  // Adds values around `center`, in the model's float type.
  void floats(const std::string& name,
              const std::vector<int64_t>& shape,
              float center,
              float size) {
    const bool half = weights_ == TinyWeights::kF16;
    std::vector<uint16_t> values(static_cast<size_t>(count(shape)));
    for (uint16_t& value : values) {
      const float x = center + size * random();
      value = half ? float_to_half(x) : float_to_bf16(x);
    }
    add(name, half ? "F16" : "BF16", shape, std::as_bytes(std::span(values)));
  }

  // Adds a Linear's weight, and its bias if it has one.
  void linear(const std::string& name, int64_t n, int64_t k, bool bias) {
    if (is_int8(weights_)) {
      std::vector<int8_t> codes(static_cast<size_t>(n * k));
      for (int8_t& code : codes) code = static_cast<int8_t>(127.0F * random());
      add(name + ".weight", "I8", {n, k}, std::as_bytes(std::span(codes)));
      floats(name + ".weight_scale", {n, 1}, 0.003F, 0.001F);
    } else {
      floats(name + ".weight", {n, k}, 0, 0.4F);
    }
    if (bias) floats(name + ".bias", {n}, 0, 0.2F);
  }

  [[nodiscard]] bool write(const std::string& path) const {
    const std::string header = "{" + header_ + "}";
    const uint64_t length = header.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), sizeof(length));
    out << header;
    out.write(reinterpret_cast<const char*>(data_.data()),
              static_cast<std::streamsize>(data_.size()));
    return out.good();
  }

 private:
  static int64_t count(const std::vector<int64_t>& shape) {
    int64_t product = 1;
    for (const int64_t n : shape) product *= n;
    return product;
  }

  // Returns a number in [-1, 1).
  float random() { return static_cast<float>(static_cast<int32_t>(random_())) * 0x1p-31F; }

  void add(const std::string& name,
           const std::string& dtype,
           const std::vector<int64_t>& shape,
           std::span<const std::byte> bytes) {
    std::string dims;
    for (const int64_t n : shape) dims += (dims.empty() ? "" : ",") + std::to_string(n);
    header_ += (header_.empty() ? "\"" : ",\"") + name + R"(":{"dtype":")" + dtype +
               R"(","shape":[)" + dims + R"(],"data_offsets":[)" + std::to_string(data_.size()) +
               "," + std::to_string(data_.size() + bytes.size()) + "]}";
    data_.insert(data_.end(), bytes.begin(), bytes.end());
  }

  TinyWeights weights_;
  std::mt19937 random_{7};
  std::string header_;
  std::vector<std::byte> data_;
};

std::string config_json(TinyWeights weights) {
  const bool int8 = is_int8(weights);
  std::string text =
      R"({"hidden_act":"silu","rms_norm_eps":1e-06,"bos_token_id":0,)"
      R"("eos_token_id":1,"pad_token_id":2,"mlp_bias":false,)"
      R"("max_position_embeddings":512,"num_hidden_layers":2,"num_attention_heads":4,)"
      R"("num_key_value_heads":2,"head_dim":16,"hidden_size":64,)"
      R"("intermediate_size":72,"vocab_size":440,)"
      R"("rope_parameters":{"rope_theta":10000.0,"rope_type":"default"},)";
  if (has_experts(weights)) {
    text += R"("model_type":"qwen3_moe","attention_bias":false,"num_experts":5,)"
            R"("num_experts_per_tok":2,"moe_intermediate_size":40,"norm_topk_prob":true,)";
  } else {
    text += int8 ? R"("model_type":"llama","attention_bias":true,)"
                 : R"("model_type":"qwen3","attention_bias":false,)";
  }
  text += is_tied(weights) ? R"("tie_word_embeddings":true,)" : R"("tie_word_embeddings":false,)";
  text +=
      weights == TinyWeights::kF16 ? R"("torch_dtype":"float16")" : R"("torch_dtype":"bfloat16")";
  if (int8) {
    text += R"(,"quantization_config":{"quant_method":"compressed-tensors",)"
            R"("format":"int-quantized","quantization_status":"compressed","ignore":[],)"
            R"("config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":8,)"
            R"("type":"int","symmetric":true,"strategy":"channel","dynamic":false},)"
            R"("input_activations":{"num_bits":8,"type":"int","symmetric":true,)"
            R"("strategy":"token","dynamic":true}}}})";
  }
  return text + "}";
}

void write_feed_forward(Writer& writer, const std::string& prefix, TinyWeights weights) {
  const auto pair = [&](const std::string& stem, int64_t ffn) {
    writer.linear(stem + ".gate_proj", ffn, kHidden, false);
    writer.linear(stem + ".up_proj", ffn, kHidden, false);
    writer.linear(stem + ".down_proj", kHidden, ffn, false);
  };
  if (!has_experts(weights)) return pair(prefix + "mlp", kFfn);
  writer.floats(prefix + "mlp.gate.weight", {kExperts, kHidden}, 0, 0.4F);
  for (int expert = 0; expert < kExperts; ++expert) {
    pair(prefix + "mlp.experts." + std::to_string(expert), kExpertFfn);
  }
}

}  // namespace

bool write_tiny_hf_model(const std::string& folder, TinyWeights weights) {
  const bool int8 = is_int8(weights);
  const bool bias = int8 && !has_experts(weights);
  Writer writer(weights);
  if (weights == TinyWeights::kInt8Tied) {
    writer.linear("model.embed_tokens", kVocab, kHidden, false);
  } else {
    writer.floats("model.embed_tokens.weight", {kVocab, kHidden}, 0, 1);
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    writer.floats(prefix + "input_layernorm.weight", {kHidden}, 1, 0.2F);
    writer.linear(prefix + "self_attn.q_proj", kHeads * kHeadDim, kHidden, bias);
    writer.linear(prefix + "self_attn.k_proj", kKvHeads * kHeadDim, kHidden, bias);
    writer.linear(prefix + "self_attn.v_proj", kKvHeads * kHeadDim, kHidden, bias);
    writer.linear(prefix + "self_attn.o_proj", kHidden, kHeads * kHeadDim, bias);
    if (!bias) {
      writer.floats(prefix + "self_attn.q_norm.weight", {kHeadDim}, 1, 0.2F);
      writer.floats(prefix + "self_attn.k_norm.weight", {kHeadDim}, 1, 0.2F);
    }
    writer.floats(prefix + "post_attention_layernorm.weight", {kHidden}, 1, 0.2F);
    write_feed_forward(writer, prefix, weights);
  }
  writer.floats("model.norm.weight", {kHidden}, 1, 0.2F);
  if (!is_tied(weights)) writer.linear("lm_head", kVocab, kHidden, false);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream config(folder + "/config.json");
  config << config_json(weights);
  return config.good() && writer.write(folder + "/model.safetensors");
}

}  // namespace sluice::testing
