// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms of the outputs of each half, and of whole rows of q and k. OLMo 3: three windowed
// layers for each full one, and scaled rotation only in full ones; GGUF uses one name for both.
#include <algorithm>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"

namespace sluice {
namespace {

constexpr KeyDefault kOlmo2Defaults[] = {{"max_position_embeddings", 2048U},
                                         {"rms_norm_eps", 1e-5}};

constexpr KeyDefault kOlmo3Defaults[] = {
    {"max_position_embeddings", 2048U}, {"rms_norm_eps", 1e-5}, {"sliding_window", 4096U}};

constexpr TensorName kOlmoNames[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

constexpr std::string_view kOlmo3HfKeys[] = {"layer_types", "rope_parameters"};

bool is_olmo3(const ModelConfig& config) {
  return std::ranges::any_of(config.layers, [](const LayerConfig& l) { return l.window > 0; });
}

Expected<void> configure_olmo3(const Checkpoint& checkpoint, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  return use_local_rope(checkpoint.metadata(), config.ropes.front().freq_base, config);
}

Expected<void> configure_olmo2(const Checkpoint& checkpoint, ModelConfig& config) {
  const bool is_gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const int32_t window,
             is_gguf ? read_window(checkpoint.metadata()) : Expected<int32_t>(0));
  if (window > 0) return configure_olmo3(checkpoint, config);
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  return {};
}

}  // namespace

extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
const ModelSpec kOlmo2Spec = {.files = {.gguf = "olmo2",
                                        .model_type = "olmo2",
                                        .class_name = "Olmo2ForCausalLM",
                                        .defaults = kOlmo2Defaults,
                                        .layer_types = LayerTypes::kFull,
                                        .names = kOlmoNames},
                              .configure = configure_olmo2,
                              .build = build_decoder};
const ModelSpec kOlmo3Spec = {.files = {.gguf = "olmo2",
                                        .reads_gguf = false,
                                        .model_type = "olmo3",
                                        .class_name = "Olmo3ForCausalLM",
                                        .defaults = kOlmo3Defaults,
                                        .scales_full_layers_only = true,
                                        .names = kOlmoNames},
                              .configure = configure_olmo3,
                              .build = build_decoder,
                              .takes_gguf = is_olmo3,
                              .hf_keys = kOlmo3HfKeys};

}  // namespace sluice
