// SPDX-License-Identifier: Apache-2.0
// Mixtral: Llama with a mixture of experts in every layer. GGUF files call it llama.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure_mixtral(const Checkpoint& checkpoint, ModelConfig& config) {
  if (config.moe.num_experts == 0) {
    return checkpoint.metadata().wrong("expert_count", "no experts", "1 or more");
  }
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMixtralSpec;
const ModelSpec kMixtralSpec = {
    .architecture = "", .hf_model_type = "mixtral", .configure = configure_mixtral, .build = build_decoder};

}  // namespace sluice
