// SPDX-License-Identifier: Apache-2.0
// Parses safetensors: an 8-byte length, a JSON header, then the tensors' bytes. Everything is
// checked before use: the header is inside the file, offsets inside the data, every tensor of a
// supported type and shape has exactly the bytes of both, none overlap, names are unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "quant/scheme.h"

namespace sluice {

struct SafetensorsTensor {
  std::string name;
  std::optional<ElementType> type;  // none: an unsupported type
  std::vector<uint64_t> shape;      // stored shape: the last dimension is contiguous
  std::span<const std::byte> data;  // inside the file
  // Why the tensor is unusable as a matrix or vector: an unsupported type, or a number of
  // dimensions or elements beyond ours. Name, shape and data are the file's.
  std::optional<Error> unreadable = {};
};

// kDataLoss with one line "file: field: found X, expected Y". An unsupported tensor is not an error
// of the file, as it may be unused: see SafetensorsTensor::unreadable.
Expected<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const std::byte> file,
                                                           const std::string& file_name);

// kUnsupported, with what writes safetensors: a directory without model.safetensors has weights in
// torch's own format.
Expected<void> check_no_pickles(const std::string& directory);

// Bytes of the length field and header of a parsed file.
size_t safetensors_header_bytes(std::span<const std::byte> file);

// Parses model.safetensors.index.json into file names by tensor name. File names have no path.
Expected<std::map<std::string, std::string>> parse_safetensors_index(
    std::span<const std::byte> json, const std::string& file_name);

}  // namespace sluice
