// SPDX-License-Identifier: Apache-2.0
// What a checkpoint is in the other layout: tensors under other names, in another order of rows and
// stacked or apart, and what says how they are computed with.
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
  GgufMetadata metadata;  // of a GGUF file, without the tokenizer
};

// The experts of layers that keep theirs together (gpt-oss) in a directory.
enum class ExpertLayout : uint8_t {
  kFused,  // one tensor for all, gate and up in alternating rows
  kApart,  // a matrix each
};

// The input as a checkpoint of the other kind, which computes the same. `output` is for messages.
// kUnsupported: names the tensor or the field that the other kind cannot have.
Expected<Translation> translate(const Checkpoint& input,
                                ExpertLayout experts,
                                const std::string& output);

// A tensor of the output as its reader gives it, from what the reader took apart too; none: it is
// not there.
std::optional<SourceTensor> read_back(const Checkpoint& written, const SourceTensor& tensor);

// The tensors of a checkpoint that stays of its kind: those that its reader put together from
// several get names again.
Expected<std::vector<SourceTensor>> sources_of(const Checkpoint& input, ExpertLayout experts);

}  // namespace sluice
