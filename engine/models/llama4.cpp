// SPDX-License-Identifier: Apache-2.0
// Llama 4's text model: three layers whose tokens see their chunk for each one that sees all and
// has no positions but queries that grow with them; norms without weights of rotated heads; experts
// in some layers, of which each token takes one, scaled at its input, beside a shared one.
#include <algorithm>
#include <cmath>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/models/rope_reader.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

constexpr uint64_t kNopePeriod = 4;
constexpr uint64_t kUsualChunk = 8192;  // as GGUF files imply; so do the next two
constexpr double kUsualGrowth = 0.1;
constexpr int32_t kExpertsWithoutNorms = 128;  // Maverick's

constexpr KeyDefault kLlama4Defaults[] = {
    {"num_attention_heads", 40U},
    {"num_key_value_heads", 8U},
    {"head_dim", 128U},
    {"intermediate_size", 8192U},
    {"intermediate_size_mlp", 16384U},
    {"max_position_embeddings", 131072U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 500000U},
    {"num_local_experts", 16U},
    {"num_experts_per_tok", 1U},
    {"interleave_moe_layer_step", 1U},
    {"use_qk_norm", true},
    {"attention_chunk_size", kUsualChunk},
    {"attn_temperature_tuning", true},
    {"attn_scale", kUsualGrowth},
    {"floor_scale", kUsualChunk},
};

constexpr TensorName kLlama4Names[] = {
    {"feed_forward.gate_proj", "ffn_gate"},
    {"feed_forward.up_proj", "ffn_up"},
    {"feed_forward.down_proj", "ffn_down"},
    {"feed_forward.router", "ffn_gate_inp"},
    {"feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"feed_forward.shared_expert.up_proj", "ffn_up_shexp"},
    {"feed_forward.shared_expert.down_proj", "ffn_down_shexp"},
    {"feed_forward.experts.#.gate_proj", "ffn_gate_exps"},
    {"feed_forward.experts.#.up_proj", "ffn_up_exps"},
    {"feed_forward.experts.#.down_proj", "ffn_down_exps"},
};

constexpr std::string_view kLlama4HfKeys[] = {"layer_types",
                                              "no_rope_layers",
                                              "attention_chunk_size",
                                              "intermediate_size_mlp",
                                              "num_local_experts",
                                              "num_experts_per_tok",
                                              "moe_layers",
                                              "use_qk_norm",
                                              "attn_temperature_tuning",
                                              "attn_scale",
                                              "floor_scale"};

constexpr std::string_view kLlama4GgufKeys[] = {"interleave_moe_layer_step"};

bool is_llama4_file(const Checkpoint& checkpoint) {
  return checkpoint.kind() == CheckpointKind::kGguf;
}

// Returns which layers rotate q and k.
Expected<std::vector<bool>> rotated_layers(const Checkpoint& checkpoint,
                                           const ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  // A file without chunks has positions everywhere.
  const bool all = is_llama4_file(checkpoint) && metadata.has("attention.sliding_window") &&
                   metadata.get_uint_or("attention.sliding_window", 1).value_or(1) == 0;
  SLUICE_TRY(const int32_t period,
             metadata.get_count_or("no_rope_layer_interval", 1024, kNopePeriod));
  std::vector<bool> rotated;
  for (int32_t i = 0; i < config.num_layers; ++i) rotated.push_back(all || (i + 1) % period != 0);
  const Expected<std::vector<double>> listed = metadata.get_numbers("no_rope_layers");
  if (!metadata.has("no_rope_layers") || (listed && listed->empty())) return rotated;
  if (!listed || listed->size() < rotated.size()) {
    return metadata.wrong("no_rope_layers",
                          listed ? std::to_string(listed->size()) + " elements" : "no list",
                          std::to_string(config.num_layers));
  }
  for (size_t i = 0; i < rotated.size(); ++i) rotated[i] = (*listed)[i] != 0;
  return rotated;
}

// Chunks are those of layers with positions unless a directory lists layers' types.
Expected<void> read_layers(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const std::vector<bool> rotated, rotated_layers(checkpoint, config));
  const bool listed = metadata.has("attention.sliding_layers");
  if (listed) SLUICE_TRY_VOID(read_window_pattern(checkpoint, 1, config));
  SLUICE_TRY(const int32_t chunk, read_window(metadata));
  const bool is_usual = is_llama4_file(checkpoint) && !metadata.has("attention.sliding_window");
  SLUICE_TRY(
      const bool norms,
      metadata.get_bool_or("attention.qk_norm", config.moe.num_experts != kExpertsWithoutNorms));
  if (norms) config.qk_norm = QkNorm::kRotatedHead;
  config.qk_norm_weights = false;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    LayerConfig& layer = config.layers[i];
    if (!listed && rotated[i]) layer.window = is_usual ? static_cast<int32_t>(kUsualChunk) : chunk;
    layer.is_chunked = layer.window > 0;
    layer.rope = rotated[i] ? 0 : -1;
    layer.norms_qk = rotated[i];
  }
  return {};
}

