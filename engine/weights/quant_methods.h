// SPDX-License-Identifier: Apache-2.0
// The readers of quantization_config, one per quant_method.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"
#include "engine/weights/quantization.h"

namespace sluice {

// `config`: quantization_config; `place`: "file: quantization_config". kUnsupported with one line
// "place.field: found X, expected Y" for what no kernel supports, including unknown fields.
// `usual_method`: that of a configuration which names none, or empty: it must name one.
Expected<Quantization> read_quantization(const nlohmann::json& config,
                                         const std::string& place,
                                         std::string_view usual_method = {});

// Each adds schemes to `quantization`, or none. Errors as in read_quantization().
Expected<void> read_compressed_tensors(const nlohmann::json& config,
                                       const std::string& place,
                                       Quantization& quantization);
Expected<void> read_modelopt(const nlohmann::json& config,
                             const std::string& place,
                             Quantization& quantization);
Expected<void> read_gptq(const nlohmann::json& config,
                         const std::string& place,
                         Quantization& quantization);
Expected<void> read_awq(const nlohmann::json& config,
                        const std::string& place,
                        Quantization& quantization);
Expected<void> read_auto_round(const nlohmann::json& config,
                               const std::string& place,
                               Quantization& quantization);

}  // namespace sluice
