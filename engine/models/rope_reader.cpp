// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rope_reader.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/core/log.h"
#include "engine/weights/checkpoint.h"
#include "kernels/rope_scaling.h"

namespace sluice {
namespace {

// Reads the factor; other values would leave the range of the tables' functions. llama.cpp's
// converters write 0 for none.
Expected<double> read_factor(const Checkpoint& checkpoint) {
  const Metadata& metadata = checkpoint.metadata();
  const bool old = metadata.has("rope.scale_linear") && !metadata.has("rope.scaling.factor");
  const char* key = old ? "rope.scale_linear" : "rope.scaling.factor";
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  SLUICE_TRY(const double factor,
             gguf ? metadata.get_positive_or(key, 1, 1) : metadata.get_positive_or(key, 1));
  if (factor < 0.01 || factor > 1e5) {
    return metadata.wrong(key, std::to_string(factor), "0.01 to 100000");
  }
  return factor;
}

// Reads the factors of config.json; GGUF has them as tensors.
Expected<void> read_long_factors(const Metadata& metadata,
                                 const kernels::RopeParams& rope,
                                 ModelConfig& config) {
  if (!metadata.has("rope.scaling.long_factor")) return {};
  for (auto& [key, factors] :
       {std::pair("rope.scaling.long_factor", &config.long_rope.long_factors),
        std::pair("rope.scaling.short_factor", &config.long_rope.short_factors)}) {
    SLUICE_TRY(const std::vector<double> numbers, metadata.get_numbers(key));
    const auto pairs = static_cast<size_t>(rope.rotary_dim / 2);
    if (numbers.size() != pairs) {
      return metadata.wrong(
          key, std::to_string(numbers.size()) + " elements", std::to_string(pairs));
    }
    factors->assign(numbers.begin(), numbers.end());
  }
  return {};
}

// If both scales of the logarithm are present and not 0, the result is their quotient. GGUF has the
// second one, beside a first of 1.
Expected<double> usual_yarn_attention(const Metadata& metadata, double factor) {
  const bool in_gguf = metadata.has("rope.scaling.yarn_log_multiplier");
  SLUICE_TRY(const double all_dim,
             metadata.get_float_or(
                 in_gguf ? "rope.scaling.yarn_log_multiplier" : "rope.scaling.mscale_all_dim", 0));
  SLUICE_TRY(const double mscale, metadata.get_float_or("rope.scaling.mscale", in_gguf ? 1 : 0));
  const bool both = all_dim != 0 && mscale != 0;
  const auto above = static_cast<double>(kernels::yarn_attention_factor(factor, both ? mscale : 1));
  const double below =
      both ? static_cast<double>(kernels::yarn_attention_factor(factor, all_dim)) : 1;
  const double usual = above / below;
  if (!(usual > 1e-3 && usual < 1e3)) {
    return metadata.wrong("rope.scaling.mscale_all_dim", std::to_string(all_dim), "a usual scale");
  }
  return usual;
}

// What the usual factor of attention is multiplied with: DeepSeek-R1-0528-Qwen3-8B's config.json
// takes it back so, as vLLM reads it. In a GGUF file llama.cpp overwrites that key's value.
Expected<double> more_yarn_attention(const Checkpoint& checkpoint) {
  if (checkpoint.kind() == CheckpointKind::kGguf) return 1;
  return checkpoint.metadata().get_positive_or("rope.scaling.yarn_attn_factor", 1);
}

// A 0 in a GGUF file means the model's own context.
Expected<double> read_original_context(const Checkpoint& checkpoint, double context) {
  constexpr const char* kKey = "rope.scaling.original_context_length";
  const Metadata& metadata = checkpoint.metadata();
  if (checkpoint.kind() != CheckpointKind::kGguf) return metadata.get_positive_or(kKey, context);
  return metadata.get_positive_or(kKey, context, context);
}

// A value beside a scaling type that does not scale has no effect, even if malformed.
Expected<double> unless_unused(Expected<double> value,
                               const std::string& type,
                               const Checkpoint& checkpoint,
                               double usual) {
  if (value || (type != "none" && type != "default")) return value;
  warn_of_file(checkpoint.path(), "rope.scaling", value.error().message, "not given");
  return usual;
}

// `own_type`: one that the family reads.
Expected<void> read_scaling(const Checkpoint& checkpoint,
                            const std::string& type,
                            std::string_view own_type,
                            kernels::RopeParams& rope,
                            ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY(const double factor, unless_unused(read_factor(checkpoint), type, checkpoint, 1));
  const auto context = static_cast<double>(config.context_len);
  SLUICE_TRY(const double original,
             unless_unused(read_original_context(checkpoint, context), type, checkpoint, context));
  const double stretch = metadata.has("rope.scaling.factor") ? factor : context / original;
  if (type == "linear") {
    rope.freq_scale = static_cast<float>(1 / factor);
  } else if (type == "llama3") {
    SLUICE_TRY(const double low, metadata.get_positive_or("rope.scaling.low_freq_factor", 1));
    SLUICE_TRY(const double high, metadata.get_positive_or("rope.scaling.high_freq_factor", 4));
    if (high < low) {
      return metadata.wrong("rope.scaling.high_freq_factor",
                            std::to_string(high),
                            "at least " + std::to_string(low));
    }
    rope.freq_factors = kernels::llama3_freq_factors(rope, {factor, low, high, original});
  } else if (type == "yarn") {
    SLUICE_TRY(const double fast, metadata.get_positive_or("rope.scaling.yarn_beta_fast", 32));
    SLUICE_TRY(const double slow, metadata.get_positive_or("rope.scaling.yarn_beta_slow", 1));
    SLUICE_TRY(const bool truncate, metadata.get_bool_or("rope.scaling.truncate", true));
    rope.freq_factors = kernels::yarn_freq_factors(rope, {stretch, fast, slow, original, truncate});
    SLUICE_TRY(const double usual, usual_yarn_attention(metadata, stretch));
    SLUICE_TRY(const double more, more_yarn_attention(checkpoint));
    SLUICE_TRY(const double attention,
               metadata.get_positive_or("rope.scaling.attention_factor", usual * more));
    rope.attention_factor = static_cast<float>(attention);
    // Cards add the scaling to a file whose max_position_embeddings stays that of the training.
    if (checkpoint.kind() == CheckpointKind::kHuggingFace && metadata.has("rope.scaling.factor") &&
        metadata.has("rope.scaling.original_context_length")) {
      const double stretched = std::min(original * factor, static_cast<double>(kMaxContext));
      config.context_len = std::max(config.context_len, static_cast<int32_t>(stretched));
    }
  } else if (type == "longrope") {
    SLUICE_TRY(config.long_rope.original_context,
               metadata.get_count("rope.scaling.original_context_length", kMaxContext));
    const double usual = static_cast<double>(kernels::longrope_attention_factor(stretch, original));
    SLUICE_TRY(const double attention, metadata.get_positive_or("rope.scaling.attn_factor", usual));
    rope.attention_factor = static_cast<float>(attention);
    SLUICE_TRY_VOID(read_long_factors(metadata, rope, config));
  } else if (type == "dynamic" && metadata.has("rope.scaling.alpha")) {
    SLUICE_TRY(const double alpha, metadata.get_positive_or("rope.scaling.alpha", 1));
    rope.freq_base = kernels::stretched_freq_base(rope, alpha);
    if (!(rope.freq_base > 1 && rope.freq_base < 1e12F)) {
      return metadata.wrong("rope.scaling.alpha", std::to_string(alpha), "a usual base");
    }
  } else if (type == "ntk") {
    const double stretched = static_cast<double>(rope.freq_base) * factor;
    if (!(stretched > 1 && stretched < 1e12)) {
      return metadata.wrong("rope.scaling.factor", std::to_string(factor), "a usual factor");
    }
    rope.freq_base = static_cast<float>(stretched);
    rope.freq_scale = static_cast<float>(std::pow(factor, -2.0 / rope.rotary_dim));
  } else if (type == "dynamic") {
    if (factor < 1)
      return metadata.wrong("rope.scaling.factor", std::to_string(factor), "1 or more");
    config.dynamic_rope = {.trained_context = config.context_len, .factor = factor};
    config.context_len =
        static_cast<int32_t>(std::min(context * factor, static_cast<double>(kMaxContext)));
  } else if (type != "none" && type != "default" && type != own_type) {
    return metadata.wrong(
        "rope.scaling.type", "\"" + type + "\"", "none, linear, ntk, dynamic, llama3, yarn or longrope");
  }
  return {};
}

// Reads a GGUF file's extra factor of any type. Files of Olmo 3 have the whole one of its
// config.json in its place, or, in later ones, under a name that says YaRN.
Expected<void> read_more_attention(const Metadata& metadata,
                                   const FileSpec& files,
                                   const std::string& type,
                                   kernels::RopeParams& rope) {
  constexpr const char* kKey = "rope.scaling.attn_factor";
  constexpr const char* kOfYarn = "rope.scaling.yarn_attn_factor";
  if (type == "yarn" && files.has_whole_attention_factor) {
    const auto usual = static_cast<double>(rope.attention_factor);
    SLUICE_TRY(const double whole,
               metadata.get_positive_or(metadata.has(kKey) ? kKey : kOfYarn, usual));
    rope.attention_factor = static_cast<float>(whole);
    return {};
  }
  SLUICE_TRY(const double more, metadata.get_positive_or(kKey, 1));
  rope.attention_factor *= static_cast<float>(more);
  return {};
}

// Reads how queries grow with their positions: at each multiple of the original context, or of what
// a GGUF file states instead.
Expected<void> read_query_scale(const Checkpoint& checkpoint,
                                double context,
                                kernels::RopeParams& rope) {
  constexpr const char* kLength = "attention.temperature_length";
  const Metadata& metadata = checkpoint.metadata();
  constexpr const char* kUsual = "attention.temperature_scale";
  const bool is_ollamas = checkpoint.kind() == CheckpointKind::kGguf && !metadata.has(kUsual);
  const char* const key = is_ollamas ? "rope.scaling_beta" : kUsual;
  SLUICE_TRY(const double beta, metadata.get_float_or(key, 0));
  if (!(beta >= 0 && beta <= 100)) return metadata.wrong(key, std::to_string(beta), "0 to 100");
  const bool has_length =
      checkpoint.kind() == CheckpointKind::kGguf && beta != 0 && metadata.has(kLength);
  SLUICE_TRY(const double step,
             has_length ? metadata.get_positive_or(kLength, context)
                        : read_original_context(checkpoint, context));
  if (!(step >= 1 && step <= static_cast<double>(kMaxContext))) {
    return metadata.wrong(has_length ? kLength : "rope.scaling.original_context_length",
                          std::to_string(step),
                          "1 to " + std::to_string(kMaxContext));
  }
  rope.query_scale = {.beta = beta, .context = static_cast<int32_t>(step)};
  return {};
}

Expected<double> read_freq_base(const Metadata& metadata, const char* key, double absent) {
  SLUICE_TRY(const double base, metadata.get_positive_or(key, absent));
  if (base < 1.01 || base > 1e12) {
    return metadata.wrong(key, std::to_string(base), "more than 1, at most 1e12");
  }
  return base;
}

}  // namespace

Expected<void> read_rope(const Checkpoint& checkpoint, const ModelSpec& spec, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const bool gguf = checkpoint.kind() == CheckpointKind::kGguf;
  const auto head_dim = static_cast<uint64_t>(config.layers.front().head_dim);
  kernels::RopeParams rope;
  SLUICE_TRY(const uint64_t rotary_dim, metadata.get_uint_or("rope.dimension_count", head_dim));
  if (rotary_dim == 0 || rotary_dim % 2 != 0 || rotary_dim > head_dim) {
    return metadata.wrong("rope.dimension_count",
                          std::to_string(rotary_dim),
                          "an even number up to " + std::to_string(head_dim));
  }
  SLUICE_TRY(const double freq_base, read_freq_base(metadata, "rope.freq_base", 10000));
  rope.rotary_dim = static_cast<int32_t>(rotary_dim);
  rope.freq_base = static_cast<float>(freq_base);
  const bool are_pairs = gguf ? spec.files.pairs_rows_in_gguf : spec.files.pairs_rows;
  rope.style = are_pairs ? kernels::RopeStyle::kInterleaved : kernels::RopeStyle::kHalves;
  std::string type = checkpoint.has("rope_factors_long.weight") ? "longrope" : "none";
  // A file before 2024 has a factor under another name; one without a type is linear.
  const bool has_factor = metadata.has("rope.scale_linear") || metadata.has("rope.scaling.factor");
  if (gguf && has_factor && type == "none") type = "linear";
  if (metadata.has("rope.scaling.type")) {
    SLUICE_TRY(type, metadata.get_string("rope.scaling.type"));
  }
  const bool needs_factor = type == "linear" || type == "ntk" || type == "dynamic" || type == "llama3";
  if (needs_factor && !gguf && !metadata.has("rope.scaling.factor")) {
    return metadata.wrong("rope.scaling.factor", "nothing", "a number for rope_type " + type);
  }
  const std::string_view own_type = spec.files.has_unlike_layers     ? "proportional"
                                    : spec.files.has_image_positions ? "mrope"
                                                                     : "none";
  SLUICE_TRY_VOID(read_scaling(checkpoint, type, own_type, rope, config));
  if (gguf && type != "longrope") {
    SLUICE_TRY_VOID(read_more_attention(metadata, spec.files, type, rope));
  }
  if (spec.files.scales_queries) {
    SLUICE_TRY_VOID(read_query_scale(checkpoint, config.context_len, rope));
  }
  config.ropes = {rope};
  return {};
}

Expected<void> use_local_rope(const Metadata& metadata, double absent_base, ModelConfig& config) {
  SLUICE_TRY(const double base, read_freq_base(metadata, "rope.freq_base_swa", absent_base));
  kernels::RopeParams local;
  local.rotary_dim = config.ropes.front().rotary_dim;
  local.style = config.ropes.front().style;
  local.freq_base = static_cast<float>(base);
  config.ropes.push_back(local);
  for (LayerConfig& layer : config.layers) layer.rope = layer.window > 0 ? 1 : 0;
  return {};
}

Expected<void> read_local_part(const Metadata& metadata, double absent_part, ModelConfig& config) {
  kernels::RopeParams& local = config.ropes.back();
  if (metadata.has("rope.dimension_count_swa")) {
    const auto most = static_cast<uint64_t>(config.layers.front().head_dim);
    SLUICE_TRY(local.rotary_dim, metadata.get_count("rope.dimension_count_swa", most));
    if (local.rotary_dim % 2 == 0) return {};
    return metadata.wrong(
        "rope.dimension_count_swa", std::to_string(local.rotary_dim), "an even number");
  }
  constexpr const char* kKey = "partial_rotary_factor_swa";
  SLUICE_TRY(const double part, metadata.get_positive_or(kKey, absent_part));
  const double turned = part * config.layers.front().head_dim;
  if (part > 1 || turned < 2 || static_cast<int32_t>(turned) % 2 != 0) {
    return metadata.wrong(kKey, std::to_string(part), "an even part of a head");
  }
  local.rotary_dim = static_cast<int32_t>(turned);
  return {};
}

}  // namespace sluice
