// SPDX-License-Identifier: Apache-2.0
// OPT: each position adds a learned row in the place of rotations; functions are ReLU.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kOptDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 2048U},
    {"layer_norm_eps", 1e-5},
    {"attention_bias", true},
};

constexpr RequiredNumber kOptRequired[] = {{"do_layer_norm_before", 1},
                                           {"_remove_final_layer_norm", 0},
                                           {"layer_norm_elementwise_affine", 1},
                                           {"enable_bias", 1}};

constexpr TensorName kOptNames[] = {
    {"model.decoder.embed_tokens.weight", "token_embd.weight"},
    {"decoder.embed_tokens.weight", "token_embd.weight"},
    {"model.decoder.embed_positions.weight", "position_embd.weight"},
    {"decoder.embed_positions.weight", "position_embd.weight"},
    {"model.decoder.final_layer_norm.weight", "output_norm.weight"},
    {"decoder.final_layer_norm.weight", "output_norm.weight"},
    {"model.decoder.final_layer_norm.bias", "output_norm.bias"},
    {"decoder.final_layer_norm.bias", "output_norm.bias"},
    {"self_attn_layer_norm", "attn_norm"},
    {"self_attn.out_proj", "attn_output"},
    {"final_layer_norm", "ffn_norm"},
    {"fc1", "ffn_up"},
    {"fc2", "ffn_down"},
};

// The 350M model, alone of its family, embeds in another width and norms what halves have added.
Expected<void> configure_opt(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr const char* kWidth = "embedding_width";
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const int32_t width, metadata.get_count_or(kWidth, 1 << 20, config.hidden));
  if (width != config.hidden) {
    return metadata.wrong(kWidth, std::to_string(width), std::to_string(config.hidden));
  }
  take_biases(checkpoint, config);
  constexpr int32_t kFirst = 2;
  take_positions(kFirst, config);
  return {};
}

}  // namespace

extern const ModelSpec kOptSpec;
const ModelSpec kOptSpec = {.files = {.model_type = "opt",
                                      .class_name = "OPTForCausalLM",
                                      .defaults = kOptDefaults,
                                      .required = kOptRequired,
                                      .layer_types = LayerTypes::kFull,
                                      .ties_embedding = true,
                                      .names = kOptNames,
                                      .layers_place = "model.decoder.layers.",
                                      .subtracts_mean = true,
                                      .is_gated = false,
                                      .function = "relu"},
                            .configure = configure_opt,
                            .build = build_decoder};

}  // namespace sluice
