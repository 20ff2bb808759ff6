// SPDX-License-Identifier: Apache-2.0
// Mistral: Llama with one window for all layers if the checkpoint sets one.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_mistral(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMistralSpec;
const ModelSpec kMistralSpec = {
    .architecture = "", .hf_model_type = "mistral", .configure = configure_mistral, .build = build_decoder};

}  // namespace sluice
