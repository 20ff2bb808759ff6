// SPDX-License-Identifier: Apache-2.0
// What families of latent attention share.
#pragma once

#include "engine/models/model_config.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// In directories.
inline constexpr TensorName kLatentNames[] = {
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"self_attn.indexer.wq_b", "indexer_q_b"},
    {"self_attn.indexer.wk", "indexer_k"},
    {"self_attn.indexer.k_norm", "indexer_k_norm"},
    {"self_attn.indexer.weights_proj", "indexer_proj"},
};

// Indexers in GGUF.
inline constexpr TensorName kIndexerGgufNames[] = {
    {"indexer.attn_q_b", "indexer_q_b"},
    {"indexer.attn_k", "indexer_k"},
    {"indexer.k_norm", "indexer_k_norm"},
    {"indexer.proj", "indexer_proj"},
};

// Reads the width of a head's query and key, rotated part included.
Expected<int32_t> read_latent_head_dim(const Metadata& metadata);

// Makes all layers latent: their sizes, the norms' epsilon, rotation and scale of scores, which
// YaRN changes: (n + r)^-1/2 * m^2, m = 0.1 * mscale_all_dim * ln(factor) + 1.
Expected<void> read_latents(const Checkpoint& checkpoint, ModelConfig& config);

// Gives layers of such a model their indexers, which rotate in `style`. kUnsupported: queries that
// are not compressed.
Expected<void> read_indexers(const Checkpoint& checkpoint,
                             kernels::RopeStyle style,
                             ModelConfig& config);

}  // namespace sluice
