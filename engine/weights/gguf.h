// SPDX-License-Identifier: Apache-2.0
// GGUF v2 and v3, mapped read-only and checked completely at open: every count is compared with the
// bytes that remain before anything is allocated for it, every product and sum is checked, tensors
// are inside the file, aligned, not overlapping, and names are unique. Opening allocates the tables
// of keys and tensors (at most 65536 each) and nothing in proportion to any other number in the
// file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/gguf_values.h"
#include "engine/weights/mapped_file.h"

namespace sluice {

class GgufFile {
 public:
  // kNotFound, kPermissionDenied, kUnsupported (version, byte order, tensor type: names it and
  // those supported) or kDataLoss, with one line "file: field: found X, expected Y". A mapped file
  // must not shrink while it is open: reading past its end is a SIGBUS.
  static Expected<std::unique_ptr<GgufFile>> open(const std::string& path);
  // Applies the same checks to bytes in memory; used by the fuzz target. `bytes` must outlive the
  // file.
  static Expected<std::unique_ptr<GgufFile>> parse(std::span<const std::byte> bytes,
                                                   std::string name);
  ~GgufFile();

  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] uint32_t version() const;
  [[nodiscard]] uint64_t alignment() const;
  [[nodiscard]] int64_t file_bytes() const;
  [[nodiscard]] std::span<const std::byte> bytes() const;  // the whole file
  [[nodiscard]] FileIdentity identity() const;             // zeros when parsed from memory
  [[nodiscard]] const std::vector<std::pair<std::string_view, GgufValue>>& metadata() const;
  [[nodiscard]] const std::vector<GgufTensor>& tensors() const;
  [[nodiscard]] const GgufValue* find(std::string_view key) const;

  // Typed access; the Error (kDataLoss) names key, found type and expected type. Integers of every
  // width and sign pass as uint if they are not negative.
  [[nodiscard]] Expected<uint64_t> get_uint(std::string_view key) const;
  [[nodiscard]] Expected<double> get_float(std::string_view key) const;
  [[nodiscard]] Expected<std::string_view> get_string(std::string_view key) const;
  // These return the default where the key is absent, and an Error where its type is wrong.
  [[nodiscard]] Expected<uint64_t> get_uint_or(std::string_view key, uint64_t fallback) const;
  [[nodiscard]] Expected<double> get_float_or(std::string_view key, double fallback) const;
  [[nodiscard]] Expected<bool> get_bool_or(std::string_view key, bool fallback) const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Reads tokenizer.ggml.* as a Vocabulary, according to the kind of tokenizer: merges for BPE,
// otherwise scores, and the character map for unigram models. kDataLoss where arrays disagree in
// length or type, or where the id of a token that begins or ends every text is out of range. Other
// ids out of range count as absent, and invalid token types as normal, with a warning.
Expected<Vocabulary> read_vocabulary(const GgufFile& file);

}  // namespace sluice
