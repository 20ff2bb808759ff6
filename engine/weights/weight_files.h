// SPDX-License-Identifier: Apache-2.0
// The weight files of a directory in Hugging Face's layout: safetensors or, where there are none,
// PyTorch's own; one file, or several with an index or with numbers in their names.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/file_tensor.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

struct WeightFile {
  std::string name;  // within the directory
  MappedFile file;
  std::vector<FileTensor> tensors;             // views of `file` and of `copies`
  std::vector<std::vector<std::byte>> copies;  // see TorchFile
  std::span<const std::byte> header;           // of `file`: what its tensors are
};

// Maps and parses a file of the directory: of PyTorch's format if its name ends with ".bin", else
// safetensors. Errors are those of MappedFile::open() and of the two parsers.
Expected<WeightFile> open_weight_file(const std::string& directory, const std::string& name);

// Opens model.safetensors, else pytorch_model.bin, of a directory with a single one.
Expected<WeightFile> open_single_weight_file(const std::string& directory);

// Opens all weight files of the directory. A file whose tensors are all left out by `is_left_out`,
// which takes a stored name, may be missing, as may such tensors in what the index says. Tensors
// that the index does not list are dropped. kNotFound: there are no weights; kDataLoss: the index
// does not fit the files; and what open_weight_file() returns.
Expected<std::vector<WeightFile>> open_weight_files(
    const std::string& directory, const std::function<bool(std::string_view)>& is_left_out);

}  // namespace sluice
