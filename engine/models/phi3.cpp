// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: Llama with fused q, k, v and gate, up; LongRoPE; one window for all layers.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kPhi3Defaults[] = {
    {"max_position_embeddings", 4096U},
    {"rms_norm_eps", 1e-5},
};

constexpr std::string_view kPhi3LongRopeNames[] = {"su", "yarn"};

constexpr TensorName kPhi3Names[] = {
    {"mlp.gate_up_proj", "ffn_up"},
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
                                       .longrope_names = kPhi3LongRopeNames,
                                       .names = kPhi3Names},
                             .configure = configure_phi3,
                             .build = build_decoder};

}  // namespace sluice
