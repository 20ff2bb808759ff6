// SPDX-License-Identifier: Apache-2.0
// The text models of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3 whose tokens have three
// positions, which are equal for text. What is written from them is plain Qwen2 or Qwen3, which
// compute the same; files of llama.cpp have names of their own.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kQwen2VlDefaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 1000000U},
    {"sliding_window", 4096U},
    {"max_window_layers", 80U},
};

constexpr KeyDefault kQwen3VlDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"head_dim", 128U},
    {"max_position_embeddings", 128000U},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 500000U},
};

constexpr KeyDefault kQwen3VlMoeDefaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 16U},
    {"max_position_embeddings", 128000U},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 500000U},
    {"num_experts", 60U},
    {"num_experts_per_tok", 4U},
    {"moe_intermediate_size", 1408U},
};

// The router normalizes, whatever a file says.
constexpr RequiredNumber kQwen3VlMoeRequired[] = {{"decoder_sparse_step", 1}};

constexpr std::string_view kQwenVlHfKeys[] = {"use_sliding_window"};

constexpr std::string_view kQwen3VlMoeHfKeys[] = {"num_experts",
                                                "num_experts_per_tok",
                                                "moe_intermediate_size",
                                                "norm_topk_prob",
                                                "decoder_sparse_step",
                                                "mlp_only_layers"};

Expected<void> configure_qwen2_vl(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qkv_bias = true;
  return read_optional_window(checkpoint, config);
}

Expected<void> configure_qwen3_vl(const Checkpoint&, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return {};
}

Expected<void> configure_qwen3_vl_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return check_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen2VlSpec;
const ModelSpec kQwen2VlSpec = {.files = {.gguf = "qwen2",
                                          .reads_gguf = false,
                                          .model_type = "qwen2_vl_text",
                                          .class_name = "Qwen2VLForConditionalGeneration",
                                          .defaults = kQwen2VlDefaults,
                                          .has_image_positions = true},
                                .configure = configure_qwen2_vl,
                                .build = build_decoder};

extern const ModelSpec kQwen25VlSpec;
const ModelSpec kQwen25VlSpec = {.files = {.gguf = "qwen2",
                                           .reads_gguf = false,
                                           .model_type = "qwen2_5_vl_text",
                                           .class_name = "Qwen2_5_VLForConditionalGeneration",
                                           .defaults = kQwen2VlDefaults,
                                           .has_image_positions = true},
                                 .configure = configure_qwen2_vl,
                                 .build = build_decoder};

extern const ModelSpec kQwen3VlSpec;
const ModelSpec kQwen3VlSpec = {.files = {.gguf = "qwen3",
                                          .reads_gguf = false,
                                          .model_type = "qwen3_vl_text",
                                          .class_name = "Qwen3VLForConditionalGeneration",
                                          .defaults = kQwen3VlDefaults,
                                          .has_image_positions = true,
                                          .may_be_qwen3_reranker = true},
                                .configure = configure_qwen3_vl,
                                .build = build_decoder};

extern const ModelSpec kQwen3VlMoeSpec;
const ModelSpec kQwen3VlMoeSpec = {.files = {.gguf = "qwen3moe",
                                             .reads_gguf = false,
                                             .model_type = "qwen3_vl_moe_text",
                                             .class_name = "Qwen3VLMoeForConditionalGeneration",
                                             .defaults = kQwen3VlMoeDefaults,
                                             .required = kQwen3VlMoeRequired,
                                             .experts = ExpertTensors::kTransposedHalves,
                                             .has_image_positions = true,
                                             .may_be_qwen3_reranker = true},
                                   .configure = configure_qwen3_vl_moe,
                                   .build = build_decoder};

extern const ModelSpec kQwen2VlFileSpec;
const ModelSpec kQwen2VlFileSpec = {.files = {.gguf = "qwen2vl",
                                              .model_type = "qwen2",
                                              .reads_directories = false,
                                              .class_name = "Qwen2ForCausalLM"},
                                    .configure = configure_qwen2_vl,
                                    .build = build_decoder,
                                    .hf_keys = kQwenVlHfKeys};

extern const ModelSpec kQwen3VlFileSpec;
const ModelSpec kQwen3VlFileSpec = {.files = {.gguf = "qwen3vl",
                                              .model_type = "qwen3",
                                              .reads_directories = false,
                                              .class_name = "Qwen3ForCausalLM",
                                              .may_be_qwen3_reranker = true},
                                    .configure = configure_qwen3_vl,
                                    .build = build_decoder};

extern const ModelSpec kQwen3VlMoeFileSpec;
const ModelSpec kQwen3VlMoeFileSpec = {.files = {.gguf = "qwen3vlmoe",
                                                 .model_type = "qwen3_moe",
                                                 .reads_directories = false,
                                                 .class_name = "Qwen3MoeForCausalLM",
                                                 .may_be_qwen3_reranker = true},
                                       .configure = configure_qwen3_vl_moe,
                                       .build = build_decoder,
                                       .hf_keys = kQwen3VlMoeHfKeys};

}  // namespace sluice
