// SPDX-License-Identifier: Apache-2.0
#include "engine/models/recurrent_layers.h"

#include "kernels/recurrent.h"

namespace sluice {

namespace {

// LFM2's older files list the layers of attention; its GGUF files have no KV heads in others.
// Empty: the file says neither.
Expected<std::vector<double>> without_attention(const Metadata& metadata,
                                                const ModelConfig& config) {
  constexpr const char* kFull = "attention.full_layers";
  std::vector<double> recurs;
  if (metadata.has(kFull)) {
    SLUICE_TRY(const std::vector<double> full, metadata.get_numbers(kFull));
    recurs.assign(config.layers.size(), 1);
    for (const double layer : full) {
      if (!(layer >= 0 && layer < config.num_layers)) {
        return metadata.wrong(kFull, std::to_string(layer), "indices of layers");
      }
      recurs[static_cast<size_t>(layer)] = 0;
    }
    return recurs;
  }
  const Expected<std::vector<double>> heads = metadata.get_numbers("attention.head_count_kv");
  if (!heads || heads->size() < config.layers.size()) return recurs;
  for (const double count : *heads) recurs.push_back(count == 0 ? 1 : 0);
  return recurs;
}

}  // namespace

Expected<void> read_recurrent_layers(const Checkpoint& checkpoint,
                                     MixerKind kind,
                                     int32_t usual_interval,
                                     ModelConfig& config) {
  constexpr const char* kListed = "attention.recurrent_layers";
  const Metadata& metadata = checkpoint.metadata();
  std::vector<double> listed;
  if (metadata.has(kListed)) {
    SLUICE_TRY(listed, metadata.get_numbers(kListed));
    // GGUF also counts modules after the layers.
    if (listed.size() < config.layers.size()) {
      return metadata.wrong(kListed,
                            std::to_string(listed.size()) + " elements",
                            "one for each of " + std::to_string(config.num_layers) + " layers");
    }
  }
  if (listed.empty()) {
    SLUICE_TRY(listed, without_attention(metadata, config));
  }
  SLUICE_TRY(const int32_t interval,
             metadata.get_count_or("full_attention_interval", 1024, usual_interval));
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool recurs = listed.empty() ? (i + 1) % interval != 0 : listed[at] != 0;
    if (!recurs) continue;
    config.layers[at].mixer = kind;
    config.layers[at].rope = -1;
  }
  return read_conv_taps(checkpoint, config);
}

Expected<void> read_conv_taps(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  const char* const taps = metadata.has("shortconv.l_cache") ? "shortconv.l_cache"
                                                             : "ssm.conv_kernel";
  SLUICE_TRY(config.conv_taps, metadata.get_count(taps, kernels::kMaxConvTaps));
  if (config.conv_taps >= 2) return {};
  return metadata.wrong(taps, std::to_string(config.conv_taps), "2 or more");
}

namespace {

// The convolutions' activation, which most families call by the name of the dense halves'.
Expected<void> check_conv_activation(const Metadata& metadata) {
  const char* const key = metadata.has("ssm.activation") ? "ssm.activation" : "hidden_act";
  if (!metadata.has(key)) return {};
  SLUICE_TRY(const std::string name, metadata.get_string(key));
  if (name == "silu" || name == "swish") return {};
  return metadata.wrong(key, "\"" + name + "\" for recurrent layers", "silu");
}

}  // namespace

Expected<void> read_delta(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr uint64_t kMostHeads = 1024;
  const Metadata& metadata = checkpoint.metadata();
  SLUICE_TRY_VOID(check_conv_activation(metadata));
  DeltaConfig& delta = config.delta;
  SLUICE_TRY(delta.key_dim, metadata.get_count("ssm.state_size", kernels::kMaxStateKeys));
  SLUICE_TRY(delta.num_key_heads, metadata.get_count("ssm.group_count", kMostHeads));
  SLUICE_TRY(delta.num_value_heads, metadata.get_count("ssm.time_step_rank", kMostHeads));
  if (delta.num_value_heads % delta.num_key_heads != 0) {
    return metadata.wrong("ssm.time_step_rank",
                          std::to_string(delta.num_value_heads),
                          "a multiple of the key heads, " + std::to_string(delta.num_key_heads));
  }
  // GGUF has the width of all value heads together.
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    SLUICE_TRY(const int32_t inner, metadata.get_count("ssm.inner_size", 1 << 20));
    if (inner % delta.num_value_heads != 0) {
      return metadata.wrong("ssm.inner_size",
                            std::to_string(inner),
                            "a multiple of " + std::to_string(delta.num_value_heads) + " heads");
    }
    delta.value_dim = inner / delta.num_value_heads;
    return {};
  }
  SLUICE_TRY(delta.value_dim, metadata.get_count("ssm.value_head_size", 1 << 14));
  return {};
}

namespace {

// The width of a head: as stated, or a share of all heads' width, which GGUF and some directories
// state, or of `ssm.expand` times the model's.
Expected<int32_t> read_mamba_head(const Metadata& metadata, const ModelConfig& config) {
  constexpr const char* kHead = "ssm.value_head_size";
  const Expected<std::string> automatic = metadata.get_string(kHead);
  if (metadata.has(kHead) && !(automatic && *automatic == "auto")) {
    return metadata.get_count(kHead, 1 << 14);
  }
  constexpr const char* kInner = "ssm.inner_size";
  SLUICE_TRY(const int32_t times, metadata.get_count_or("ssm.expand", 64, 2));
  SLUICE_TRY(const int32_t inner,
             metadata.get_count_or(kInner, 1 << 20, int32_t{times} * config.hidden));
  if (inner % config.mamba.num_heads == 0) return inner / config.mamba.num_heads;
  return metadata.wrong(kInner,
                        std::to_string(inner),
                        "a multiple of " + std::to_string(config.mamba.num_heads) + " heads");
}

Expected<void> read_step_limits(const Metadata& metadata, MambaConfig& mamba) {
  constexpr const char* kLimits = "ssm.step_limits";
  if (!metadata.has(kLimits)) return {};
  SLUICE_TRY(const std::vector<double> limits, metadata.get_numbers(kLimits));
  if (limits.size() != 2 || !(limits[0] >= 0) || !(limits[1] > limits[0])) {
    return metadata.wrong(
        kLimits, std::to_string(limits.size()) + " elements", "the least and the largest step");
  }
  mamba.min_step = static_cast<float>(limits[0]);
  mamba.max_step = static_cast<float>(limits[1]);
  return {};
}

}  // namespace

Expected<void> read_mamba(const Checkpoint& checkpoint, ModelConfig& config) {
  constexpr uint64_t kMostHeads = 1024;
  const Metadata& metadata = checkpoint.metadata();
  MambaConfig& mamba = config.mamba;
  SLUICE_TRY_VOID(check_conv_activation(metadata));
  SLUICE_TRY(mamba.state_dim, metadata.get_count("ssm.state_size", kernels::kMaxStateKeys));
  SLUICE_TRY(mamba.num_groups, metadata.get_count("ssm.group_count", kMostHeads));
  SLUICE_TRY(mamba.num_heads, metadata.get_count("ssm.time_step_rank", kMostHeads));
  if (mamba.num_heads % mamba.num_groups != 0) {
    return metadata.wrong("ssm.time_step_rank",
                          std::to_string(mamba.num_heads),
                          "a multiple of the groups, " + std::to_string(mamba.num_groups));
  }
  SLUICE_TRY(mamba.head_dim, read_mamba_head(metadata, config));
  return read_step_limits(metadata, mamba);
}

}  // namespace sluice
