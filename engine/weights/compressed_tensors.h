// SPDX-License-Identifier: Apache-2.0
// quantization_config of compressed-tensors: whether it says what kInt8Channel is. Codes of 8 bits
// with a scale per output channel, activations of 8 bits with a scale per token taken from the
// token, both symmetric. Which tensors are quantized is seen from the tensors.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"

namespace sluice {

// `place`: "file: quantization_config". kUnsupported with one line "file: field: found X, expected
// Y" for anything else, fields that are not known included.
Expected<void> check_compressed_tensors(const nlohmann::json& config, const std::string& place);

}  // namespace sluice
