// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/safetensors_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kHeaderAlignment = 8;

std::string shard_name(size_t number, size_t total) {
  char name[48];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number, total);
  return name;
}

std::string dumped(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

int64_t safetensors_type_bytes(const std::string& dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return 1;
}

int64_t StoredTensor::bytes() const {
  int64_t count = safetensors_type_bytes(dtype);
  for (const int64_t n : shape) count *= n;
  return count;
}

Expected<SafetensorsWriter> SafetensorsWriter::create(
    const std::string& folder,
    const std::vector<std::vector<StoredTensor>>& groups,
    int64_t max_shard_bytes) {
  std::vector<std::vector<StoredTensor>> shards(1);
  int64_t shard_bytes = 0;
  int64_t total_bytes = 0;
  for (const std::vector<StoredTensor>& group : groups) {
    int64_t bytes = 0;
    for (const StoredTensor& tensor : group) bytes += tensor.bytes();
    if (!shards.back().empty() && shard_bytes + bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    total_bytes += bytes;
    shards.back().insert(shards.back().end(), group.begin(), group.end());
  }
  SafetensorsWriter writer;
  Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", Json::object()}};
  std::map<std::string, std::string> file_of;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors" : shard_name(i + 1, shards.size());
    for (const StoredTensor& tensor : shards[i]) file_of[tensor.name] = name;
    SLUICE_TRY_VOID(writer.add_file(folder + "/" + name, std::move(shards[i])));
  }
  if (shards.size() == 1) return writer;
  for (const auto& [tensor, file] : file_of) index["weight_map"][tensor] = file;
  const std::string text = dumped(index, 2) + "\n";
  SLUICE_TRY(OutputFile file,
             OutputFile::create(folder + "/model.safetensors.index.json",
                                static_cast<int64_t>(text.size())));
  SLUICE_TRY_VOID(file.write(0, std::as_bytes(std::span(text))));
  SLUICE_TRY_VOID(file.close());
  return writer;
}

// Sorts wide types first, so that each tensor starts at a multiple of its element size.
Expected<void> SafetensorsWriter::add_file(const std::string& path,
                                           std::vector<StoredTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    const int64_t width_a = safetensors_type_bytes(a.dtype);
    const int64_t width_b = safetensors_type_bytes(b.dtype);
    return width_a != width_b ? width_a > width_b : a.name < b.name;
  });
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {end, end + tensor.bytes()}}};
    places_[tensor.name] = {.file = files_.size(), .offset = end, .bytes = tensor.bytes()};
    end += tensor.bytes();
  }
  std::string text = dumped(header, -1);
  while (text.size() % kHeaderAlignment != 0) text += ' ';
  const auto length = static_cast<uint64_t>(text.size());
  const auto data_at = static_cast<int64_t>(sizeof(length) + text.size());
  for (const StoredTensor& tensor : tensors) places_[tensor.name].offset += data_at;
  SLUICE_TRY(OutputFile file, OutputFile::create(path, data_at + end));
  SLUICE_TRY_VOID(file.write(0, std::as_bytes(std::span(&length, 1))));
  SLUICE_TRY_VOID(file.write(sizeof(length), std::as_bytes(std::span(text))));
  files_.push_back(std::move(file));
  return {};
}

Expected<void> SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto found = places_.find(name);
  CHECK(found != places_.end());
  CHECK_EQ(found->second.bytes, static_cast<int64_t>(bytes.size()));
  return files_[found->second.file].write(found->second.offset, bytes);
}

Expected<void> SafetensorsWriter::finish() {
  for (OutputFile& file : files_) SLUICE_TRY_VOID(file.close());
  return {};
}

}  // namespace sluice
