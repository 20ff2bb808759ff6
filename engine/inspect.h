// SPDX-License-Identifier: Apache-2.0
// What the command line asks about a model without serving it: its description, its memory plan
// and its tokenizer. Nothing here starts a thread or allocates the KV cache.
#pragma once

#include <memory>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Config;
class Tokenizer;

// Metadata, tensors by type and the memory plan of `config.model`, as lines of text ending in a
// newline. `all_tensors`: one line for each tensor and each whole metadata value. Errors as
// Checkpoint::open; a plan that does not fit is part of the text.
[[nodiscard]] Expected<std::string> inspect_model(const Config& config, bool all_tensors);

// The memory plan that create_engine() would follow, in bytes, as lines of text ending in a
// newline; where drafts adapt, also the sizes of steps that are timed for them. kResourceExhausted:
// it does not fit; the message says what would.
[[nodiscard]] Expected<std::string> plan_text(const Config& config);

// The tokenizer of a model file. Errors as Checkpoint::open and create_tokenizer.
[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> load_tokenizer(const std::string& model_path);

}  // namespace sluice
