// SPDX-License-Identifier: Apache-2.0
// Writes a model's safetensors files. The layout is fixed before the first byte, so that tensors
// may come in any order and only one is in memory at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/output_file.h"

namespace sluice {

struct StoredTensor {
  std::string name;
  std::string dtype;           // in safetensors' spelling: "BF16", "F8_E4M3", "U8"
  std::vector<int64_t> shape;  // the last dimension is contiguous

  [[nodiscard]] int64_t bytes() const;
};

// Bytes per element of a type that is written here.
int64_t safetensors_type_bytes(const std::string& dtype);

class SafetensorsWriter {
 public:
  // `groups`: tensors that must be in one file, in the order of filling files. A file has at most
  // `max_shard_bytes` unless one group is larger; a single file is model.safetensors, several have
  // an index beside them.
  static Expected<SafetensorsWriter> create(const std::string& folder,
                                            const std::vector<std::vector<StoredTensor>>& groups,
                                            int64_t max_shard_bytes);

  // Writes all bytes of a tensor that was passed to create().
  Expected<void> write(const std::string& name, std::span<const std::byte> bytes);
  Expected<void> finish();

 private:
  struct Place {
    size_t file = 0;
    int64_t offset = 0;
    int64_t bytes = 0;
  };

  Expected<void> add_file(const std::string& path, std::vector<StoredTensor> tensors);

  std::vector<OutputFile> files_;
  std::map<std::string, Place> places_;
};

}  // namespace sluice
