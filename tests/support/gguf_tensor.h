// SPDX-License-Identifier: Apache-2.0
// Tensors of a GGUF file by name.
#pragma once

#include <algorithm>
#include <string_view>

#include "engine/weights/gguf.h"

namespace sluice {

// Returns null if the file has no such tensor. Valid as long as the file.
inline const GgufTensor* find_tensor(const GgufFile& file, std::string_view name) {
  const auto found = std::ranges::find(file.tensors(), name, &GgufTensor::name);
  return found == file.tensors().end() ? nullptr : &*found;
}

}  // namespace sluice
