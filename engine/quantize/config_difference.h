// SPDX-License-Identifier: Apache-2.0
// Whether two configurations are those of the same computation.
#pragma once

#include <string>

#include "engine/models/model_config.h"

namespace sluice {

// Returns the first difference in computation between two configurations, as "FIELD: found A,
// expected B"; empty: none. Rotary factors and scales may differ by a rounding; the order of q and
// k rows and the offset of norms depend on the layout and are ignored.
std::string difference_of(const ModelConfig& found, const ModelConfig& expected);

}  // namespace sluice
