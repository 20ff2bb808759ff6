// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms of the outputs of each half, and of whole rows of q and k. OLMo 3: three windowed
// layers for each full one, and scaled rotation only in full ones; GGUF uses one name for both.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_olmo2(const Checkpoint&, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  return {};
}

Expected<void> configure_olmo3(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_olmo2(checkpoint, config));
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 4, config));
  return use_local_rope(checkpoint.metadata(), config.ropes.front().freq_base, config);
}

Expected<void> configure_gguf(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY(const int32_t window, read_window(checkpoint.metadata()));
  return window > 0 ? configure_olmo3(checkpoint, config) : configure_olmo2(checkpoint, config);
}

}  // namespace

extern const ModelSpec kOlmo2GgufSpec;
extern const ModelSpec kOlmo2Spec;
extern const ModelSpec kOlmo3Spec;
const ModelSpec kOlmo2GgufSpec = {.architecture = "olmo2",
                                  .hf_model_type = "",
                                  .configure = configure_gguf,
                                  .build = build_decoder};
const ModelSpec kOlmo2Spec = {.architecture = "",
                              .hf_model_type = "olmo2",
                              .configure = configure_olmo2,
                              .build = build_decoder};
const ModelSpec kOlmo3Spec = {.architecture = "",
                              .hf_model_type = "olmo3",
                              .configure = configure_olmo3,
                              .build = build_decoder};

}  // namespace sluice
