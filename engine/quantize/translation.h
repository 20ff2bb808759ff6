// SPDX-License-Identifier: Apache-2.0
// Translates a checkpoint to the other layout: tensors with other names, reordered rows, stacked or
// separate, and the configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/quantize/source_rows.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

struct Translation {
  std::vector<SourceTensor> tensors;
  std::string config;     // config.json, for a directory
  GgufMetadata metadata;  // for a GGUF file, without the tokenizer
};

// The layout in a directory of experts that are stored together (gpt-oss).
enum class ExpertLayout : uint8_t {
  kFused,  // one tensor for all experts, gate and up rows alternating
  kApart,  // one matrix per expert
};

// Returns the input as an equivalent checkpoint of the other kind. `output` is for messages.
// kUnsupported names the tensor or the field that the other kind cannot have.
Expected<Translation> translate(const Checkpoint& input,
                                ExpertLayout experts,
                                const std::string& output);

// Returns a tensor of the output as its reader sees it, joined again where the reader split it;
// none: missing.
std::optional<SourceTensor> read_back(const Checkpoint& written, const SourceTensor& tensor);

// Returns the tensors for an output of the same kind; tensors that the reader had combined get
// names again.
Expected<std::vector<SourceTensor>> sources_of(const Checkpoint& input, ExpertLayout experts);

}  // namespace sluice
