// SPDX-License-Identifier: Apache-2.0
// A GGUF model in several files, as llama.cpp's gguf-split writes them: "name-00001-of-00003.gguf"
// has the metadata; every part has some of the tensors and states its role in split.no (from 0),
// split.count and split.tensors.count.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/gguf.h"

namespace sluice {

struct GgufPartName {
  std::string prefix;  // the path up to "-00001-of-"
  uint64_t part = 0;   // from 1
  uint64_t count = 0;

  [[nodiscard]] std::string path_of(uint64_t other) const;
};

std::optional<GgufPartName> parse_gguf_part_name(std::string_view path);

// Opens one file, or all parts in order if `path` is any of them. Errors as in GgufFile::open, also
// for a missing part.
Expected<std::vector<std::unique_ptr<GgufFile>>> open_gguf_parts(const std::string& path);

// Checks that the parts are all those of one model, in order: kDataLoss.
Expected<void> check_gguf_parts(std::span<const std::unique_ptr<GgufFile>> parts);

}  // namespace sluice
