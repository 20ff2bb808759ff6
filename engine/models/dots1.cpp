// SPDX-License-Identifier: Apache-2.0
// dots.llm1: norms of each head of q and k, leading dense layers, then experts that are chosen by
// sigmoids with a bias beside shared ones; the last layers may have windows.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kDots1Defaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"max_window_layers", 62U},
    {"norm_topk_prob", false},
};

constexpr std::string_view kOwnDots1HfKeys[] = {
    "layer_types", "n_routed_experts", "n_shared_experts", "first_k_dense_replace"};
constexpr auto kDots1HfKeys = joined_lists(kSigmoidExpertHfKeys, kOwnDots1HfKeys);

constexpr std::string_view kDots1GgufKeys[] = {"expert_weights_norm"};

Expected<void> configure_dots1(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  SLUICE_TRY_VOID(read_window_pattern(checkpoint, 1, config));
  return read_sigmoid_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kDots1Spec;
const ModelSpec kDots1Spec = {.files = {.gguf = "dots1",
                                        .model_type = "dots1",
                                        .class_name = "Dots1ForCausalLM",
                                        .defaults = kDots1Defaults},
                              .configure = configure_dots1,
                              .build = build_decoder,
                              .hf_keys = kDots1HfKeys,
                              .gguf_keys = kDots1GgufKeys};

}  // namespace sluice
