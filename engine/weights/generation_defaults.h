// SPDX-License-Identifier: Apache-2.0
// How a model wants to be sampled where a request does not say: generation_config.json beside it,
// or general.sampling.* of a GGUF file, then what the command line puts over it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"

namespace sluice {

struct Config;
class Checkpoint;

struct GenerationDefaults {
  SamplingParams sampling;
  int32_t max_output_tokens = 0;  // max_new_tokens: of every request, 0: no bound
  std::string summary;            // "temperature 0.6, top_p 0.95"; empty: nothing is set
};

// --generation-config and --override-generation-config of `config`. One line "file: field ..." for
// a value out of the parameter's range.
Expected<GenerationDefaults> read_generation_defaults(const Config& config,
                                                      const Checkpoint& checkpoint);

// Sets what a generation_config.json names and Sluice has; the rest is of other programs. `source`
// is for messages.
Expected<void> apply_generation_config(std::string_view json,
                                       const std::string& source,
                                       GenerationDefaults& defaults);

}  // namespace sluice
