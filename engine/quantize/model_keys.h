// SPDX-License-Identifier: Apache-2.0
// A model's configuration as the keys of the other layout. What those cannot say is found where the
// result is read back: see translate().
#pragma once

#include <string>
#include <vector>

#include "engine/models/model.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/quantize/model_families.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Of a directory for a GGUF file, under `family.gguf`.
GgufMetadata gguf_keys(const Checkpoint& input,
                       const ModelConfig& config,
                       const ModelFamily& family);

// Of a GGUF file for a directory: config.json, without token ids. `config` has the rotary factors
// that the file holds as tensors. kUnsupported: they are of no scaling that a directory names.
Expected<std::string> hf_keys(const Checkpoint& input,
                              const ModelConfig& config,
                              const ModelFamily& family);

}  // namespace sluice
