// SPDX-License-Identifier: Apache-2.0
// Qwen3, mixture of experts in every layer.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kQwen3MoeDefaults[] = {
    {"num_key_value_heads", 4U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"num_experts", 128U},
    {"num_experts_per_tok", 8U},
    {"moe_intermediate_size", 768U},
};

constexpr std::string_view kQwen3MoeHfKeys[] = {"use_sliding_window",
                                                "num_experts",
                                                "num_experts_per_tok",
                                                "moe_intermediate_size",
                                                "norm_topk_prob",
                                                "decoder_sparse_step",
                                                "mlp_only_layers"};

Expected<void> configure_qwen3_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.qk_norm = QkNorm::kHead;
  // GGUF has no such key: all its models of this kind normalize.
  SLUICE_TRY(
      config.moe.router.normalize,
      metadata.get_bool_or("expert_weights_norm", checkpoint.kind() == CheckpointKind::kGguf));
  SLUICE_TRY(const int32_t every, metadata.get_count_or("decoder_sparse_step", 1024, 1));
  if (config.moe.num_experts == 0 || every != 1) {
    return metadata.wrong(every != 1 ? "decoder_sparse_step" : "expert_count",
                          std::to_string(every != 1 ? every : 0),
                          "experts in every layer");
  }
  SLUICE_TRY(const bool windowed, metadata.get_bool_or("use_sliding_window", false));
  if (!windowed) return {};
  SLUICE_TRY(const int32_t window, read_window(metadata));
  for (LayerConfig& layer : config.layers) layer.window = window;  // all of them, unlike Qwen3
  return {};
}

}  // namespace

extern const ModelSpec kQwen3MoeSpec;
const ModelSpec kQwen3MoeSpec = {.files = {.gguf = "qwen3moe",
                                           .model_type = "qwen3_moe",
                                           .class_name = "Qwen3MoeForCausalLM",
                                           .defaults = kQwen3MoeDefaults,
                                           .may_be_qwen3_reranker = true},
                                 .configure = configure_qwen3_moe,
                                 .build = build_decoder,
                                 .hf_keys = kQwen3MoeHfKeys};

}  // namespace sluice
