// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 and models of the same form: SmolLM2, IQuest-Coder; Mistral and Mixtral in GGUF.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

// Wrappers leave to the class what their text model shares with Llama 7B.
constexpr KeyDefault kLlamaDefaults[] = {
    {"hidden_size", 4096U},
    {"intermediate_size", 11008U},
    {"num_hidden_layers", 32U},
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
};

constexpr KeyDefault kIquestDefaults[] = {
    {"num_attention_heads", 40U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
};

constexpr RequiredNumber kIquestRequired[] = {{"use_sliding_window", 0}};

// Their class lets tokens see later ones, and no key says so.
constexpr KeyDefault kBidirecDefaults[] = {
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
    {"is_causal", false},
};

constexpr std::string_view kLlamaHfKeys[] = {"mlp_bias"};

Expected<void> configure_llama(const Checkpoint&, ModelConfig&) { return {}; }

}  // namespace

extern const ModelSpec kLlamaSpec;
const ModelSpec kLlamaSpec = {.files = {.gguf = "llama",
                                        .model_type = "llama",
                                        .class_name = "LlamaForCausalLM",
                                        .defaults = kLlamaDefaults,
                                        .layer_types = LayerTypes::kFull,
                                        .pairs_rows_in_gguf = true,
                                        .may_be_encoder = true},
                              .configure = configure_llama,
                              .build = build_decoder,
                              .hf_keys = kLlamaHfKeys};

// Directories of IQuest-Coder name themselves.
extern const ModelSpec kIquestSpec;
const ModelSpec kIquestSpec = {.files = {.gguf = "llama",
                                         .reads_gguf = false,
                                         .model_type = "iquestcoder",
                                         .class_name = "IQuestCoderForCausalLM",
                                         .defaults = kIquestDefaults,
                                         .required = kIquestRequired,
                                         .layer_types = LayerTypes::kFull,
                                         .pairs_rows_in_gguf = true},
                               .configure = configure_llama,
                               .build = build_decoder,
                               .hf_keys = kLlamaHfKeys};

// Directories of NVIDIA's models of vectors and scores.
extern const ModelSpec kLlamaBidirecSpec;
const ModelSpec kLlamaBidirecSpec = {.files = {.model_type = "llama_bidirec",
                                               .class_name = "LlamaBidirectionalModel",
                                               .defaults = kBidirecDefaults,
                                               .layer_types = LayerTypes::kFull,
                                               .may_be_encoder = true,
                                               .names_pooling = true},
                                     .configure = configure_llama,
                                     .build = build_decoder};

}  // namespace sluice
