// SPDX-License-Identifier: Apache-2.0
// OLMoE: experts in every layer, whose weights are not normalized, and norms of whole rows of q and
// k.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kOlmoeDefaults[] = {
    {"num_attention_heads", 16U},
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-5},
    {"num_experts", 64U},
    {"num_experts_per_tok", 8U},
};

constexpr std::string_view kOlmoeHfKeys[] = {
    "num_experts", "num_experts_per_tok", "norm_topk_prob"};

Expected<void> configure_olmoe(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kRow;
  SLUICE_TRY(config.moe.router.normalize,
             checkpoint.metadata().get_bool_or("expert_weights_norm", false));
  return check_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kOlmoeSpec;
const ModelSpec kOlmoeSpec = {.files = {.gguf = "olmoe",
                                        .model_type = "olmoe",
                                        .class_name = "OlmoeForCausalLM",
                                        .defaults = kOlmoeDefaults},
                              .configure = configure_olmoe,
                              .build = build_decoder,
                              .hf_keys = kOlmoeHfKeys};

}  // namespace sluice
