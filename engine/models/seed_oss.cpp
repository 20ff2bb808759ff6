// SPDX-License-Identifier: Apache-2.0
// Seed-OSS: Llama with biases of q, k and v, and heads of a width of their own.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kSeedOssDefaults[] = {
    {"num_attention_heads", 80U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 524288U},
    {"rms_norm_eps", 1e-6},
    {"attention_bias", true},
};

constexpr TensorName kSeedOssGgufNames[] = {{"post_attention_norm", "ffn_norm"}};

constexpr std::string_view kSeedOssHfKeys[] = {"attention_out_bias", "mlp_bias"};

Expected<void> configure_seed_oss(const Checkpoint& checkpoint, ModelConfig& config) {
  if (!checkpoint.is_dummy()) return {};
  SLUICE_TRY(config.attention_out_bias,
             checkpoint.metadata().get_bool_or("attention_out_bias", false));
  return {};
}

}  // namespace

extern const ModelSpec kSeedOssSpec;
const ModelSpec kSeedOssSpec = {.files = {.gguf = "seed_oss",
                                          .model_type = "seed_oss",
                                          .class_name = "SeedOssForCausalLM",
                                          .defaults = kSeedOssDefaults,
                                          .gguf_names = kSeedOssGgufNames},
                                .configure = configure_seed_oss,
                                .build = build_decoder,
                                .hf_keys = kSeedOssHfKeys};

}  // namespace sluice
