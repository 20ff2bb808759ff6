// SPDX-License-Identifier: Apache-2.0
// How a model wants to be sampled where a request does not say: generation_config.json beside it,
// or general.sampling.* of a GGUF file, then what the command line puts over it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"

namespace sluice {

struct Config;
class Checkpoint;

struct GenerationDefaults {
  SamplingParams sampling;
  int32_t max_output_tokens = 0;  // max_new_tokens: of every request, 0: no bound
  // eos_token_id of what a flag names, in the place of those that the model's own files give;
  // absent: the tokenizer has read them there. Not negative.
  std::optional<std::vector<TokenId>> end_tokens;
  std::string summary;  // "temperature 0.6, top_p 0.95"; empty: nothing is set
};

// --generation-config and --override-generation-config of `config`. One line "file: field ..." for
// a named file that is none, and for a value of the override that the parameter cannot have. The
// model's own file that is none is as good as absent, with a warning.
Expected<GenerationDefaults> read_generation_defaults(const Config& config,
                                                      const Checkpoint& checkpoint);

// A file's values that their parameters cannot have are left out, with a warning each: files are
// written for other programs. Those of a flag are refused.
enum class GenerationSource : uint8_t { kModelFile, kNamedFile, kFlag };

// Sets what a generation_config.json names and Sluice has; the rest is of other programs. A float
// without a fraction is an integer. `name` is for messages.
Expected<void> apply_generation_config(std::string_view json,
                                       const std::string& name,
                                       GenerationSource source,
                                       GenerationDefaults& defaults);

}  // namespace sluice
