// SPDX-License-Identifier: Apache-2.0
// Qwen3, dense: Llama with norms of each head of q and k.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kQwen3Defaults[] = {
    {"num_key_value_heads", 32U},
    {"head_dim", 128U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-6},
    {"sliding_window", 4096U},
    {"max_window_layers", 28U},
};

constexpr std::string_view kQwen3HfKeys[] = {"use_sliding_window"};

Expected<void> configure_qwen3(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  return read_optional_window(checkpoint, config);
}

}  // namespace

extern const ModelSpec kQwen3Spec;
const ModelSpec kQwen3Spec = {.files = {.gguf = "qwen3",
                                        .model_type = "qwen3",
                                        .class_name = "Qwen3ForCausalLM",
                                        .defaults = kQwen3Defaults,
                                        .may_be_encoder = true,
                                        .may_be_qwen3_reranker = true},
                              .configure = configure_qwen3,
                              .build = build_decoder,
                              .hf_keys = kQwen3HfKeys};

}  // namespace sluice
