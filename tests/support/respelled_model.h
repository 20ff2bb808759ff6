// SPDX-License-Identifier: Apache-2.0
// Copies of golden models whose tensors and keys are spelled as other writers spell them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights/gguf_values.h"
#include "tests/support/temporary_folder.h"

namespace sluice::testing {

// A tensor of a directory or of a GGUF file.
struct StoredTensor {
  std::string name;
  std::string dtype = {};            // safetensors' name of it; empty in GGUF
  uint32_t type = 0;                 // GGUF's number of it
  std::vector<uint64_t> shape = {};  // the last dimension is contiguous
  std::string bytes = {};

  [[nodiscard]] uint64_t row_bytes() const { return bytes.size() / shape.front(); }
};

// Returns the rows of a tensor in the order `from` of their numbers; rows are by its first
// dimension.
StoredTensor with_rows(const StoredTensor& tensor, const std::vector<uint64_t>& from);

// A golden directory. A test that names no golden model of it fails.
class RespelledDirectory {
 public:
  explicit RespelledDirectory(const std::string& name);

  // Writes what there is now and returns the path.
  std::string path() const;

  nlohmann::json config;
  std::vector<StoredTensor> tensors;

 private:
  TemporaryFolder folder_;
};

// A golden GGUF file, or one that is made from nothing.
class RespelledGguf {
 public:
  RespelledGguf() = default;
  explicit RespelledGguf(const std::string& name);

  void set_uint(std::string_view key, uint32_t value);
  void set_float(std::string_view key, float value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_ints(std::string_view key, const std::vector<int32_t>& values);
  void erase(std::string_view key);
  StoredTensor& tensor(std::string_view name);

  std::string path() const;

  std::vector<StoredTensor> tensors;

 private:
  struct Key {
    std::string name;
    GgufType type;
    std::string value;  // its stored bytes
  };

  void set(std::string_view key, GgufType type, std::string value);

  std::vector<Key> keys_;
  TemporaryFolder folder_;
};

}  // namespace sluice::testing
