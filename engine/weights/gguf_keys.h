// SPDX-License-Identifier: Apache-2.0
// The keys of a GGUF file that say what its model is.
#pragma once

#include <string_view>

#include "engine/weights/gguf.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Those of this architecture, without its name, and those of sampling with theirs.
void take_gguf_metadata(const GgufFile& file, std::string_view architecture, Metadata& metadata);

}  // namespace sluice
