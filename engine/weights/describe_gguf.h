// SPDX-License-Identifier: Apache-2.0
// What a GGUF file holds, as text for people.
#pragma once

#include <string>

#include "engine/weights/gguf.h"

namespace sluice {

// Metadata (long arrays shortened, strings clipped), tensors (name, type, shape with K first,
// bytes) and totals per type. Without `all_tensors`, layers after blk.0 are left out and counted.
std::string describe_gguf(const GgufFile& file, bool all_tensors);

}  // namespace sluice
