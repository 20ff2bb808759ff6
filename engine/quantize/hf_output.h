// SPDX-License-Identifier: Apache-2.0
// A directory in Hugging Face's layout beside its weights: what config.json says of them, and the
// files that are taken over.
#pragma once

#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/plan.h"

namespace sluice {

// Writes config.json of `input` with the plan's quantization_config in place of its own,
// hf_quant_config.json where the spelling has it, and copies tokenizer, template and the like; of a
// GGUF file, what they are in a directory. kDataLoss: config.json is no JSON object.
Expected<void> write_hf_files(const Checkpoint& input,
                              const std::string& output,
                              const QuantizePlan& plan);

}  // namespace sluice
