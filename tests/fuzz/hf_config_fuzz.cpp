// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a config.json and as a generation_config.json: an error has its line, metadata
// can be asked for anything, and the model it describes can be laid out or is refused.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/log.h"
#include "engine/models/model_spec.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/generation_defaults.h"
#include "engine/weights/hf_config.h"
#include "engine/weights/weight_store.h"
#include "tests/fuzz/target.h"

namespace {

// A checkpoint whose directory has the configuration alone.
class ConfiguredCheckpoint final : public sluice::Checkpoint {
 public:
  explicit ConfiguredCheckpoint(sluice::HfConfig config)
      : Checkpoint("fuzz", sluice::CheckpointKind::kHuggingFace, std::move(config.model_type)) {
    metadata_ = std::move(config.metadata);
    metadata_.set("tied_embeddings", "tie_word_embeddings", config.tied_embeddings);
    is_dummy_ = true;
    dummy_format_ = config.quantization.usual_format();
  }

  [[nodiscard]] std::vector<sluice::CheckpointFile> files() const override { return {}; }

  [[nodiscard]] sluice::Expected<sluice::CheckpointText> text() const override {
    return sluice::CheckpointText();
  }

  [[nodiscard]] std::string describe(bool) const override { return {}; }
};

bool is_one_line(const sluice::Error& error) {
  return error.message.find('\n') == std::string::npos && !error.message.empty();
}

void lay_out(sluice::HfConfig config) {
  const ConfiguredCheckpoint checkpoint(std::move(config));
  const auto spec = sluice::find_model_spec(checkpoint);
  if (!spec) {
    CHECK(is_one_line(spec.error()));
    return;
  }
  auto model = sluice::read_model_config(**spec, checkpoint);
  if (!model) {
    CHECK(is_one_line(model.error()));
    return;
  }
  // Larger ones are right and take long.
  const int64_t matrices = int64_t{model->num_layers} * (model->moe.num_experts + 1);
  if (matrices > 64 || model->hidden > 4096 || model->ffn_hidden > 1 << 16) return;
  const sluice::LayerConfig& layer = model->layers.front();
  if (layer.num_heads * layer.head_dim > 1 << 16 || model->context_len < 1) return;
  sluice::WeightStore sizes(checkpoint);
  const auto built =
      (*spec)->build(std::move(*model), {.activation_bits = 8, .max_model_len = 1}, sizes);
  if (!built) {
    CHECK(is_one_line(built.error()));
    return;
  }
  CHECK_GT(sizes.packed_bytes(), 0);
  CHECK_GT(
      (*built)->arena_bytes({.max_tokens = 8, .max_seqs = 2, .max_logits = 2, .max_seq_len = 9}),
      0);
}

}  // namespace

static int hf_config_input(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  sluice::GenerationDefaults defaults;
  const auto source = static_cast<sluice::GenerationSource>(size % 3);
  if (sluice::apply_generation_config(
          {reinterpret_cast<const char*>(data), size}, "fuzz", source, defaults)) {
    for (const sluice::SamplingField& field : sluice::sampling_fields()) {
      const double value = field.get(defaults.sampling);
      CHECK(value >= field.min && value <= field.max);
    }
    CHECK_GE(defaults.max_output_tokens, 0);
    for (const sluice::TokenId id : defaults.end_tokens.value_or(std::vector<sluice::TokenId>())) {
      CHECK_GE(id, 0);
    }
  }
  auto config = sluice::parse_hf_config(bytes, "fuzz");
  if (!config) {
    CHECK(config.error().message.find(": found ") != std::string::npos);
    return 0;
  }
  for (const char* key :
       {"block_count", "rope.freq_base", "attention.sliding_layers", "hidden_act"}) {
    const bool readable = config->metadata.get_uint(key).has_value() ||
                          config->metadata.get_float(key).has_value() ||
                          config->metadata.get_string(key).has_value() ||
                          config->metadata.get_numbers(key).has_value() ||
                          config->metadata.get_bool_or(key, false).has_value();
    CHECK(readable || config->metadata.has(key));
  }
  lay_out(std::move(*config));
  return 0;
}

const sluice::fuzz::Target hf_config_target("hf_config_fuzz", hf_config_input);
