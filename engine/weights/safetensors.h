// SPDX-License-Identifier: Apache-2.0
// Parses safetensors: an 8-byte length, a JSON header, then the tensors' bytes. Everything is
// checked before use: the header is inside the file, offsets inside the data, every tensor of a
// supported type and shape has exactly the bytes of both, none overlap, names are unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/file_tensor.h"

namespace sluice {

// kDataLoss with one line "file: field: found X, expected Y". An unsupported tensor is not an error
// of the file, as it may be unused: see FileTensor::unreadable.
Expected<std::vector<FileTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    const std::string& file_name);

// Bytes of the length field and header of a parsed file.
size_t safetensors_header_bytes(std::span<const std::byte> file);

// Parses an index, which is the same for safetensors and for PyTorch's files, into file names by
// tensor name. File names have no path.
Expected<std::map<std::string, std::string>> parse_safetensors_index(
    std::span<const std::byte> json, const std::string& file_name);

}  // namespace sluice
