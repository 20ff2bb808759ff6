// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: Llama with fused q, k, v and gate, up; LongRoPE; one window for all layers. The
// text model of Phi-4-multimodal, whose matrices have adapters beside them: those of images and
// sound are left out.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kPhi3Defaults[] = {
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-5},
};

constexpr RopeTypeName kPhi3RopeTypeNames[] = {{"su", "longrope"}, {"yarn", "longrope"}};

constexpr TensorName kPhi3Names[] = {
    {"mlp.gate_up_proj", "ffn_up"},
};

constexpr TensorName kPhi4MmNames[] = {
    {"self_attn.qkv_proj.base_layer", "attn_qkv"},
    {"self_attn.o_proj.base_layer", "attn_output"},
    {"mlp.gate_up_proj.base_layer", "ffn_up"},
    {"mlp.down_proj.base_layer", "ffn_down"},
};

Expected<void> configure_phi3(const Checkpoint& checkpoint, ModelConfig& config) {
  // Writers of quantized files may have split what the family joins.
  config.fused_qkv = !checkpoint.has("blk.0.attn_q.weight");
  config.fused_gate_up = !checkpoint.has("blk.0.ffn_gate.weight");
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kPhi3Spec;
const ModelSpec kPhi3Spec = {.files = {.gguf = "phi3",
                                       .model_type = "phi3",
                                       .class_name = "Phi3ForCausalLM",
                                       .defaults = kPhi3Defaults,
                                       .layer_types = LayerTypes::kAsTheWindow,
                                       .is_partly_rotated = true,
                                       .rope_type_names = kPhi3RopeTypeNames,
                                       .names = kPhi3Names},
                             .configure = configure_phi3,
                             .build = build_decoder};

extern const ModelSpec kPhi4MmSpec;
const ModelSpec kPhi4MmSpec = {.files = {.gguf = "phi3",
                                         .reads_gguf = false,
                                         .model_type = "phi4mm",
                                         .class_name = "Phi4MMForCausalLM",
                                         .defaults = kPhi3Defaults,
                                         .layer_types = LayerTypes::kAsTheWindow,
                                         .is_partly_rotated = true,
                                         .rope_type_names = kPhi3RopeTypeNames,
                                         .names = kPhi4MmNames},
                               .configure = configure_phi3,
                               .build = build_decoder};

}  // namespace sluice
