// SPDX-License-Identifier: Apache-2.0
// One tensor of a weight file of Hugging Face's layout, safetensors or PyTorch's, as the file has
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "quant/scheme.h"

namespace sluice {

struct FileTensor {
  std::string name;
  std::optional<ElementType> type;  // none: an unsupported type
  std::vector<uint64_t> shape;      // stored shape: the last dimension is contiguous
  std::span<const std::byte> data;  // inside the file, or a copy that its reader made
  // Why the tensor is unusable as a matrix or vector: an unsupported type, or a number of
  // dimensions or elements beyond ours. Name, shape and data are the file's. Not an error of the
  // file, as the tensor may be unused.
  std::optional<Error> unreadable = {};
};

inline constexpr size_t kMaxFileDims = 64;  // PyTorch's own bound

// Returns why a tensor of this type and shape is unusable; none: it is usable. `field` names the
// tensor and `dtype` is the file's spelling.
std::optional<Error> why_unreadable(std::string_view dtype,
                                    std::span<const uint64_t> shape,
                                    const std::string& file,
                                    const std::string& field);

// Makes the error "FILE: FIELD: found FOUND, expected EXPECTED" (kDataLoss).
tl::unexpected<Error> damaged_file(const std::string& file,
                                   const std::string& field,
                                   const std::string& found,
                                   const std::string& expected);

}  // namespace sluice
