// SPDX-License-Identifier: Apache-2.0
// Phi-3 and Phi-4: Llama with fused q, k, v and gate, up; LongRoPE; one window for all layers.
#include "engine/models/config_reader.h"
#include "engine/models/decoder.h"

namespace sluice {
namespace {

Expected<void> configure(const Checkpoint& checkpoint, ModelConfig& config) {
  config.fused_qkv = true;
  config.fused_gate_up = true;
  constexpr int32_t kNever = 1 << 30;
  const Metadata& metadata = checkpoint.metadata();
  if (config.long_rope.original_context > 0 && metadata.has("rope.scaling.long_factor")) {
    for (auto& [key, factors] :
         {std::pair("rope.scaling.long_factor", &config.long_rope.long_factors),
          std::pair("rope.scaling.short_factor", &config.long_rope.short_factors)}) {
      SLUICE_TRY(const std::vector<double> numbers, metadata.get_numbers(key));
      const auto pairs = static_cast<size_t>(config.ropes.front().rotary_dim / 2);
      if (numbers.size() != pairs) {
        return metadata.wrong(
            key, std::to_string(numbers.size()) + " elements", std::to_string(pairs));
      }
      factors->assign(numbers.begin(), numbers.end());
    }
  }
  return read_window_pattern(checkpoint, kNever, config);
}

}  // namespace

extern const ModelSpec kPhi3Spec;
const ModelSpec kPhi3Spec = {.architecture = "phi3",
                             .hf_model_type = "phi3",
                             .configure = configure,
                             .build = build_decoder};

}  // namespace sluice
