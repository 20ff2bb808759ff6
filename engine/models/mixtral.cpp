// SPDX-License-Identifier: Apache-2.0
// Mixtral: Llama with a mixture of experts in every layer. GGUF files call it llama.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kMixtralDefaults[] = {
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 1e6},
    {"num_local_experts", 8U},
    {"num_experts_per_tok", 2U},
};

constexpr TensorName kMixtralNames[] = {
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.#.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.#.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.#.w2", "ffn_down_exps"},
};

constexpr std::string_view kMixtralHfKeys[] = {"num_local_experts", "num_experts_per_tok"};

bool is_mixtral(const ModelConfig& config) { return config.moe.num_experts > 0; }

Expected<void> configure_mixtral(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(check_experts(checkpoint, config));
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMixtralSpec;
const ModelSpec kMixtralSpec = {.files = {.gguf = "llama",
                                          .reads_gguf = false,
                                          .model_type = "mixtral",
                                          .class_name = "MixtralForCausalLM",
                                          .defaults = kMixtralDefaults,
                                          .layer_types = LayerTypes::kAsTheWindow,
                                          .names = kMixtralNames},
                                .configure = configure_mixtral,
                                .build = build_decoder,
                                .takes_gguf = is_mixtral,
                                .hf_keys = kMixtralHfKeys};

}  // namespace sluice
