// SPDX-License-Identifier: Apache-2.0
// OLMo 2: norms of the outputs of each half, and of the whole rows of q and k.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure(const Checkpoint&, ModelConfig& config) {
  config.norm_placement = NormPlacement::kAfter;
  config.qk_norm = QkNorm::kRow;
  return {};
}

}  // namespace

extern const ModelSpec kOlmo2Spec;
const ModelSpec kOlmo2Spec = {.architecture = "olmo2",
                              .hf_model_type = "olmo2",
                              .configure = configure,
                              .build = build_decoder};

}  // namespace sluice
