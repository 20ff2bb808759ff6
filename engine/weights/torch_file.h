// SPDX-License-Identifier: Apache-2.0
// Parses pytorch_model.bin: a state dict written by torch.save(), as a ZIP archive or, before
// PyTorch 1.6, as pickles in front of the storages. Nothing of a file is run (tensor_pickle.h), and
// every size and place in it is checked before use. Several tensors may share a storage.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/file_tensor.h"

namespace sluice {

struct TorchFile {
  std::vector<FileTensor> tensors;             // in the file's order
  std::vector<std::vector<std::byte>> copies;  // data of tensors that a file has transposed
  std::span<const std::byte> header;           // the pickles: what the tensors are
};

// The data of tensors are views of the file, except those of `copies`, which together are no larger
// than the file. kDataLoss or kUnsupported with one line "file: field: found X, expected Y"; see
// also FileTensor::unreadable.
Expected<TorchFile> parse_torch_file(std::span<const std::byte> file, const std::string& file_name);

}  // namespace sluice
