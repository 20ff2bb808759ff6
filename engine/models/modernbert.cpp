// SPDX-License-Identifier: Apache-2.0
// ModernBERT: an encoder (encoder.h) with norms before its halves and none before the first one,
// rotations, a gated feed-forward half, and two windowed layers for each full one.
#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"
#include "engine/models/rope_reader.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
namespace {

constexpr KeyDefault kModernBertDefaults[] = {
    {"num_attention_heads", 12U},
    {"max_position_embeddings", 8192U},
    {"norm_eps", 1e-5},
    {"hidden_activation", std::string_view("gelu")},
    {"local_attention", 128U},
    {"global_rope_theta", 160000.0},
};

constexpr TensorName kModernBertNames[] = {
    {"model.embeddings.tok_embeddings.weight", "token_embd.weight"},
    {"model.embeddings.norm.weight", "token_embd_norm.weight"},
    {"model.embeddings.norm.bias", "token_embd_norm.bias"},
    {"model.final_norm.weight", "output_norm.weight"},
    {"model.final_norm.bias", "output_norm.bias"},
    {"model.head.dense.weight", "cls.weight"},
    {"model.head.dense.bias", "cls.bias"},
    {"model.head.norm.weight", "cls.norm.weight"},
    {"model.head.norm.bias", "cls.norm.bias"},
    {"model.classifier.weight", "cls.output.weight"},
    {"model.classifier.bias", "cls.output.bias"},
    {"attn_norm", "attn_norm"},
    {"attn.Wqkv", "attn_qkv"},
    {"attn.Wo", "attn_output"},
    {"mlp_norm", "ffn_norm"},
    {"mlp.Wi", "ffn_up"},
    {"mlp.Wo", "ffn_down"},
};

// Windows are given both sides together. Of a layer's number, which begins at 0, the multiples of
// the period are full.
Expected<void> read_windows(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  if (metadata.has("attention.sliding_layers")) {
    SLUICE_TRY_VOID(read_window_pattern(checkpoint, 1, config));
  } else {
    SLUICE_TRY(const int32_t window, read_window(metadata));
    SLUICE_TRY(const int32_t period,
               metadata.get_count_or("attention.sliding_window_pattern", 1024, 3));
    for (int32_t i = 0; i < config.num_layers; ++i) {
      if (i % period != 0) config.layers[static_cast<size_t>(i)].window = window;
    }
  }
  for (LayerConfig& layer : config.layers) {
    if (layer.window > 0) layer.window = layer.window / 2 + 1;
  }
  return {};
}

// Files of GGUF have a key of their own, and none where the function is GeLU.
Expected<void> read_function_of_gguf(const Metadata& metadata, ModelConfig& config) {
  constexpr const char* kKey = "hidden_activation";
  config.gate_function = kernels::GateFunction::kGeluErf;
  if (!metadata.has(kKey)) return {};
  const Expected<std::string> name = metadata.get_string(kKey);
  if (!name) return tl::unexpected(name.error());
  if (*name == "gelu") return {};
  if (*name != "silu") return metadata.wrong(kKey, "\"" + *name + "\"", "gelu or silu");
  config.gate_function = kernels::GateFunction::kSilu;
  return {};
}

Expected<void> configure_modern(const Checkpoint& checkpoint, ModelConfig& config) {
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    SLUICE_TRY_VOID(read_function_of_gguf(checkpoint.metadata(), config));
  }
  config.norm_bias = checkpoint.has("token_embd_norm.bias");
  SLUICE_TRY_VOID(read_windows(checkpoint, config));
  SLUICE_TRY_VOID(use_local_rope(checkpoint.metadata(), 10000, config));
  return read_encoder_tables(checkpoint, false, config);
}

}  // namespace

extern const ModelSpec kModernBertSpec;
const ModelSpec kModernBertSpec = {.files = {.gguf = "modern-bert",
                                             .model_type = "modernbert",
                                             .class_name = "ModernBertModel",
                                             .defaults = kModernBertDefaults,
                                             .scales_full_layers_only = true,
                                             .names = kModernBertNames,
                                             .subtracts_mean = true,
                                             .is_encoder = true,
                                             .before_scores = "cls.norm.weight"},
                                   .configure = configure_modern,
                                   .build = build_encoder};

}  // namespace sluice
