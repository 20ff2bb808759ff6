// SPDX-License-Identifier: Apache-2.0
// Nemotron-H and Nemotron 3: each layer is one norm and one half, Mamba-2, attention without
// positions, a dense half or experts, without gates. Nemotron 3 Super's experts read and write a
// narrower row. `time_step_min` bounds no step, as in transformers' recurrent form; its form in
// chunks clamps to it.
#include <algorithm>
#include <string>
#include <vector>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/recurrent_layers.h"

namespace sluice {
namespace {

constexpr KeyDefault kNemotronHDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 4096U},
    {"layer_norm_epsilon", 1e-5},
    {"ssm_state_size", 128U},
    {"mamba_num_heads", 128U},
    {"mamba_head_dim", 64U},
    {"n_groups", 8U},
    {"conv_kernel", 4U},
    {"mamba_hidden_act", std::string_view("silu")},
    {"intermediate_size", 21504U},
    {"n_routed_experts", 8U},
    {"num_experts_per_tok", 2U},
    {"moe_intermediate_size", 7688U},
    {"moe_shared_expert_intermediate_size", 7688U},
};

constexpr TensorName kNemotronHNames[] = {
    {"model.embeddings.weight", "token_embd.weight"},
    {"model.norm_f.weight", "output_norm.weight"},
    {"norm", "attn_norm"},
    {"mixer.q_proj", "attn_q"},
    {"mixer.k_proj", "attn_k"},
    {"mixer.v_proj", "attn_v"},
    {"mixer.o_proj", "attn_output"},
    {"mixer.in_proj", "mamba_in"},
    {"mixer.conv1d", "mamba_conv"},
    {"mixer.A_log", "mamba_log_rate.weight"},
    {"mixer.D", "mamba_skip.weight"},
    {"mixer.dt_bias", "mamba_dt.bias"},
    {"mixer.norm", "mamba_norm"},
    {"mixer.out_proj", "mamba_out"},
    {"mixer.up_proj", "ffn_up"},
    {"mixer.down_proj", "ffn_down"},
    {"mixer.gate", "ffn_gate_inp"},
    {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mixer.experts.#.up_proj", "ffn_up_exps"},
    {"mixer.experts.#.down_proj", "ffn_down_exps"},
    {"mixer.experts.up_proj", "ffn_up_exps.weight"},
    {"mixer.experts.down_proj", "ffn_down_exps.weight"},
    {"mixer.shared_experts.up_proj", "ffn_up_shexp"},
    {"mixer.shared_experts.down_proj", "ffn_down_shexp"},
    {"mixer.fc1_latent_proj", "ffn_latent_down"},
    {"mixer.fc2_latent_proj", "ffn_latent_up"},
};

enum class LayerKind : int8_t { kAttention, kMamba, kDense, kExperts };

// GGUF lists two numbers of each layer, of which the one of its half is not 0; Mamba-2 has neither.
// There its halves without attention are experts, if there are any.
Expected<std::vector<double>> kinds_of_gguf(const Metadata& metadata, bool has_experts) {
  SLUICE_TRY(const std::vector<double> heads, metadata.get_numbers("attention.head_count_kv"));
  SLUICE_TRY(const std::vector<double> widths, metadata.get_numbers("feed_forward_length"));
  std::vector<double> kinds;
  for (size_t i = 0; i < std::min(heads.size(), widths.size()); ++i) {
    const LayerKind kind = widths[i] > 0  ? has_experts ? LayerKind::kExperts : LayerKind::kDense
                           : heads[i] > 0 ? LayerKind::kAttention
                                          : LayerKind::kMamba;
    kinds.push_back(static_cast<double>(kind));
  }
  return kinds;
}

Expected<void> read_kinds(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool in_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const char* const key = in_gguf ? "feed_forward_length" : "layer_kinds";
  SLUICE_TRY(std::vector<double> kinds,
             in_gguf ? kinds_of_gguf(metadata, config.moe.num_experts > 0)
                     : metadata.get_numbers(key));
  // GGUF also counts modules after the layers.
  if (in_gguf && kinds.size() > config.layers.size()) kinds.resize(config.layers.size());
  if (kinds.size() != config.layers.size()) {
    return metadata.wrong(key,
                          std::to_string(kinds.size()) + " elements",
                          "one for each of " + std::to_string(config.num_layers) + " layers");
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    if (kinds[i] < 0) {
      return metadata.wrong(key,
                            "an unknown type of layer " + std::to_string(i),
                            "mamba (M), attention (*), mlp (-) or moe (E)");
    }
    const auto kind = static_cast<LayerKind>(kinds[i]);
    layer.rope = -1;
    layer.mixer = kind == LayerKind::kAttention ? MixerKind::kAttention
                  : kind == LayerKind::kMamba   ? MixerKind::kMamba2
                                                : MixerKind::kNone;
    layer.ffn = kind == LayerKind::kDense     ? FfnKind::kDense
                : kind == LayerKind::kExperts ? FfnKind::kExperts
                                              : FfnKind::kNone;
  }
  return {};
}

Expected<void> configure_nemotron_h(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(read_recurrent_layers(checkpoint, MixerKind::kMamba2, 1, config));
  SLUICE_TRY_VOID(read_mamba(checkpoint, config));
  SLUICE_TRY_VOID(read_kinds(checkpoint, config));
  // The class has no biases of q, k and v, whatever the file says.
  config.qkv_bias = false;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    config.qkv_bias |= checkpoint.has("blk." + std::to_string(i) + ".attn_q.bias");
  }
  if (!config.has_experts()) {
    config.moe = {};
    return {};
  }
  SLUICE_TRY_VOID(read_sigmoid_experts(checkpoint, config));
  SLUICE_TRY(config.moe.latent, metadata.get_count_or("moe_latent_size", 1 << 20, 0));
  return {};
}

}  // namespace

extern const ModelSpec kNemotronHSpec;
const ModelSpec kNemotronHSpec = {.files = {.gguf = "nemotron_h",
                                            .model_type = "nemotron_h",
                                            .class_name = "NemotronHForCausalLM",
                                            .defaults = kNemotronHDefaults,
                                            .layer_types = LayerTypes::kRecurrent,
                                            .names = kNemotronHNames,
                                            .gguf_names = kMambaGgufNames,
                                            .is_gated = false},
                                  .configure = configure_nemotron_h,
                                  .build = build_decoder};

extern const ModelSpec kNemotronHMoeSpec;
const ModelSpec kNemotronHMoeSpec = {.files = {.gguf = "nemotron_h_moe",
                                               .layer_types = LayerTypes::kRecurrent,
                                               .gguf_names = kMambaGgufNames,
                                               .is_gated = false},
                                     .configure = configure_nemotron_h,
                                     .build = build_decoder};

}  // namespace sluice
