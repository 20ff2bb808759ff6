// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5: Llama with biases of q, k and v.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qkv_bias = true;
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen2Spec;
const ModelSpec kQwen2Spec = {.architecture = "qwen2",
                              .hf_model_type = "qwen2",
                              .configure = configure,
                              .build = build_decoder};

}  // namespace sluice