// Layers without positions have a rotation that turns nothing, for the growth of their queries.
Expected<void> read_growth(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  config.ropes.front().query_scale = {};
  SLUICE_TRY(const bool grows, metadata.get_bool_or("attention.temperature_tuning", true));
  if (!grows) return {};
  SLUICE_TRY(const double growth,
             metadata.get_float_or("attention.temperature_scale", kUsualGrowth));
  SLUICE_TRY(const int32_t step,
             metadata.get_count_or("attention.temperature_length", 1 << 27, kUsualChunk));
  if (!(growth >= 0 && growth <= 100)) {
    return metadata.wrong("attention.temperature_scale", std::to_string(growth), "0 to 100");
  }
  if (growth == 0) return {};
  kernels::RopeParams still = config.ropes.front();
  still.rotary_dim = 2;
  still.freq_factors = {kernels::kUnturnedFactor};
  still.freq_scale = 1;
  still.attention_factor = 1;
  still.query_scale = {.beta = growth, .context = step, .shift = 1};
  config.ropes.push_back(std::move(still));
  for (LayerConfig& layer : config.layers) {
    if (layer.rope < 0) layer.rope = 1;
  }
  return {};
}

Expected<void> configure_llama4(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  MoeConfig& moe = config.moe;
  if (moe.top_k > 1) {
    return metadata.wrong("expert_used_count", std::to_string(moe.top_k), "1");
  }
  moe.scales_inputs = true;
  moe.router.score = kernels::RouterScore::kSigmoid;
  moe.router.normalize = false;
  if (metadata.has("intermediate_size") && moe.num_experts > 0) {
    SLUICE_TRY(moe.ffn_hidden, metadata.get_count("intermediate_size", 1 << 20));
  }
  moe.shared_hidden = moe.ffn_hidden;
  SLUICE_TRY_VOID(read_layers(checkpoint, config));
  return read_growth(checkpoint, config);
}

}  // namespace

extern const ModelSpec kLlama4Spec;
const ModelSpec kLlama4Spec = {.files = {.gguf = "llama4",
                                         .model_type = "llama4_text",
                                         .class_name = "Llama4ForCausalLM",
                                         .defaults = kLlama4Defaults,
                                         .layer_types = LayerTypes::kChunked,
                                         .names = kLlama4Names,
                                         .experts = ExpertTensors::kTransposedHalves,
                                         .experts_place = "feed_forward.experts.",
                                         .pairs_rows = true,
                                         .pairs_rows_in_gguf = true,
                                         .scales_queries = true},
                               .configure = configure_llama4,
                               .build = build_decoder,
                               .hf_keys = kLlama4HfKeys,
                               .gguf_keys = kLlama4GgufKeys};

}  // namespace sluice
