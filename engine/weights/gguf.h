// SPDX-License-Identifier: Apache-2.0
// GGUF v3, mapped read-only and checked completely at open: every count is compared with the bytes
// that remain before anything is allocated for it, every product and sum is checked, tensors lie
// inside the file, aligned, not overlapping, and names are unique.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "quant/format.h"

namespace sluice {

// A metadata value. Numbers are widened; arrays are homogeneous.
struct GgufValue;
struct GgufArray {
  uint32_t element_type = 0;  // GGUF value type id
  std::vector<double> numbers;
  std::vector<std::string_view> strings;  // into the mapping
  [[nodiscard]] size_t size() const { return numbers.empty() ? strings.size() : numbers.size(); }
};

struct GgufValue {
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
  uint32_t type = 0;  // GGUF value type id, for messages and `inspect`
};

struct GgufTensor {
  std::string_view name;
  uint32_t num_dims = 0;
  uint64_t dims[4] = {1, 1, 1, 1};  // fastest first: dims[0] = K
  WeightFormat format = WeightFormat::kF32;
  std::span<const std::byte> data;  // inside the mapping
};

class GgufFile {
 public:
  // kNotFound, kUnsupported (version, tensor type: names it and those supported) or kDataLoss with
  // one line: file, field, found, expected.
  static Expected<std::unique_ptr<GgufFile>> open(const std::string& path);
  // The same checks on bytes in memory; the fuzz target's entry. `bytes` must outlive the file.
  static Expected<std::unique_ptr<GgufFile>> parse(std::span<const std::byte> bytes,
                                                   std::string name);
  ~GgufFile();

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] int64_t file_bytes() const;
  [[nodiscard]] std::span<const std::byte> bytes() const;  // the whole file
  [[nodiscard]] const std::vector<std::pair<std::string_view, GgufValue>>& metadata() const;
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const;
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  // Typed access; the Error names key, found type and expected type.
  [[nodiscard]] Expected<uint64_t> get_uint(std::string_view key) const;
  [[nodiscard]] Expected<double> get_float(std::string_view key) const;
  [[nodiscard]] Expected<std::string_view> get_string(std::string_view key) const;
  // The default where the key is absent; an Error where its type is wrong.
  [[nodiscard]] Expected<uint64_t> get_uint_or(std::string_view key, uint64_t fallback) const;
  [[nodiscard]] Expected<double> get_float_or(std::string_view key, double fallback) const;
  [[nodiscard]] Expected<bool> get_bool_or(std::string_view key, bool fallback) const;

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// tokenizer.ggml.* as a Vocabulary; kDataLoss where arrays disagree in length or type.
Expected<Vocabulary> read_vocabulary(const GgufFile& file);

}  // namespace sluice
