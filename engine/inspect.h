// SPDX-License-Identifier: Apache-2.0
// Answers the command line's questions about a model without serving it: description, memory plan
// and tokenizer. Starts no thread and allocates no KV cache.
#pragma once

#include <memory>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;
class Tokenizer;

// Returns metadata, tensors by type and the memory plan of `config.model`, as lines of text ending
// in a newline. `all_tensors`: one line per tensor and whole metadata value. Errors as in
// Checkpoint::open, and of a key of --hf-overrides that nothing reads; a plan that does not fit is
// part of the text.
[[nodiscard]] Expected<std::string> inspect_model(const Config& config, bool all_tensors);

// Returns the memory plan that create_engine() would follow, in bytes, as lines of text ending in a
// newline; with adaptive drafts, also the step sizes that would be timed. kResourceExhausted: it
// does not fit; the message says what would.
[[nodiscard]] Expected<std::string> plan_text(const Config& config);

// Opens the tokenizer of a model file. Errors as in Checkpoint::open and create_tokenizer.
[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& model_path);

}  // namespace sluice
