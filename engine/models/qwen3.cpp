// SPDX-License-Identifier: Apache-2.0
// Qwen3, dense: Llama with norms of each head of q and k.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_qwen3(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen3Spec;
const ModelSpec kQwen3Spec = {.architecture = "qwen3",
                              .hf_model_type = "qwen3",
                              .configure = configure_qwen3,
                              .build = build_decoder};

}  // namespace sluice
