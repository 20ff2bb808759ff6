// SPDX-License-Identifier: Apache-2.0
// The readers of quantization_config, one per quant_method.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "engine/core/status.h"
#include "engine/weights/quantization.h"

namespace sluice {

// `config`: quantization_config; `place`: "file: quantization_config". kUnsupported with one line
// "place.field: found X, expected Y" for what no kernel supports, including unknown fields.
Expected<Quantization> read_quantization(const nlohmann::json& config, const std::string& place);
// Reads modelopt's hf_quant_config.json.
Expected<Quantization> read_modelopt_file(const nlohmann::json& config, const std::string& place);

// Each adds schemes to `quantization`, or none. Errors as in read_quantization().
Expected<void> read_compressed_tensors(const nlohmann::json& config,
                                       const std::string& place,
                                       Quantization& quantization);
Expected<void> read_modelopt(const nlohmann::json& config,
                             const std::string& place,
                             Quantization& quantization);

}  // namespace sluice
