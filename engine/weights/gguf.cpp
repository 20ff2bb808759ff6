// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/gguf.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/weights/gguf_parse.h"
#include "engine/weights/mapped_file.h"

namespace sluice {
namespace {

template <typename Items, typename NameOf>
auto* find_by_name(const Items& items,
                   const std::vector<uint32_t>& order,
                   std::string_view name,
                   NameOf name_of) {
  const auto it = std::lower_bound(
      order.begin(), order.end(), name, [&](uint32_t item, std::string_view wanted) {
        return name_of(items[item]) < wanted;
      });
  const bool found = it != order.end() && name_of(items[*it]) == name;
  return found ? &items[*it] : nullptr;
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  std::optional<MappedFile> mapping;  // nullopt when parsed from memory
  std::span<const std::byte> bytes;
  GgufContents contents;

  [[nodiscard]] tl::unexpected<Error> wrong(std::string_view key,
                                            std::string_view found,
                                            std::string_view expected) const {
    return make_error(ErrorCode::kDataLoss,
                      path + ": metadata " + in_quotes(key) + ": found " + std::string(found) +
                          ", expected " + std::string(expected));
  }
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GgufFile::~GgufFile() = default;

Expected<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  SLUICE_TRY(MappedFile mapping, MappedFile::open(path));
  SLUICE_TRY(auto file, parse(mapping.bytes(), path));
  file->impl_->mapping = std::move(mapping);
  return file;
}

Expected<std::unique_ptr<GgufFile>> GgufFile::parse(std::span<const std::byte> bytes,
                                                    std::string name) {
  auto impl = std::make_unique<Impl>();
  impl->path = std::move(name);
  impl->bytes = bytes;
  SLUICE_TRY(impl->contents, parse_gguf(bytes, impl->path));
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

const std::string& GgufFile::path() const { return impl_->path; }

uint32_t GgufFile::version() const { return impl_->contents.version; }

uint64_t GgufFile::alignment() const { return impl_->contents.alignment; }

std::span<const std::byte> GgufFile::bytes() const { return impl_->bytes; }

FileIdentity GgufFile::identity() const {
  return impl_->mapping ? impl_->mapping->identity() : FileIdentity{};
}

int64_t GgufFile::file_bytes() const { return static_cast<int64_t>(impl_->bytes.size()); }

const std::vector<std::pair<std::string_view, GgufValue>>& GgufFile::metadata() const {
  return impl_->contents.metadata;
}

const std::vector<GgufTensor>& GgufFile::tensors() const { return impl_->contents.tensors; }

const GgufValue* GgufFile::find(std::string_view key) const {
  const GgufContents& contents = impl_->contents;
  const auto* entry =
      find_by_name(contents.metadata, contents.metadata_by_name, key, [](const auto& item) {
        return item.first;
      });
  return entry == nullptr ? nullptr : &entry->second;
}

Expected<uint64_t> GgufFile::get_uint(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return impl_->wrong(key, "no such key", "an integer");
  if (const auto* number = std::get_if<uint64_t>(&value->value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value->value)) {
    if (*number >= 0) return static_cast<uint64_t>(*number);
    return impl_->wrong(key, std::to_string(*number), "an integer of at least 0");
  }
  return impl_->wrong(key, to_string(value->type), "an integer");
}

Expected<double> GgufFile::get_float(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return impl_->wrong(key, "no such key", "a float");
  if (const auto* number = std::get_if<double>(&value->value)) return *number;
  return impl_->wrong(key, to_string(value->type), "a float");
}

Expected<std::string_view> GgufFile::get_string(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return impl_->wrong(key, "no such key", "a string");
  if (const auto* text = std::get_if<std::string_view>(&value->value)) return *text;
  return impl_->wrong(key, to_string(value->type), "a string");
}

Expected<uint64_t> GgufFile::get_uint_or(std::string_view key, uint64_t fallback) const {
  if (find(key) == nullptr) return fallback;
  return get_uint(key);
}

Expected<double> GgufFile::get_float_or(std::string_view key, double fallback) const {
  if (find(key) == nullptr) return fallback;
  return get_float(key);
}

Expected<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback;
  if (const auto* flag = std::get_if<bool>(&value->value)) return *flag;
  return impl_->wrong(key, to_string(value->type), "a bool");
}

}  // namespace sluice
