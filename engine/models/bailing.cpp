// SPDX-License-Identifier: Apache-2.0
// Ling and Ring 2.0 (BailingMoE V2): norms of each head of q and k, half of which rotates, leading
// dense layers, then experts in groups that are chosen by sigmoids with a bias beside shared ones.
// The first version, whose router is a softmax, has the same model_type. Sarvam-30B is one of them.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kBailingDefaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 4U},
    {"max_position_embeddings", 16384U},
    {"rms_norm_eps", 1e-5},
    {"num_experts", 16U},
    {"num_experts_per_tok", 2U},
    {"norm_topk_prob", true},
    {"routed_scaling_factor", 2.5},
    {"first_k_dense_replace", 0U},
};

constexpr KeyDefault kSarvamDefaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 4U},
    {"head_dim", 64U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 8e6},
    {"num_experts", 128U},
    {"num_experts_per_tok", 6U},
    {"num_shared_experts", 1U},
    {"moe_intermediate_size", 1024U},
    {"norm_topk_prob", true},
    {"routed_scaling_factor", 2.5},
    {"first_k_dense_replace", 1U},
};

constexpr TensorName kBailingNames[] = {
    {"model.word_embeddings.weight", "token_embd.weight"},
    {"attention.query_key_value", "attn_qkv"},
    {"attention.dense", "attn_output"},
    {"attention.query_layernorm", "attn_q_norm"},
    {"attention.key_layernorm", "attn_k_norm"},
    {"mlp.gate.expert_bias", "exp_probs_b.bias"},
};

constexpr std::string_view kOwnBailingHfKeys[] = {
    "num_experts", "num_shared_experts", "first_k_dense_replace", "use_qk_norm"};
constexpr auto kBailingHfKeys = joined_lists(kSigmoidExpertHfKeys, kOwnBailingHfKeys);

constexpr std::string_view kBailingGgufKeys[] = {"expert_weights_norm"};

Expected<void> configure_bailing(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const bool has_norms, metadata.get_bool_or("attention.qk_norm", true));
  if (!has_norms) return metadata.wrong("attention.qk_norm", "false", "true, as version 2 has");
  config.qk_norm = QkNorm::kHead;
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kBailingSpec;
const ModelSpec kBailingSpec = {.files = {.gguf = "bailingmoe2",
                                          .model_type = "bailing_moe",
                                          .class_name = "BailingMoeV2ForCausalLM",
                                          .defaults = kBailingDefaults,
                                          .layer_types = LayerTypes::kFull,
                                          .is_partly_rotated = true,
                                          .names = kBailingNames},
                                .configure = configure_bailing,
                                .build = build_decoder,
                                .hf_keys = kBailingHfKeys,
                                .gguf_keys = kBailingGgufKeys};

// Sarvam-30B's directories name themselves.
extern const ModelSpec kSarvamMoeSpec;
const ModelSpec kSarvamMoeSpec = [] {
  ModelSpec spec = kBailingSpec;
  spec.files.reads_gguf = false;
  spec.files.model_type = "sarvam_moe";
  spec.files.class_name = "SarvamMoEForCausalLM";
  spec.files.defaults = kSarvamDefaults;
  return spec;
}();

}  // namespace sluice
