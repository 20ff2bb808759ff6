// SPDX-License-Identifier: Apache-2.0
// Nomic's BERT: an encoder (encoder.h) whose positions are rotations. In v1 feed-forward halves are
// gated, without biases but in norms; in v2 they are not, with biases, and every other layer has
// experts.
#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
namespace {

// Defaults of transformers' class. Texts longer than those that it was trained on need other
// rotations, which its authors' code computes anew for each length.
constexpr KeyDefault kNomicDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-12},
    {"hidden_act", std::string_view("silu")},
    {"rope_theta", 1000.0},
};

// transformers' names, and those of the authors' code.
constexpr TensorName kNomicNames[] = {
    {"model.embeddings.word_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.token_type_embeddings.weight", "token_types.weight"},
    {"model.embeddings.LayerNorm.weight", "token_embd_norm.weight"},
    {"model.embeddings.LayerNorm.bias", "token_embd_norm.bias"},
    {"model.emb_ln.weight", "token_embd_norm.weight"},
    {"model.emb_ln.bias", "token_embd_norm.bias"},
    {"post_attention_layernorm", "attn_output_norm"},
    {"post_mlp_layernorm", "layer_output_norm"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.out_proj", "attn_output"},
    {"mlp.fc1", "ffn_up"},
    {"mlp.fc11", "ffn_up"},
    {"mlp.fc12", "ffn_gate"},
    {"mlp.fc2", "ffn_down"},
    {"mlp.router.layer", "ffn_gate_inp"},
    {"mlp.experts.mlp.w1", "ffn_up_exps.weight"},
    {"mlp.experts.bias", "ffn_exps.bias"},
    {"norm1", "attn_output_norm"},
    {"norm2", "layer_output_norm"},
};

// Experts are in each n-th layer from the second on; 0: in none.
Expected<void> place_experts(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY(const uint64_t period, checkpoint.metadata().get_uint_or("moe_every_n_layers", 0));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const bool has_experts = period > 0 && static_cast<uint64_t>(i) % period == 1;
    config.layers[static_cast<size_t>(i)].ffn =
        has_experts ? FfnKind::kExperts : FfnKind::kDense;
  }
  SLUICE_TRY(config.moe.router.normalize,
             checkpoint.metadata().get_bool_or("expert_weights_norm", false));
  config.moe.sum_bias = checkpoint.has("blk.1.ffn_exps.bias");
  return {};
}

Expected<void> configure_nomic(const Checkpoint& checkpoint, ModelConfig& config) {
  if (config.moe.num_experts > 0) SLUICE_TRY_VOID(place_experts(checkpoint, config));
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const bool says_gelu = config.gate_function == kernels::GateFunction::kGeluErf;
  if (!checkpoint.has("blk.0.ffn_gate.weight") && (says_gelu || is_gguf)) {
    config.gate_function = kernels::GateFunction::kGelu;
    config.fused_gate_up = false;
  }
  return configure_post_norm_encoder(checkpoint, true, config);
}

constexpr FileSpec nomic_files(std::string_view gguf, std::string_view model_type) {
  return {.gguf = gguf,
          .model_type = model_type,
          .class_name = model_type.empty() ? "" : "NomicBertModel",
          .defaults = kNomicDefaults,
          .names = kNomicNames,
          .experts = ExpertTensors::kTransposedDown,
          .experts_place = "mlp.experts.mlp.",
          .subtracts_mean = true,
          .is_encoder = true,
          .before_scores = "cls.weight"};
}

}  // namespace

extern const ModelSpec kNomicBertSpec;
const ModelSpec kNomicBertSpec = {.files = nomic_files("nomic-bert", "nomic_bert"),
                                  .configure = configure_nomic,
                                  .build = build_encoder};

// GGUF files of v2; its directories are those of v1.
extern const ModelSpec kNomicBertMoeSpec;
const ModelSpec kNomicBertMoeSpec = {.files = nomic_files("nomic-bert-moe", ""),
                                     .configure = configure_nomic,
                                     .build = build_encoder};

}  // namespace sluice
