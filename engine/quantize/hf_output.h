// SPDX-License-Identifier: Apache-2.0
// The files beside the weights of a directory in Hugging Face's layout: config.json and the files
// that are copied.
#pragma once

#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/plan.h"

namespace sluice {

// Writes config.json of `input` with the plan's quantization_config replacing its own, and
// hf_quant_config.json if the spelling has it; copies tokenizer, template and similar files, or
// writes the equivalents for a GGUF input. kDataLoss: config.json is not a JSON object.
Expected<void> write_hf_files(const Checkpoint& input,
                              const std::string& output,
                              const QuantizePlan& plan);

}  // namespace sluice
