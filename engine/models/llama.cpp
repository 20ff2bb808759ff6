// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 and models of the same form: SmolLM2, and Mistral and Mixtral in GGUF.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_llama(const Checkpoint& checkpoint, ModelConfig& config) {
  use_stored_pairs(checkpoint, config);
  return {};
}

}  // namespace

extern const ModelSpec kLlamaSpec;
const ModelSpec kLlamaSpec = {.architecture = "llama",
                              .hf_model_type = "llama",
                              .configure = configure_llama,
                              .build = build_decoder};

}  // namespace sluice
