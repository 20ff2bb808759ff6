// SPDX-License-Identifier: Apache-2.0
// Gemma 2: norms around each half, GeLU gates, capped scores and logits, every second layer
// windowed.
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_gemma2(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.norm_placement = NormPlacement::kAround;
  config.norm_offset = checkpoint.kind() == CheckpointKind::kGguf ? 0.0F : 1.0F;
  if (!metadata.has("hidden_act")) config.gate_function = kernels::GateFunction::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.hidden));
  SLUICE_TRY(config.attention_scale, read_attention_scale(metadata, 46, config));
  // A null in config.json means no cap: the reader gives absent keys their default.
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const double score_cap,
             read_soft_cap(metadata, "attn_logit_softcapping", gguf ? 50 : 0));
  SLUICE_TRY(const double logit_cap,
             read_soft_cap(metadata, "final_logit_softcapping", gguf ? 30 : 0));
  config.attention_soft_cap = static_cast<float>(score_cap);
  config.logit_soft_cap = static_cast<float>(logit_cap);
  return read_window_pattern(checkpoint, 2, config);
}

}  // namespace

extern const ModelSpec kGemma2Spec;
const ModelSpec kGemma2Spec = {.architecture = "gemma2",
                               .hf_model_type = "gemma2",
                               .configure = configure_gemma2,
                               .build = build_decoder};

}  // namespace sluice
