// SPDX-License-Identifier: Apache-2.0
// InternLM 2 and 2.5: Llama under names of its own, with the rows of q, k and v in one matrix by KV
// head. InternLM 3: Llama whose q, k and v have biases of their own. Other programs' files have the
// former as Llama; so do the files and directories that are written from it.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kInternLm2Defaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 2048U},
    {"rms_norm_eps", 1e-6},
};

constexpr KeyDefault kInternLm3Defaults[] = {
    {"num_attention_heads", 32U},
    {"num_key_value_heads", 2U},
    {"head_dim", 128U},
    {"max_position_embeddings", 32768U},
    {"rms_norm_eps", 1e-5},
};

constexpr TensorName kInternLm2Names[] = {
    {"model.tok_embeddings.weight", "token_embd.weight"},
    {"output.weight", "output.weight"},
    {"attention_norm", "attn_norm"},
    {"attention.wqkv", "attn_qkv"},
    {"attention.wo", "attn_output"},
    {"ffn_norm", "ffn_norm"},
    {"feed_forward.w1", "ffn_gate"},
    {"feed_forward.w3", "ffn_up"},
    {"feed_forward.w2", "ffn_down"},
};

constexpr std::string_view kBiasHfKeys[] = {"mlp_bias"};

Expected<void> configure_internlm(const Checkpoint&, ModelConfig&) { return {}; }

}  // namespace

extern const ModelSpec kInternLm2Spec;
const ModelSpec kInternLm2Spec = {.files = {.gguf = "llama",
                                            .reads_gguf = false,
                                            .model_type = "internlm2",
                                            .class_name = "InternLM2ForCausalLM",
                                            .defaults = kInternLm2Defaults,
                                            .layer_types = LayerTypes::kFull,
                                            .names = kInternLm2Names,
                                            .pairs_rows_in_gguf = true,
                                            .groups_qkv = true},
                                  .configure = configure_internlm,
                                  .build = build_decoder};

extern const ModelSpec kInternLm2FileSpec;
const ModelSpec kInternLm2FileSpec = {.files = {.gguf = "internlm2",
                                                .model_type = "llama",
                                                .reads_directories = false,
                                                .class_name = "LlamaForCausalLM",
                                                .pairs_rows_in_gguf = true},
                                      .configure = configure_internlm,
                                      .build = build_decoder,
                                      .hf_keys = kBiasHfKeys};

extern const ModelSpec kInternLm3Spec;
const ModelSpec kInternLm3Spec = {.files = {.gguf = "llama",
                                            .reads_gguf = false,
                                            .model_type = "internlm3",
                                            .class_name = "InternLM3ForCausalLM",
                                            .defaults = kInternLm3Defaults,
                                            .layer_types = LayerTypes::kFull,
                                            .pairs_rows_in_gguf = true},
                                  .configure = configure_internlm,
                                  .build = build_decoder,
                                  .hf_keys = kBiasHfKeys};

}  // namespace sluice
