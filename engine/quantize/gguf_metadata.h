// SPDX-License-Identifier: Apache-2.0
// Keys and values of a GGUF file to be written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/gguf.h"

namespace sluice {

// Stored as in the file: little-endian, like the machines this runs on.
class GgufMetadata {
 public:
  void put_uint(std::string_view key, uint64_t value);  // 32 bits
  void put_float(std::string_view key, double value);   // 32 bits
  void put_bool(std::string_view key, bool value);
  void put_text(std::string_view key, std::string_view text);
  void put_texts(std::string_view key, const std::vector<std::string>& texts);
  void put_bools(std::string_view key, const std::vector<bool>& values);
  void put_ints(std::string_view key, const std::vector<int32_t>& numbers);
  void put_floats(std::string_view key, const std::vector<float>& numbers);
  // Puts a value of another file, whose numbers were widened on reading.
  void put_value(std::string_view key, const GgufValue& value);

  [[nodiscard]] uint64_t count() const { return count_; }

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void put_key(std::string_view key, GgufType type);
  template <typename T>
  void put(T value);
  template <typename T>
  void put_number(GgufType type, T number);
  void put_string(std::string_view text);

  uint64_t count_ = 0;
  std::vector<std::byte> bytes_;
};

// Returns a file's metadata except what a new file sets itself: type, alignment, parts.
GgufMetadata metadata_of(const GgufFile& file);

// Puts the tokenizer.ggml.* keys that read_vocabulary() reads as `vocabulary`.
void put_vocabulary(const Vocabulary& vocabulary, GgufMetadata& metadata);

// Returns the bytes before a file's table of tensors.
std::vector<std::byte> gguf_header(const GgufMetadata& metadata, uint64_t num_tensors);

}  // namespace sluice
