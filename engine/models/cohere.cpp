// SPDX-License-Identifier: Apache-2.0
// Command R (Cohere): both halves of a layer read one norm's output, which subtracts the mean;
// scaled logits. In Command R+ each head of q and k has a norm of its own.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

constexpr KeyDefault kCohereDefaults[] = {
    {"num_attention_heads", 64U},
    {"max_position_embeddings", 8192U},
    {"layer_norm_eps", 1e-5},
    {"logit_scale", 0.0625},
    {"rope_theta", 500000U},
};

constexpr std::string_view kCohereHfKeys[] = {"layer_norm_eps", "logit_scale", "use_qk_norm"};

constexpr std::string_view kCohereGgufKeys[] = {"logit_multiplier"};

Expected<void> configure_cohere(const Checkpoint& checkpoint, ModelConfig& config) {
  config.parallel_halves = true;
  SLUICE_TRY(const bool has_norms,
             checkpoint.metadata().get_bool_or("attention.qk_norm",
                                               checkpoint.has("blk.0.attn_q_norm.weight")));
  if (has_norms) config.qk_norm = QkNorm::kEachHead;
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const double scale,
             checkpoint.metadata().get_positive_or(gguf ? "logit_scale" : "logit_multiplier", 1));
  config.logit_scale = static_cast<float>(scale);
  return {};
}

}  // namespace

extern const ModelSpec kCohereSpec;
const ModelSpec kCohereSpec = {.files = {.gguf = "command-r",
                                         .model_type = "cohere",
                                         .class_name = "CohereForCausalLM",
                                         .defaults = kCohereDefaults,
                                         .layer_types = LayerTypes::kFull,
                                         .ties_embedding = true,
                                         .pairs_rows = true,
                                         .pairs_rows_in_gguf = true,
                                         .subtracts_mean = true},
                               .configure = configure_cohere,
                               .build = build_decoder,
                               .hf_keys = kCohereHfKeys,
                               .gguf_keys = kCohereGgufKeys};

}  // namespace sluice
