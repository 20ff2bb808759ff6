// SPDX-License-Identifier: Apache-2.0
// Metadata values and tensors of a GGUF file, as views of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

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
// Bytes per element of a fixed-size type; 0 for strings and arrays.
size_t gguf_type_bytes(GgufType type);

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

}  // namespace sluice
