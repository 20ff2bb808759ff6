// SPDX-License-Identifier: Apache-2.0
// Solar Open: GLM-4.5 without dense layers and norms of q and k; whole heads rotate. GGUF calls it
// glm4moe.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kSolarOpenDefaults[] = {
    {"num_attention_heads", 64U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 1e6},
    {"moe_intermediate_size", 1280U},
    {"num_experts_per_tok", 8U},
    {"n_shared_experts", 1U},
    {"n_routed_experts", 128U},
};

constexpr TensorName kSolarOpenGgufNames[] = {{"post_attention_norm", "ffn_norm"}};

constexpr std::string_view kOwnSolarOpenHfKeys[] = {"n_routed_experts", "n_shared_experts"};
constexpr auto kSolarOpenHfKeys = joined_lists(kSigmoidExpertHfKeys, kOwnSolarOpenHfKeys);

constexpr std::string_view kSolarOpenGgufKeys[] = {"expert_weights_norm"};

Expected<void> configure_solar_open(const Checkpoint& checkpoint, ModelConfig& config) {
  config.attention_out_bias = false;
  return read_sigmoid_experts(checkpoint, config);
}

bool is_solar_open(const ModelConfig& config) {
  return config.qk_norm == QkNorm::kNone && !config.has(FfnKind::kDense) &&
         config.ropes.front().rotary_dim == config.layers.front().head_dim;
}

}  // namespace

extern const ModelSpec kSolarOpenSpec;
const ModelSpec kSolarOpenSpec = {.files = {.gguf = "glm4moe",
                                            .reads_gguf = false,
                                            .model_type = "solar_open",
                                            .class_name = "SolarOpenForCausalLM",
                                            .defaults = kSolarOpenDefaults,
                                            .gguf_names = kSolarOpenGgufNames},
                                  .configure = configure_solar_open,
                                  .build = build_decoder,
                                  .takes_gguf = is_solar_open,
                                  .hf_keys = kSolarOpenHfKeys,
                                  .gguf_keys = kSolarOpenGgufKeys};

}  // namespace sluice
