// SPDX-License-Identifier: Apache-2.0
// Reads how positions turn queries and keys, under GGUF's names.
#pragma once

#include <cstdint>

#include "engine/core/status.h"
#include "engine/models/model_spec.h"

namespace sluice {

class Checkpoint;
class Metadata;

// Tokens of the longest context that a file may name.
inline constexpr uint64_t kMaxContext = 1 << 27;

// Sets the rotation of all layers, `config.ropes[0]`, and what depends on the planned context:
// `long_rope`, `dynamic_rope`, and the context length that a dynamic scaling stretches. The first
// layer's shape and the context length must be set. kDataLoss or kUnsupported with one line
// "file: field: found X, expected Y".
Expected<void> read_rope(const Checkpoint& checkpoint, const ModelSpec& spec, ModelConfig& config);

// Gives windowed layers their own rope base, `absent_base` if the checkpoint has none, without the
// scaling of other layers. Call after the windows are read.
Expected<void> use_local_rope(const Metadata& metadata, double absent_base, ModelConfig& config);

// Sets what part of windowed layers' heads rotates, `absent_part` if the checkpoint says nothing.
// Call after use_local_rope().
Expected<void> read_local_part(const Metadata& metadata, double absent_part, ModelConfig& config);

}  // namespace sluice
