// SPDX-License-Identifier: Apache-2.0
// Arbitrary bytes as a config.json and as a generation_config.json: an error has its line, metadata can be asked for anything.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/weights/generation_defaults.h"
#include "engine/weights/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  sluice::GenerationDefaults defaults;
  if (sluice::apply_generation_config(
          {reinterpret_cast<const char*>(data), size}, "fuzz", defaults)) {
    for (const sluice::SamplingField& field : sluice::sampling_fields()) {
      const double value = field.get(defaults.sampling);
      CHECK(value >= field.min && value <= field.max);
    }
    CHECK_GE(defaults.max_output_tokens, 0);
  }
  const auto config = sluice::parse_hf_config(bytes, "fuzz");
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
  return 0;
}
