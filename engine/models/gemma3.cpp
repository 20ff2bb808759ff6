// SPDX-License-Identifier: Apache-2.0
// Gemma 3 text: Gemma 2 without caps, norms of each head of q and k, five windowed layers with a
// rope base of their own for each full one.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_gemma3(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  config.norm_offset = checkpoint.kind() == CheckpointKind::kGguf ? 0.0F : 1.0F;
  config.qk_norm = QkNorm::kHead;
  if (!metadata.has("hidden_act")) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  SLUICE_TRY(config.attention_scale, read_attention_scale(metadata, 62, config));
  SLUICE_TRY(const double cap, read_soft_cap(metadata, "final_logit_softcapping", 0));
  config.logit_soft_cap = static_cast<float>(cap);
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 6, config));
  return use_local_rope(metadata, 10000, config);
}

}  // namespace

extern const ModelSpec kGemma3Spec;
const ModelSpec kGemma3Spec = {.architecture = "gemma3",
                               .hf_model_type = "gemma3_text",
                               .configure = configure_gemma3,
                               .build = build_decoder};

}  // namespace sluice
