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

}  // namespace sluice
