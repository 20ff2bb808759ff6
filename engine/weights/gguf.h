// SPDX-License-Identifier: Apache-2.0
// GGUF v2 and v3, mapped read-only and checked completely at open: every count is compared with the
// bytes that remain before anything is allocated for it, every product and sum is checked, tensors
// lie inside the file, aligned, not overlapping, and names are unique. Opening allocates the tables
// of keys and tensors (at most 65536 each) and nothing in proportion to any other number in the
// file.
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
#include "engine/weights/mapped_file.h"
#include "quant/format.h"

namespace sluice {

// GGUF's metadata value type ids.
enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};
std::string_view to_string(GgufType type);  // "uint32"

// A homogeneous array as the file stores it: nothing is copied at open, so that a file cannot make
// us allocate more than it holds. Lengths of strings and values of bools are already checked.
struct GgufArray {
  GgufType element_type = GgufType::kUint8;  // never kArray: nested arrays are refused
  uint64_t count = 0;
  std::span<const std::byte> bytes;

  [[nodiscard]] size_t size() const { return count; }

  // Element i of an array of numbers or bools, widened.
  [[nodiscard]] double number(size_t i) const;
  // All elements of an array of strings, as views into the mapping.
  [[nodiscard]] std::vector<std::string_view> strings() const;
};

// A metadata value; numbers are widened.
struct GgufValue {
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
  GgufType type = GgufType::kUint8;  // stored type, for messages and `inspect`
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
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;
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
