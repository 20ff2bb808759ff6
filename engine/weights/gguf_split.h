// SPDX-License-Identifier: Apache-2.0
// A GGUF model in several files, as llama.cpp's gguf-split writes them: "name-00001-of-00003.gguf"
// has the metadata, every part has some of the tensors and says in split.no (from 0), split.count
// and split.tensors.count what it is.
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

// One file, or all parts in order whichever of them `path` is. Errors as GgufFile::open, for a part
// that is missing too.
Expected<std::vector<std::unique_ptr<GgufFile>>> open_gguf_parts(const std::string& path);

// That the parts are those of one model, all of them and in order: kDataLoss.
Expected<void> check_gguf_parts(std::span<const std::unique_ptr<GgufFile>> parts);

}  // namespace sluice
