// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2: experts in every layer that are chosen by sigmoids with a bias, norms of whole rows
// of q and k, a part of each head rotates.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kMinimaxM2Defaults[] = {
    {"num_attention_heads", 48U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"max_position_embeddings", 196608U},
    {"rms_norm_eps", 1e-6},
    {"rope_theta", 5e6},
    {"num_local_experts", 256U},
    {"num_experts_per_tok", 8U},
};

constexpr TensorName kMinimaxM2Names[] = {
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.experts.#.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.#.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.#.w2", "ffn_down_exps"},
};

constexpr std::string_view kMinimaxM2HfKeys[] = {
    "num_local_experts", "num_experts_per_tok", "rotary_dim"};

Expected<void> configure_minimax_m2(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(expect_expert_score(checkpoint.metadata(), "sigmoid"));
  config.qk_norm = QkNorm::kRow;
  config.moe.choice_bias = true;
  config.moe.router.score = kernels::RouterScore::kSigmoid;
  return check_experts(checkpoint, config);
}

}  // namespace

extern const ModelSpec kMinimaxM2Spec;
const ModelSpec kMinimaxM2Spec = {.files = {.gguf = "minimax-m2",
                                            .model_type = "minimax_m2",
                                            .class_name = "MiniMaxM2ForCausalLM",
                                            .defaults = kMinimaxM2Defaults,
                                            .is_partly_rotated = true,
                                            .names = kMinimaxM2Names},
                                  .configure = configure_minimax_m2,
                                  .build = build_decoder,
                                  .hf_keys = kMinimaxM2HfKeys};

}  // namespace sluice
