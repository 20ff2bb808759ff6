// SPDX-License-Identifier: Apache-2.0
// DBRX: limits of q, k and v, experts whose weights are a softmax normalized, norms that subtract
// the mean. Directories have the down matrices of a layer's experts transposed.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kDbrxDefaults[] = {
    {"num_attention_heads", 16U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
};

constexpr TensorName kDbrxNames[] = {
    {"transformer.wte.weight", "token_embd.weight"},
    {"transformer.norm_f.weight", "output_norm.weight"},
    {"norm_attn_norm.norm_1", "attn_norm"},
    {"norm_attn_norm.attn.Wqkv", "attn_qkv"},
    {"norm_attn_norm.attn.out_proj", "attn_output"},
    {"norm_attn_norm.norm_2", "ffn_norm"},
    {"ffn.router.layer", "ffn_gate_inp"},
    {"ffn.experts.mlp.w1", "ffn_gate_exps.weight"},
    {"ffn.experts.mlp.v1", "ffn_up_exps.weight"},
};

constexpr TensorName kDbrxGgufNames[] = {{"attn_output_norm", "ffn_norm"}};

constexpr std::string_view kDbrxGgufKeys[] = {"attention.clamp_kqv"};

Expected<void> configure_dbrx(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(check_experts(checkpoint, config));
  config.fused_qkv = true;
  SLUICE_TRY(const double power, metadata.get_float_or("expert_weights_power", 1));
  if (power != 1) return metadata.wrong("expert_weights_power", std::to_string(power), "1");
  constexpr const char* kLimit = "attention.clamp_kqv";
  SLUICE_TRY(const double limit, metadata.get_float_or(kLimit, 0));
  if (!(limit >= 0 && limit <= 1e6)) {
    return metadata.wrong(kLimit, std::to_string(limit), "0 to 1e6");
  }
  config.qkv_limit = static_cast<float>(limit);
  return {};
}

}  // namespace

extern const ModelSpec kDbrxSpec;
const ModelSpec kDbrxSpec = {.files = {.gguf = "dbrx",
                                       .model_type = "dbrx",
                                       .class_name = "DbrxForCausalLM",
                                       .defaults = kDbrxDefaults,
                                       .layer_types = LayerTypes::kFull,
                                       .names = kDbrxNames,
                                       .layers_place = "transformer.blocks.",
                                       .gguf_names = kDbrxGgufNames,
                                       .experts = ExpertTensors::kTransposedDown,
                                       .experts_place = "ffn.experts.mlp.",
                                       .subtracts_mean = true,
                                       .limits_qkv = true},
                             .configure = configure_dbrx,
                             .build = build_decoder,
                             .gguf_keys = kDbrxGgufKeys};

}  // namespace sluice
