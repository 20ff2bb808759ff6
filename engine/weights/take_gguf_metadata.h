// SPDX-License-Identifier: Apache-2.0
// The metadata of a GGUF file that describes its model.
#pragma once

#include <string_view>

#include "engine/weights/gguf.h"
#include "engine/weights/metadata.h"

namespace sluice {

// Takes this architecture's keys without its prefix, and those of sampling, of xIELU and of tokens
// that are never chosen with theirs.
void take_gguf_metadata(const GgufFile& file, std::string_view architecture, Metadata& metadata);

}  // namespace sluice
