// SPDX-License-Identifier: Apache-2.0
// Ministral (8B): Mistral whose layers say which of them have windows.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kMinistralDefaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 8U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
};

Expected<void> configure_ministral(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr int32_t kNever = 1 << 30;
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kMinistralSpec;
const ModelSpec kMinistralSpec = {.files = {.model_type = "ministral",
                                            .class_name = "MinistralForCausalLM",
                                            .defaults = kMinistralDefaults},
                                  .configure = configure_ministral,
                                  .build = build_decoder};

}  // namespace sluice
