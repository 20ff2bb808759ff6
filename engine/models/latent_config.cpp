// SPDX-License-Identifier: Apache-2.0
#include "engine/models/latent_config.h"

#include <cmath>

#include "engine/weights/latent_halves.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

// m of YaRN. GGUF has a tenth of mscale_all_dim, to be multiplied with the logarithm.
Expected<double> read_score_factor(const Checkpoint& checkpoint) {
  const Metadata& metadata = checkpoint.metadata();
  const Expected<std::string> type = metadata.get_string("rope.scaling.type");
  if (!type || *type == "none" || *type == "default") return 1;
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const char* key = gguf ? "rope.scaling.yarn_log_multiplier" : "rope.scaling.mscale_all_dim";
  SLUICE_TRY(const double stored, metadata.get_float_or(key, 0));
  SLUICE_TRY(const double factor, metadata.get_positive_or("rope.scaling.factor", 1));
  const double m =
      static_cast<double>(kernels::yarn_attention_factor(factor, gguf ? 10 * stored : stored));
  if (stored == 0) return 1;
  if (m > 1e-3 && m < 1e3) return m;
  return metadata.wrong(key, std::to_string(stored), "a usual scale");
}

}  // namespace

Expected<int32_t> read_latent_head_dim(const Metadata& metadata) {
  SLUICE_TRY(const LatentShape shape, read_latent_shape(metadata));
  return shape.nope_dim + shape.rope_dim;
}

Expected<void> read_latents(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const LatentShape shape, read_latent_shape(metadata));
  LatentConfig& latent = config.latent;
  latent.kv_rank = shape.kv_rank;
  latent.nope_dim = shape.nope_dim;
  latent.rope_dim = shape.rope_dim;
  latent.value_dim = shape.value_dim;
  const bool has_matrix = checkpoint.is_dummy() || checkpoint.has("blk.0.attn_q_a.weight");
  if (metadata.has("attention.q_lora_rank") && has_matrix) {
    SLUICE_TRY(latent.q_rank, metadata.get_count("attention.q_lora_rank", 1 << 16));
  }
  // transformers' classes build both norms with their usual epsilon, llama.cpp with the model's.
  if (gguf) latent.norm_eps = config.norm_eps;
  kernels::RopeParams& rope = config.ropes.front();
  SLUICE_TRY(const bool interleaves, metadata.get_bool_or("rope_interleave", true));
  rope.style = interleaves ? kernels::RopeStyle::kInterleaved : kernels::RopeStyle::kHalves;
  if (gguf) rope.attention_factor = 1;  // converters leave mscale = mscale_all_dim
  SLUICE_TRY(const double m, read_score_factor(checkpoint));
  config.attention_scale = static_cast<float>(m * m / std::sqrt(shape.nope_dim + shape.rope_dim));
  config.fused_qkv = false;
  for (LayerConfig& layer : config.layers) layer.mixer = MixerKind::kLatent;
  return {};
}

Expected<void> read_indexers(const Checkpoint& checkpoint,
                             kernels::RopeStyle style,
                             ModelConfig& config) {
  constexpr uint64_t kMost = 1024;
  constexpr const char* kLayers = "attention.indexer.types";
  const Metadata& metadata = checkpoint.metadata();
  LatentConfig& latent = config.latent;
  if (latent.q_rank == 0) return metadata.wrong("attention.q_lora_rank", "nothing", "a number");
  SLUICE_TRY(latent.index_heads, metadata.get_count("attention.indexer.head_count", kMost));
  SLUICE_TRY(latent.index_dim, metadata.get_count("attention.indexer.key_length", kMost));
  SLUICE_TRY(latent.index_top_k, metadata.get_count("attention.indexer.top_k", 1 << 24));
  latent.index_style = style;
  if (latent.index_dim % 32 != 0 || latent.index_dim < latent.rope_dim) {
    return metadata.wrong("attention.indexer.key_length",
                          std::to_string(latent.index_dim),
                          "a multiple of 32, at least the rotated " +
                              std::to_string(latent.rope_dim));
  }
  for (LayerConfig& layer : config.layers) layer.key_choice = KeyChoice::kOwn;
  if (!metadata.has(kLayers)) return {};
  SLUICE_TRY(const std::vector<double> own, metadata.get_numbers(kLayers));
  if (own.size() != config.layers.size() || own.front() == 0) {
    return metadata.wrong(kLayers,
                          std::to_string(own.size()) + " layers" +
                              (own.empty() || own.front() != 0 ? "" : ", the first without one"),
                          "all " + std::to_string(config.num_layers) + ", the first with one");
  }
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] == 0) config.layers[i].key_choice = KeyChoice::kEarlier;
    if (own[i] >= 0) continue;
    return metadata.wrong(kLayers, "another type for layer " + std::to_string(i), "full or shared");
  }
  return {};
}

}  // namespace sluice
