// SPDX-License-Identifier: Apache-2.0
// Baichuan 1 and 2: Llama with q, k and v as one. In the 13B scores fall with distance (ALiBi); in
// version 2 the rows of the output layer are normalized.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kBaichuanDefaults[] = {
    {"num_attention_heads", 32U},
    {"rms_norm_eps", 1e-6},
};

constexpr TensorName kBaichuanNames[] = {{"self_attn.W_pack", "attn_qkv"}};

// The number of layers tells GGUF files of the 13B from those of the 7B, as in llama.cpp.
// Directories of the 13B state no max_position_embeddings.
Expected<void> configure_baichuan(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kLayersOf13B = 40;
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const bool rotates = config.num_layers != kLayersOf13B &&
                       (is_gguf || checkpoint.metadata().has("trained_positions"));
  if (rotates) return {};
  for (LayerConfig& layer : config.layers) layer.rope = -1;
  config.max_alibi_bias = 8;
  return {};
}

}  // namespace

extern const ModelSpec kBaichuanSpec;
const ModelSpec kBaichuanSpec = {.files = {.gguf = "baichuan",
                                           .model_type = "baichuan",
                                           .class_name = "BaichuanForCausalLM",
                                           .defaults = kBaichuanDefaults,
                                           .layer_types = LayerTypes::kFull,
                                           .names = kBaichuanNames,
                                           .pairs_rows_in_gguf = true,
                                           .splits_qkv = true,
                                           .normalized_vocab = 125696},
                                 .configure = configure_baichuan,
                                 .build = build_decoder};

}  // namespace sluice
