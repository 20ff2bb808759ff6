// SPDX-License-Identifier: Apache-2.0
// Ministral 3: Llama with YaRN, whose queries grow with their positions.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kMinistral3Defaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 262144U},
    {"rms_norm_eps", 1e-5},
};

constexpr KeyDefault kMinistral3Rope[] = {
    {"rope_type", "yarn"},
    {"rope_theta", 1e6},
    {"factor", 16U},
    {"original_max_position_embeddings", 16384U},
    {"mscale", 1U},
    {"mscale_all_dim", 1U},
    {"llama_4_scaling_beta", 0.1},
};

Expected<void> configure_ministral3(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMinistral3Spec;
const ModelSpec kMinistral3Spec = {.files = {.gguf = "mistral3",
                                             .model_type = "ministral3",
                                             .class_name = "Ministral3ForCausalLM",
                                             .defaults = kMinistral3Defaults,
                                             .rope_defaults = kMinistral3Rope,
                                             .layer_types = LayerTypes::kAsTheWindow,
                                             .pairs_rows_in_gguf = true,
                                             .scales_queries = true,
                                             .usual_pretokenizer = "tekken"},
                                   .configure = configure_ministral3,
                                   .build = build_decoder};

}  // namespace sluice
