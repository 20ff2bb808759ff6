// SPDX-License-Identifier: Apache-2.0
// Command R7B and A (Cohere 2): both halves of a layer read one norm's output, which subtracts the
// mean; three windowed layers whose neighbours rotate for each full one without positions.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kCohere2Defaults[] = {
    {"num_attention_heads", 64U},
    {"max_position_embeddings", 8192U},
    {"layer_norm_eps", 1e-5},
    {"logit_scale", 0.0625},
    {"sliding_window", 4096U},
};

constexpr std::string_view kCohere2HfKeys[] = {"layer_types", "layer_norm_eps", "logit_scale"};

constexpr std::string_view kCohere2GgufKeys[] = {"logit_multiplier"};

Expected<void> configure_cohere2(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.parallel_halves = true;
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const double scale,
             metadata.get_positive_or(gguf ? "logit_scale" : "logit_multiplier", 1));
  config.logit_scale = static_cast<float>(scale);
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 0 : -1;
  return {};
}

}  // namespace

extern const ModelSpec kCohere2Spec;
const ModelSpec kCohere2Spec = {.files = {.gguf = "cohere2",
                                          .model_type = "cohere2",
                                          .class_name = "Cohere2ForCausalLM",
                                          .defaults = kCohere2Defaults,
                                          .ties_embedding = true,
                                          .pairs_rows = true,
                                          .pairs_rows_in_gguf = true,
                                          .subtracts_mean = true},
                                .configure = configure_cohere2,
                                .build = build_decoder,
                                .hf_keys = kCohere2HfKeys,
                                .gguf_keys = kCohere2GgufKeys};

}  // namespace sluice
