// SPDX-License-Identifier: Apache-2.0
// Apertus: a norm for each head of q and k, and feed-forward halves of two matrices around xIELU,
// whose numbers each layer has: a directory as tensors, a GGUF file as keys.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"
#include "engine/weights/weight_store.h"
#include "quant/format.h"

namespace sluice {
namespace {

constexpr KeyDefault kApertusDefaults[] = {
    {"num_attention_heads", 32U},
    {"max_position_embeddings", 65536U},
    {"rms_norm_eps", 1e-5},
    {"rope_theta", 12000000U},
};

constexpr KeyDefault kApertusRopeDefaults[] = {
    {"rope_type", "llama3"},
    {"factor", 8U},
    {"low_freq_factor", 1U},
    {"high_freq_factor", 4U},
    {"original_max_position_embeddings", 8192U},
};

constexpr TensorName kApertusNames[] = {
    {"attention_layernorm", "attn_norm"},
    {"feedforward_layernorm", "ffn_norm"},
    {"mlp.act_fn.alpha_p", "ffn_xielu.alpha_p"},
    {"mlp.act_fn.alpha_n", "ffn_xielu.alpha_n"},
    {"mlp.act_fn.beta", "ffn_xielu.beta"},
    {"mlp.act_fn.eps", "ffn_xielu.eps"},
};

// A number's key in GGUF and its tensor in a layer, and what it is before training.
struct XieluNumber {
  const char* key;
  const char* tensor;
  float initial;
};

constexpr XieluNumber kXieluNumbers[] = {{"xielu.alpha_p", ".ffn_xielu.alpha_p", 0.2F},
                                         {"xielu.alpha_n", ".ffn_xielu.alpha_n", -1.05F},
                                         {"xielu.beta", ".ffn_xielu.beta", 0.5F},
                                         {"xielu.eps", ".ffn_xielu.eps", -1e-6F}};

std::string place_of(size_t layer, const XieluNumber& number) {
  return "blk." + std::to_string(layer) + number.tensor;
}

Expected<float> read_number(const Checkpoint& checkpoint, size_t layer, const XieluNumber& number) {
  if (checkpoint.is_dummy()) return number.initial;
  if (checkpoint.kind() == CheckpointKind::kGguf) {
    SLUICE_TRY(const std::vector<double> listed, checkpoint.metadata().get_numbers(number.key));
    if (layer < listed.size()) return static_cast<float>(listed[layer]);
    return checkpoint.metadata().wrong(
        number.key, std::to_string(listed.size()) + " elements", "one for each layer");
  }
  const std::string name = place_of(layer, number);
  const CheckpointTensor* const tensor = checkpoint.find(name);
  const bool is_one = tensor != nullptr && !tensor->coded && tensor->num_dims <= 1 &&
                      tensor->dims[0] == 1 && !tensor->data.empty();
  if (!is_one) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.place_of(name) + ": found " +
                          (tensor == nullptr ? "nothing" : "another shape") +
                          ", expected one number");
  }
  float value = 0;
  dequantize_row(tensor->format, tensor->data.data(), 1, &value);
  return value;
}

// The last number, where the lower branch begins, is taken as the 0 that it stands for.
Expected<void> configure_apertus(const Checkpoint& checkpoint, ModelConfig& config) {
  config.qk_norm = QkNorm::kHead;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    std::array<float, std::size(kXieluNumbers)> found{};
    for (size_t n = 0; n < found.size(); ++n) {
      SLUICE_TRY(found[n], read_number(checkpoint, i, kXieluNumbers[n]));
    }
    const bool is_near_0 = found[3] <= 0 && found[3] >= -1e-5F;
    const bool are_usual =
        std::ranges::all_of(found, [](float x) { return x >= -100 && x <= 100; });
    if (!is_near_0 || !are_usual) {
      return make_error(ErrorCode::kUnsupported,
                        checkpoint.place_of(place_of(i, kXieluNumbers[3])) +
                            ": found unusual numbers of xIELU, expected -100 to 100, and an "
                            "epsilon of -1e-5 to 0");
    }
    config.layers[i].xielu = {.above = found[0], .below = found[1], .slope = found[2]};
  }
  return {};
}

Expected<std::unique_ptr<Model>> build_apertus(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights) {
  for (size_t i = 0; i < config.layers.size(); ++i) {
    for (const XieluNumber& number : kXieluNumbers) weights.leave_out(place_of(i, number));
  }
  return build_decoder(std::move(config), options, weights);
}

}  // namespace

extern const ModelSpec kApertusSpec;
const ModelSpec kApertusSpec = {.files = {.gguf = "apertus",
                                          .model_type = "apertus",
                                          .class_name = "ApertusForCausalLM",
                                          .defaults = kApertusDefaults,
                                          .rope_defaults = kApertusRopeDefaults,
                                          .layer_types = LayerTypes::kFull,
                                          .names = kApertusNames,
                                          .is_gated = false,
                                          .function = "xielu"},
                                .configure = configure_apertus,
                                .build = build_apertus};

}  // namespace sluice
