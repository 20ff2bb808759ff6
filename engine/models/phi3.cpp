// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: Llama with fused q, k, v and gate, up; LongRoPE; one window for all layers.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_phi3(const Checkpoint& checkpoint, ModelConfig& config) {
  // Writers of quantized files may have split what the family joins.
  config.fused_qkv = !checkpoint.has("blk.0.attn_q.weight");
  config.fused_gate_up = !checkpoint.has("blk.0.ffn_gate.weight");
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kPhi3Spec;
const ModelSpec kPhi3Spec = {.architecture = "phi3",
                             .hf_model_type = "phi3",
                             .configure = configure_phi3,
                             .build = build_decoder};

}  // namespace sluice
