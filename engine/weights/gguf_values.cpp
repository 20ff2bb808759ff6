// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf_values.h"

#include <cstring>

#include "engine/core/status.h"

namespace sluice {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

}  // namespace

std::string_view to_string(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
      return "uint8";
    case GgufType::kInt8:
      return "int8";
    case GgufType::kUint16:
      return "uint16";
    case GgufType::kInt16:
      return "int16";
    case GgufType::kUint32:
      return "uint32";
    case GgufType::kInt32:
      return "int32";
    case GgufType::kFloat32:
      return "float32";
    case GgufType::kBool:
      return "bool";
    case GgufType::kString:
      return "string";
    case GgufType::kArray:
      return "array";
    case GgufType::kUint64:
      return "uint64";
    case GgufType::kInt64:
      return "int64";
    case GgufType::kFloat64:
      return "float64";
  }
  return "unknown";
}

size_t gguf_type_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

double GgufArray::number(size_t i) const {
  CHECK_LT(i, count);
  const std::byte* at = bytes.data() + i * gguf_type_bytes(element_type);
  switch (element_type) {
    case GgufType::kBool:
    case GgufType::kUint8:
      return load<uint8_t>(at);
    case GgufType::kInt8:
      return load<int8_t>(at);
    case GgufType::kUint16:
      return load<uint16_t>(at);
    case GgufType::kInt16:
      return load<int16_t>(at);
    case GgufType::kUint32:
      return load<uint32_t>(at);
    case GgufType::kInt32:
      return load<int32_t>(at);
    case GgufType::kFloat32:
      return load<float>(at);
    case GgufType::kUint64:
      return static_cast<double>(load<uint64_t>(at));
    case GgufType::kInt64:
      return static_cast<double>(load<int64_t>(at));
    case GgufType::kFloat64:
      return load<double>(at);
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  SLUICE_UNREACHABLE("number() of an array of strings");
}

std::vector<std::string_view> GgufArray::strings() const {
  CHECK(element_type == GgufType::kString);
  std::vector<std::string_view> views;
  views.reserve(count);
  size_t position = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = load<uint64_t>(bytes.data() + position);
    position += sizeof(length);
    views.emplace_back(reinterpret_cast<const char*>(bytes.data() + position), length);
    position += length;
  }
  return views;
}

}  // namespace sluice
