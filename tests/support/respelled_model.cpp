// SPDX-License-Identifier: Apache-2.0
#include "tests/support/respelled_model.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "engine/weights/gguf.h"
#include "engine/weights/safetensors.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"

namespace sluice::testing {
namespace {

constexpr size_t kAlignment = 32;

template <typename T>
std::string raw_of(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string raw_text(std::string_view text) {
  return raw_of<uint64_t>(text.size()) + std::string(text);
}

std::string bytes_of_span(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

// The bytes of a value as a file stores it.
std::string raw_value(const GgufValue& stored) {
  return std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          return raw_text(value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          return raw_of(value.element_type) + raw_of(value.count) + bytes_of_span(value.bytes);
        } else if constexpr (std::is_same_v<T, double>) {
          const bool is_single = stored.type == GgufType::kFloat32;
          return is_single ? raw_of(static_cast<float>(value)) : raw_of(value);
        } else {
          return raw_of(value).substr(0, gguf_type_bytes(stored.type));
        }
      },
      stored.value);
}

}  // namespace

StoredTensor with_rows(const StoredTensor& tensor, const std::vector<uint64_t>& from) {
  StoredTensor result = tensor;
  result.shape.front() = from.size();
  result.bytes.clear();
  for (const uint64_t row : from) {
    result.bytes += tensor.bytes.substr(row * tensor.row_bytes(), tensor.row_bytes());
  }
  return result;
}

RespelledDirectory::RespelledDirectory(const std::string& name) {
  const std::string source = golden_folder() + "/models/" + name;
  config = nlohmann::json::parse(read_whole_file(source + "/config.json"));
  const std::string file = read_whole_file(source + "/model.safetensors");
  const auto parsed = parse_safetensors(std::as_bytes(std::span(file)), source);
  EXPECT_TRUE(parsed.has_value() && !parsed->empty()) << source;
  if (!parsed) return;
  for (const FileTensor& tensor : *parsed) {
    tensors.push_back({.name = tensor.name,
                       .dtype = std::string(element_info(*tensor.type).name),
                       .shape = tensor.shape,
                       .bytes = bytes_of_span(tensor.data)});
  }
}

std::string RespelledDirectory::path() const {
  nlohmann::json header;
  std::string data;
  for (const StoredTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  std::ofstream(folder_.at("config.json")) << config.dump();
  std::ofstream(folder_.at("model.safetensors"), std::ios::binary)
      << raw_of<uint64_t>(text.size()) << text << data;
  return folder_.path();
}

RespelledGguf::RespelledGguf(const std::string& name) {
  const auto file = GgufFile::open(golden_folder() + "/models/" + name + ".gguf");
  EXPECT_TRUE(file.has_value()) << file.error().message;
  if (!file) return;
  for (const auto& [key, value] : (*file)->metadata()) set(key, value.type, raw_value(value));
  for (const GgufTensor& tensor : (*file)->tensors()) {
    StoredTensor copy{.name = std::string(tensor.name),
                      .type = format_info(tensor.format).ggml_type,
                      .bytes = bytes_of_span(tensor.data)};
    for (uint32_t d = tensor.num_dims; d > 0; --d) copy.shape.push_back(tensor.dims[d - 1]);
    tensors.push_back(std::move(copy));
  }
}

void RespelledGguf::set(std::string_view key, GgufType type, std::string value) {
  erase(key);
  keys_.push_back({.name = std::string(key), .type = type, .value = std::move(value)});
}

void RespelledGguf::set_uint(std::string_view key, uint32_t value) {
  set(key, GgufType::kUint32, raw_of(value));
}

void RespelledGguf::set_float(std::string_view key, float value) {
  set(key, GgufType::kFloat32, raw_of(value));
}

void RespelledGguf::set_bool(std::string_view key, bool value) {
  set(key, GgufType::kBool, raw_of(static_cast<uint8_t>(value)));
}

void RespelledGguf::set_string(std::string_view key, std::string_view value) {
  set(key, GgufType::kString, raw_text(value));
}

void RespelledGguf::set_ints(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes = raw_of(GgufType::kInt32) + raw_of<uint64_t>(values.size());
  for (const int32_t value : values) bytes += raw_of(value);
  set(key, GgufType::kArray, bytes);
}

void RespelledGguf::erase(std::string_view key) {
  std::erase_if(keys_, [&](const Key& each) { return each.name == key; });
}

StoredTensor& RespelledGguf::tensor(std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  EXPECT_NE(found, tensors.end()) << name;
  return found == tensors.end() ? tensors.front() : *found;
}

std::string RespelledGguf::path() const {
  std::string header = "GGUF" + raw_of<uint32_t>(3) + raw_of<uint64_t>(tensors.size()) +
                       raw_of<uint64_t>(keys_.size());
  for (const Key& key : keys_) header += raw_text(key.name) + raw_of(key.type) + key.value;
  std::string data;
  const auto pad = [](std::string& bytes) {
    bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
  };
  for (const StoredTensor& tensor : tensors) {
    header += raw_text(tensor.name) + raw_of(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d > 0; --d) header += raw_of(tensor.shape[d - 1]);
    header += raw_of(tensor.type) + raw_of<uint64_t>(data.size());
    data += tensor.bytes;
    pad(data);
  }
  pad(header);
  std::ofstream(folder_.at("model.gguf"), std::ios::binary) << header << data;
  return folder_.at("model.gguf");
}

}  // namespace sluice::testing
