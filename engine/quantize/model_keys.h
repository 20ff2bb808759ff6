// SPDX-License-Identifier: Apache-2.0
// Converts a model's configuration to the keys of the other layout. Inexpressible differences are
// detected when the result is read back: see translate().
#pragma once

#include <string>
#include <vector>

#include "engine/models/model_spec.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Converts a directory's configuration for a GGUF file, under `spec.files.gguf`.
GgufMetadata gguf_keys(const Checkpoint& input, const ModelConfig& config, const ModelSpec& spec);

// Converts a GGUF file's configuration to config.json, without token ids. `config` has the rotary
// factors that the file stores as tensors. kUnsupported: no scaling of a directory yields them.
Expected<std::string> hf_keys(const Checkpoint& input,
                              const ModelConfig& config,
                              const ModelSpec& spec);

}  // namespace sluice
