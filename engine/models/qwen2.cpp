// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5: Llama with biases of q, k and v. MiMo adds a module behind its layers that guesses
// a further token (mtp.h).
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_qwen2(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qkv_bias = true;
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen2Spec;
const ModelSpec kQwen2Spec = {.architecture = "qwen2",
                              .hf_model_type = "qwen2",
                              .configure = configure_qwen2,
                              .build = build_decoder};

extern const ModelSpec kMimoSpec;
const ModelSpec kMimoSpec = {.architecture = "",
                             .hf_model_type = "mimo",
                             .configure = configure_qwen2,
                             .build = build_decoder};

}  // namespace sluice
