// SPDX-License-Identifier: Apache-2.0
// A GGUF file written field by field, so that tests can make each field wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/weights/gguf.h"

namespace sluice {

template <typename T>
std::string raw(T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string raw_string(std::string_view text) {
  return raw<uint64_t>(text.size()) + std::string(text);
}

inline std::string raw_array(GgufType element_type, uint64_t count, const std::string& elements) {
  return raw(element_type) + raw(count) + elements;
}

inline std::string raw_strings(const std::vector<std::string>& strings) {
  std::string elements;
  for (const std::string& text : strings) elements += raw_string(text);
  return raw_array(GgufType::kString, strings.size(), elements);
}

struct GgufImage {
  struct Entry {
    std::string key;
    GgufType type;
    std::string value;  // stored bytes
  };

  struct Tensor {
    std::string name;
    uint32_t num_dims;
    std::vector<uint64_t> dims;
    uint32_t type;
    uint64_t offset;
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count, metadata_count;  // overrides of the true counts
  std::vector<Entry> metadata;
  std::vector<Tensor> tensors;
  uint64_t alignment = 32;
  uint64_t data_bytes = 0;

  Entry& entry(std::string_view key) {
    for (Entry& item : metadata) {
      if (item.key == key) return item;
    }
    return metadata.emplace_back(Entry{std::string(key), GgufType::kUint8, raw<uint8_t>(0)});
  }

  void set(std::string_view key, GgufType type, std::string value) {
    Entry& item = entry(key);
    item.type = type;
    item.value = std::move(value);
  }

  void set_string(std::string_view key, std::string_view text) {
    set(key, GgufType::kString, raw_string(text));
  }

  void set_array(std::string_view key, GgufType type, uint64_t count, const std::string& elements) {
    set(key, GgufType::kArray, raw_array(type, count, elements));
  }

  void erase(std::string_view key) {
    std::erase_if(metadata, [&](const Entry& item) { return item.key == key; });
  }

  [[nodiscard]] std::string header() const {
    std::string out = magic + raw(version) + raw(tensor_count.value_or(tensors.size())) +
                      raw(metadata_count.value_or(metadata.size()));
    for (const Entry& item : metadata) out += raw_string(item.key) + raw(item.type) + item.value;
    for (const Tensor& tensor : tensors) {
      out += raw_string(tensor.name) + raw(tensor.num_dims);
      for (const uint64_t dim : tensor.dims) out += raw(dim);
      out += raw(tensor.type) + raw(tensor.offset);
    }
    return out;
  }

  [[nodiscard]] std::string bytes() const {
    std::string out = header();
    out.resize((out.size() + alignment - 1) / alignment * alignment);
    for (uint64_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
    return out;
  }
};

// A valid file: a four-token vocabulary and one tensor of every type. The last byte of the file is
// the last byte of a tensor.
inline GgufImage small_gguf() {
  GgufImage image;
  image.set_string("general.architecture", "llama");
  image.set("llama.block_count", GgufType::kUint32, raw<uint32_t>(1));
  image.set("llama.attention.layer_norm_rms_epsilon", GgufType::kFloat32, raw(1e-5F));
  image.set("test.negative", GgufType::kInt16, raw<int16_t>(-7));
  image.set("test.signed", GgufType::kInt64, raw<int64_t>(7));
  image.set("test.wide", GgufType::kUint64, raw<uint64_t>(1ULL << 63));
  image.set("test.double", GgufType::kFloat64, raw(0.25));
  image.set_array("test.flags", GgufType::kBool, 3, std::string("\1\0\1", 3));
  image.set_string("tokenizer.ggml.model", "gpt2");
  image.set_string("tokenizer.ggml.pre", "smollm");
  image.set("tokenizer.ggml.tokens", GgufType::kArray, raw_strings({"<e>", "a", "b", "ab"}));
  image.set_array("tokenizer.ggml.token_type",
                  GgufType::kInt32,
                  4,
                  raw<int32_t>(3) + raw<int32_t>(1) + raw<int32_t>(1) + raw<int32_t>(1));
  image.set_array("tokenizer.ggml.scores",
                  GgufType::kFloat32,
                  4,
                  raw(0.0F) + raw(-1.0F) + raw(-2.0F) + raw(-3.0F));
  image.set("tokenizer.ggml.merges", GgufType::kArray, raw_strings({"a b"}));
  image.set("tokenizer.ggml.bos_token_id", GgufType::kUint32, raw<uint32_t>(1));
  image.set("tokenizer.ggml.eos_token_id", GgufType::kUint32, raw<uint32_t>(0));
  image.set("tokenizer.ggml.add_bos_token", GgufType::kBool, std::string("\1", 1));
  // Bytes: Q8_0 2 * 34 = 68, Q4_1 2 * 20 = 40, F16 3 * 2 = 6, F32 2 * 4 = 8.
  image.tensors = {{"token_embd.weight", 2, {32, 2}, 8, 0},
                   {"blk.0.attn_q.weight", 2, {64, 1}, 3, 96},
                   {"blk.1.attn_q.weight", 1, {3}, 1, 160},
                   {"output_norm.weight", 1, {2}, 0, 192}};
  image.data_bytes = 200;
  return image;
}

inline std::span<const std::byte> as_span(const std::string& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace sluice
