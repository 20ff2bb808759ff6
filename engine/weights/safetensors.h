// SPDX-License-Identifier: Apache-2.0
// safetensors: an 8-byte length, a JSON header, then the tensors' bytes. Everything is checked
// before it is used: the header lies inside the file, offsets inside the data, every tensor of a
// type and shape that we read has exactly the bytes of both, none overlap, names are unique.
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
  std::optional<ElementType> type;  // none: one that we do not read
  std::vector<uint64_t> shape;      // as stored: the last dimension is contiguous
  std::span<const std::byte> data;  // inside the file
  // Why the tensor cannot be used as a matrix or vector: its type, or a number of dimensions or
  // elements that none of ours has. Name, shape and data are the file's.
  std::optional<Error> unreadable = {};
};

// kDataLoss with one line "file: field: found X, expected Y". A tensor that we do not read is no
// error of the file, as nothing may want it: see SafetensorsTensor::unreadable.
Expected<std::vector<SafetensorsTensor>> parse_safetensors(std::span<const std::byte> file,
                                                           const std::string& file_name);

// The length and the header that follows it, of a file that was parsed.
size_t safetensors_header_bytes(std::span<const std::byte> file);

// model.safetensors.index.json: file name by tensor name. File names are plain names of the same
// directory.
Expected<std::map<std::string, std::string>> parse_safetensors_index(
    std::span<const std::byte> json, const std::string& file_name);

}  // namespace sluice
