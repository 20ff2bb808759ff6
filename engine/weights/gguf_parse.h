// SPDX-License-Identifier: Apache-2.0
// Parses the structure of a GGUF file from its bytes, with every check that needs only them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/gguf_values.h"

namespace sluice {

// Views point into the bytes parsed.
struct GgufContents {
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::vector<std::pair<std::string_view, GgufValue>> metadata;  // in file order
  std::vector<GgufTensor> tensors;                               // in file order
  std::vector<uint32_t> metadata_by_name;                        // indices, for binary search
};

Expected<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& file_name);

// Formats text for messages: quoted and clipped near 60 bytes; quotes, control characters and bytes
// that are not UTF-8 are escaped.
std::string in_quotes(std::string_view text);
std::string number_text(double value);  // shortest of at most 9 digits

}  // namespace sluice
