// SPDX-License-Identifier: Apache-2.0
// The readers of quantization_config, one for each quant_method.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/weights/quantization.h"

namespace sluice {

struct QuantMethod {
  std::string_view name;
  Expected<void> (*read)(const nlohmann::json& config,
                         const std::string& place,
                         Quantization& quantization);
};

std::span<const QuantMethod> quant_methods();

// Each adds schemes to `quantization`, or none. Errors as of Quantization::read().
Expected<void> read_compressed_tensors(const nlohmann::json& config,
                                       const std::string& place,
                                       Quantization& quantization);
Expected<void> read_modelopt(const nlohmann::json& config,
                             const std::string& place,
                             Quantization& quantization);

}  // namespace sluice
