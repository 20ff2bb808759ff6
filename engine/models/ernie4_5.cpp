// SPDX-License-Identifier: Apache-2.0
// Ernie 4.5: Llama whose neighbours rotate. With experts: from a layer on, chosen by softmax and a
// bias, beside shared ones.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kErnie45DenseDefaults[] = {
    {"num_attention_heads", 16U},
    {"num_key_value_heads", 2U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 500000U},
};

constexpr KeyDefault kErnie45MoeDefaults[] = {
    {"num_attention_heads", 20U},
    {"num_key_value_heads", 4U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 500000U},
    {"moe_intermediate_size", 1536U},
    {"moe_k", 6U},
    {"moe_num_experts", 64U},
    {"moe_num_shared_experts", 2U},
    {"moe_layer_start_index", 1U},
};

constexpr TensorName kErnie45MoeNames[] = {
    {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"},
};

constexpr std::string_view kErnie45DenseKeys[] = {"use_bias"};

constexpr std::string_view kErnie45MoeKeys[] = {"use_bias",
                                                "moe_num_experts",
                                                "moe_k",
                                                "moe_num_shared_experts",
                                                "moe_intermediate_size",
                                                "moe_layer_start_index"};

Expected<void> configure_ernie4_5(const Checkpoint&, ModelConfig&) { return {}; }

Expected<void> configure_ernie4_5_moe(const Checkpoint& checkpoint, ModelConfig& config) {
  config.moe.choice_bias = true;
  config.moe.router.floor = 1e-12F;
  return check_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kErnie45Spec;
const ModelSpec kErnie45Spec = {.files = {.gguf = "ernie4_5",
                                          .model_type = "ernie4_5",
                                          .class_name = "Ernie4_5ForCausalLM",
                                          .defaults = kErnie45DenseDefaults,
                                          .ties_embedding = true,
                                          .pairs_rows = true,
                                          .pairs_rows_in_gguf = true},
                                .configure = configure_ernie4_5,
                                .build = build_decoder,
                                .hf_keys = kErnie45DenseKeys};

extern const ModelSpec kErnie45MoeSpec;
const ModelSpec kErnie45MoeSpec = {.files = {.gguf = "ernie4_5-moe",
                                             .model_type = "ernie4_5_moe",
                                             .class_name = "Ernie4_5_MoeForCausalLM",
                                             .defaults = kErnie45MoeDefaults,
                                             .ties_embedding = true,
                                             .names = kErnie45MoeNames,
                                             .pairs_rows = true,
                                             .pairs_rows_in_gguf = true},
                                   .configure = configure_ernie4_5_moe,
                                   .build = build_decoder,
                                   .hf_keys = kErnie45MoeKeys};

}  // namespace sluice
