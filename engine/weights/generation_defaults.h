// SPDX-License-Identifier: Apache-2.0
// A model's sampling defaults for requests that do not say: generation_config.json beside it or
// general.sampling.* of a GGUF file, overridden by the command line.
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
  int32_t max_output_tokens = 0;  // max_new_tokens: for every request, 0: no bound
  // eos_token_id of a file named by a flag, replacing those of the model's own files; absent: the
  // tokenizer's apply. Not negative.
  std::optional<std::vector<TokenId>> end_tokens;
  std::string summary;  // "temperature 0.6, top_p 0.95"; empty: nothing is set
};

// Applies --generation-config and --override-generation-config of `config`. One line "file: field
// ..." for a malformed named file, and for a value in the override that its parameter cannot have.
// A malformed file of the model itself counts as absent, with a warning.
Expected<GenerationDefaults> read_generation_defaults(const Config& config,
                                                      const Checkpoint& checkpoint);

// The source of values. Files are written for other programs, so their impossible values are
// skipped, with a warning each; those of a flag are refused.
enum class GenerationSource : uint8_t { kModelFile, kNamedFile, kFlag };

// Sets what a generation_config.json names and Sluice supports; other fields are ignored. A float
// without a fraction is an integer. `name` is for messages.
Expected<void> apply_generation_config(std::string_view json,
                                       const std::string& name,
                                       GenerationSource source,
                                       GenerationDefaults& defaults);

// Returns the tokens that the model is never to choose, ascending: suppress_tokens of the
// generation_config.json beside it, whatever --generation-config says, or
// tokenizer.ggml.suppress_tokens of a GGUF file. A list that cannot be one counts as absent, an id
// that is not below `vocab_size` as not listed, with a warning each.
std::vector<TokenId> read_suppressed_tokens(const Checkpoint& checkpoint, int32_t vocab_size);

}  // namespace sluice
