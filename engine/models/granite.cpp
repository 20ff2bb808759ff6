// SPDX-License-Identifier: Apache-2.0
// Granite 3: Llama with multipliers for embedding, scores, residual and logits.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_granite(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  use_stored_pairs(checkpoint, config);
  SLUICE_TRY(const double embedding, metadata.get_positive_or("embedding_scale", 1));
  SLUICE_TRY(const double residual, metadata.get_positive_or("residual_scale", 1));
  SLUICE_TRY(const double divisor, metadata.get_positive_or("logit_scale", 1));
  config.embedding_scale = static_cast<float>(embedding);
  config.residual_scale = static_cast<float>(residual);
  config.logit_scale = static_cast<float>(1 / divisor);
  if (metadata.has("attention.scale")) {
    SLUICE_TRY(const double scale, metadata.get_positive_or("attention.scale", 1));
    config.attention_scale = static_cast<float>(scale);
  }
  // This GGUF key says here whether there are positions at all.
  SLUICE_TRY(const bool rotates, metadata.get_bool_or("rope.scaling.finetuned", true));
  for (LayerConfig& layer : config.layers) layer.rope = rotates ? 0 : -1;
  return {};
}

}  // namespace

extern const ModelSpec kGraniteSpec;
const ModelSpec kGraniteSpec = {.architecture = "granite",
                                .hf_model_type = "granite",
                                .configure = configure_granite,
                                .build = build_decoder};

}  // namespace sluice
