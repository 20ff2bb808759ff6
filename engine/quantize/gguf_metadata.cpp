// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/gguf_metadata.h"

#include <cstring>
#include <type_traits>
#include <variant>

namespace sluice {
namespace {

constexpr uint32_t kVersion = 3;

bool is_replaced(std::string_view key) {
  return key == "general.file_type" || key == "general.quantization_version" ||
         key == "general.alignment" || key.starts_with("split.");
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = bytes.size();
  bytes.resize(at + sizeof(T));
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

}  // namespace

template <typename T>
void GgufMetadata::put(T value) {
  append(bytes_, value);
}

void GgufMetadata::put_string(std::string_view text) {
  put(static_cast<uint64_t>(text.size()));
  const auto bytes = std::as_bytes(std::span(text));
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

void GgufMetadata::put_key(std::string_view key, GgufType type) {
  ++count_;
  put_string(key);
  put(type);
}

void GgufMetadata::put_uint(std::string_view key, uint64_t value) {
  put_key(key, GgufType::kUint32);
  put(static_cast<uint32_t>(value));
}

void GgufMetadata::put_float(std::string_view key, double value) {
  put_key(key, GgufType::kFloat32);
  put(static_cast<float>(value));
}

void GgufMetadata::put_bool(std::string_view key, bool value) {
  put_key(key, GgufType::kBool);
  put(static_cast<uint8_t>(value ? 1 : 0));
}

void GgufMetadata::put_text(std::string_view key, std::string_view text) {
  put_key(key, GgufType::kString);
  put_string(text);
}

void GgufMetadata::put_texts(std::string_view key, const std::vector<std::string>& texts) {
  put_key(key, GgufType::kArray);
  put(GgufType::kString);
  put(static_cast<uint64_t>(texts.size()));
  for (const std::string& text : texts) put_string(text);
}

void GgufMetadata::put_bools(std::string_view key, const std::vector<bool>& values) {
  put_key(key, GgufType::kArray);
  put(GgufType::kBool);
  put(static_cast<uint64_t>(values.size()));
  for (const bool value : values) put(static_cast<uint8_t>(value ? 1 : 0));
}

void GgufMetadata::put_ints(std::string_view key, const std::vector<int32_t>& numbers) {
  put_key(key, GgufType::kArray);
  put(GgufType::kInt32);
  put(static_cast<uint64_t>(numbers.size()));
  for (const int32_t number : numbers) put(number);
}

void GgufMetadata::put_floats(std::string_view key, const std::vector<float>& numbers) {
  put_key(key, GgufType::kArray);
  put(GgufType::kFloat32);
  put(static_cast<uint64_t>(numbers.size()));
  for (const float number : numbers) put(number);
}

template <typename T>
void GgufMetadata::put_number(GgufType type, T number) {
  switch (type) {
    case GgufType::kUint8:
      return put(static_cast<uint8_t>(number));
    case GgufType::kInt8:
      return put(static_cast<int8_t>(number));
    case GgufType::kUint16:
      return put(static_cast<uint16_t>(number));
    case GgufType::kInt16:
      return put(static_cast<int16_t>(number));
    case GgufType::kUint32:
      return put(static_cast<uint32_t>(number));
    case GgufType::kInt32:
      return put(static_cast<int32_t>(number));
    case GgufType::kFloat32:
      return put(static_cast<float>(number));
    case GgufType::kBool:
      return put(static_cast<uint8_t>(number != 0));
    case GgufType::kUint64:
      return put(static_cast<uint64_t>(number));
    case GgufType::kInt64:
      return put(static_cast<int64_t>(number));
    case GgufType::kFloat64:
      return put(static_cast<double>(number));
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  SLUICE_UNREACHABLE("a number of no type of numbers");
}

void GgufMetadata::put_value(std::string_view key, const GgufValue& value) {
  put_key(key, value.type);
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    put(array->element_type);
    put(array->count);
    bytes_.insert(bytes_.end(), array->bytes.begin(), array->bytes.end());
    return;
  }
  if (const auto* text = std::get_if<std::string_view>(&value.value)) return put_string(*text);
  std::visit(
      [&](const auto& number) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(number)>>) {
          put_number(value.type, number);
        }
      },
      value.value);
}

GgufMetadata metadata_of(const GgufFile& file) {
  GgufMetadata metadata;
  for (const auto& [key, value] : file.metadata()) {
    if (!is_replaced(key)) metadata.put_value(key, value);
  }
  return metadata;
}

void put_vocabulary(const Vocabulary& vocabulary, GgufMetadata& metadata) {
  const std::string prefix = "tokenizer.ggml.";
  metadata.put_text(prefix + "model", vocabulary.model);
  if (!vocabulary.pre.empty()) metadata.put_text(prefix + "pre", vocabulary.pre);
  metadata.put_texts(prefix + "tokens", vocabulary.tokens);
  std::vector<int32_t> types;
  for (const TokenType type : vocabulary.token_types) types.push_back(static_cast<int32_t>(type));
  metadata.put_ints(prefix + "token_type", types);
  if (!vocabulary.scores.empty()) metadata.put_floats(prefix + "scores", vocabulary.scores);
  if (!vocabulary.merges.empty()) metadata.put_texts(prefix + "merges", vocabulary.merges);
  const std::pair<const char*, TokenId> ids[] = {{"bos_token_id", vocabulary.bos},
                                                 {"eos_token_id", vocabulary.eos},
                                                 {"eot_token_id", vocabulary.eot},
                                                 {"eom_token_id", vocabulary.eom},
                                                 {"unknown_token_id", vocabulary.unknown},
                                                 {"padding_token_id", vocabulary.padding}};
  for (const auto& [name, id] : ids) {
    if (id != kInvalidToken) metadata.put_uint(prefix + name, static_cast<uint64_t>(id));
  }
  metadata.put_bool(prefix + "add_bos_token", vocabulary.add_bos);
  metadata.put_bool(prefix + "add_eos_token", vocabulary.add_eos);
  metadata.put_bool(prefix + "add_space_prefix", vocabulary.add_space_prefix);
}

std::vector<std::byte> gguf_header(const GgufMetadata& metadata, uint64_t num_tensors) {
  std::vector<std::byte> bytes;
  for (const char c : {'G', 'G', 'U', 'F'}) append(bytes, c);
  append(bytes, kVersion);
  append(bytes, num_tensors);
  append(bytes, metadata.count());
  bytes.insert(bytes.end(), metadata.bytes().begin(), metadata.bytes().end());
  return bytes;
}

}  // namespace sluice
