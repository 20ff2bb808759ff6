// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/core/checked.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own bound
constexpr size_t kMaxTensors = 1 << 20;

// A tensor as the header states it.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  int num_fields = 0;
};

// Reads {"name": {"dtype": "F16", "shape": [..], "data_offsets": [b, e]}, "__metadata__": {..}}
// without a document tree; when a callback returns false, `error` has the reason.
class HeaderReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  std::vector<Entry> entries;
  std::string error;

  bool null() { return fail("null"); }

  bool boolean(bool) { return fail("a boolean"); }

  bool number_integer(number_integer_t) { return fail("a negative number"); }

  bool number_float(number_float_t, const string_t&) { return fail("a fraction"); }

  bool binary(binary_t&) { return fail("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    std::vector<uint64_t>* list = open_list();
    if (list == nullptr) return fail("a number");
    if (list->size() == kMaxFileDims) return fail("more than 64 dimensions");
    list->push_back(value);
    return true;
  }

  bool string(string_t& value) {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || field_ != "dtype") return fail("a string");
    entries.back().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) {
    if (depth_ > 1) return fail("a nested object");
    ++depth_;
    return true;
  }

  bool end_object() {
    if (depth_ == 2 && !in_metadata_ && entries.back().num_fields != 3) {
      return fail("an object without dtype, shape and data_offsets");
    }
    --depth_;
    return true;
  }

  bool start_array(std::size_t) {
    if (depth_ != 2 || in_metadata_ || (field_ != "shape" && field_ != "data_offsets")) {
      return fail("an array");
    }
    ++depth_;
    return true;
  }

  bool end_array() {
    --depth_;
    return true;
  }

  bool key(string_t& name) {
    if (depth_ == 1) {
      in_metadata_ = name == "__metadata__";
      if (in_metadata_) return true;
      if (entries.size() == kMaxTensors) return fail("more than 2^20 tensors");
      entries.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
      seen_ = 0;
      return true;
    }
    field_ = name;
    if (in_metadata_) return true;
    const unsigned bit = name == "dtype"          ? 1U
                         : name == "shape"        ? 2U
                         : name == "data_offsets" ? 4U
                                                  : 0U;
    if (bit == 0 || (seen_ & bit) != 0) return fail("field " + sluice::in_quotes(name));
    seen_ |= bit;
    ++entries.back().num_fields;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    error = "no JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool fail(const std::string& what) {
    error = what + (entries.empty() ? "" : " at tensor " + sluice::in_quotes(entries.back().name));
    return false;
  }

  std::vector<uint64_t>* open_list() {
    if (depth_ != 3 || entries.empty()) return nullptr;
    return field_ == "shape" ? &entries.back().shape : &entries.back().offsets;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  unsigned seen_ = 0;
  std::string field_;
};

Expected<FileTensor> check_entry(Entry& entry,
                                 std::span<const std::byte> data,
                                 const std::string& file) {
  const std::string field = "tensor " + sluice::in_quotes(entry.name);
  const std::optional<ElementType> type = element_type(entry.dtype);
  if (entry.offsets.size() != 2 || entry.offsets[0] > entry.offsets[1] ||
      entry.offsets[1] > data.size()) {
    return damaged_file(
        file,
        field + ": data_offsets",
        entry.offsets.size() == 2
            ? std::to_string(entry.offsets[0]) + " to " + std::to_string(entry.offsets[1])
            : std::to_string(entry.offsets.size()) + " numbers",
        "begin and end within the " + std::to_string(data.size()) + " bytes of data");
  }
  const uint64_t stored = entry.offsets[1] - entry.offsets[0];
  if (type) {
    std::optional<uint64_t> bytes = static_cast<uint64_t>(element_info(*type).bytes);
    for (const uint64_t dim : entry.shape) bytes = bytes ? checked_mul(*bytes, dim) : bytes;
    if (!bytes) {
      return damaged_file(file, field + ": shape", "too many elements", "those of its bytes");
    }
    if (stored != *bytes) {
      return damaged_file(file,
                          field + ": data_offsets",
                          std::to_string(stored) + " bytes",
                          std::to_string(*bytes) + " for its shape and dtype");
    }
  }
  std::optional<Error> unreadable = why_unreadable(entry.dtype, entry.shape, file, field);
  return FileTensor{.name = std::move(entry.name),
                    .type = type,
                    .shape = std::move(entry.shape),
                    .data = data.subspan(entry.offsets[0], stored),
                    .unreadable = std::move(unreadable)};
}

// Checks that each byte of the data belongs to one tensor, as the format requires.
Expected<void> check_places(const std::vector<FileTensor>& tensors,
                            std::span<const std::byte> data,
                            const std::string& file) {
  std::vector<const FileTensor*> order;
  for (const FileTensor& tensor : tensors) order.push_back(&tensor);
  const auto by_name = [](const auto* a, const auto* b) { return a->name < b->name; };
  // An empty tensor sorts before the one that begins at its place.
  const auto by_place = [](const auto* a, const auto* b) {
    if (a->data.data() != b->data.data()) return a->data.data() < b->data.data();
    return a->data.size() < b->data.size();
  };
  std::sort(order.begin(), order.end(), by_name);
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->name == order[i]->name) {
      return damaged_file(
          file, "tensor " + sluice::in_quotes(order[i]->name), "the name twice", "unique names");
    }
  }
  std::sort(order.begin(), order.end(), by_place);
  const std::byte* end = data.data();  // end of previous tensors
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string field = "tensor " + sluice::in_quotes(order[i]->name) + ": data_offsets";
    const std::byte* begin = order[i]->data.data();
    if (begin < end) {
      return damaged_file(file,
                          field,
                          "bytes of tensor " + sluice::in_quotes(order[i - 1]->name),
                          "bytes of its own");
    }
    if (begin > end) {
      return damaged_file(
          file, field, std::to_string(begin - end) + " bytes of no tensor before", "none");
    }
    end = begin + order[i]->data.size();
  }
  if (const auto left = data.data() + data.size() - end; left != 0) {
    return damaged_file(
        file, "data", std::to_string(left) + " bytes after the last tensor", "none");
  }
  return {};
}

// {"metadata": {..}, "weight_map": {"tensor": "file"}}.
class IndexReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  std::map<std::string, std::string> files;
  std::string error;

  bool null() { return scalar("null"); }

  bool boolean(bool) { return scalar("a boolean"); }

  bool number_integer(number_integer_t) { return scalar("a number"); }

  bool number_unsigned(number_unsigned_t) { return scalar("a number"); }

  bool number_float(number_float_t, const string_t&) { return scalar("a number"); }

  bool binary(binary_t&) { return scalar("binary data"); }

  bool string(string_t& value) {
    if (!in_map_) return scalar("a string");
    if (value.empty() || value.find('/') != std::string::npos || value.front() == '.') {
      return fail("file name " + sluice::in_quotes(value));
    }
    if (!files.emplace(name_, std::move(value)).second) {
      return fail("tensor " + sluice::in_quotes(name_) + " twice");
    }
    return files.size() <= kMaxTensors || fail("more than 2^20 tensors");
  }

  bool start_object(std::size_t) {
    if (in_map_ || depth_ > 8) return fail("a nested object");
    if (++depth_ == 2) in_map_ = name_ == "weight_map";
    return true;
  }

  bool end_object() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }

  bool start_array(std::size_t) { return scalar("an array") && ++depth_ > 0; }

  bool end_array() { return --depth_ >= 0; }

  bool key(string_t& name) {
    name_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    error = "no JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  bool scalar(const char* what) {
    if (in_map_ || depth_ == 0 || depth_ > 8) return fail(what);
    return true;
  }

  bool fail(const std::string& what) {
    error = what;
    return false;
  }

  int depth_ = 0;
  bool in_map_ = false;
  std::string name_;
};

uint64_t stored_length(std::span<const std::byte> file) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(file[i]) << (8 * i);
  return length;
}

}  // namespace

size_t safetensors_header_bytes(std::span<const std::byte> file) {
  return kLengthBytes + static_cast<size_t>(stored_length(file));
}

Expected<std::vector<FileTensor>> parse_safetensors(std::span<const std::byte> file,
                                                    const std::string& file_name) {
  if (file.size() < kLengthBytes) {
    return damaged_file(file_name, "file", std::to_string(file.size()) + " bytes", "8 or more");
  }
  const uint64_t header_bytes = stored_length(file);
  const uint64_t left = file.size() - kLengthBytes;
  if (header_bytes > left || header_bytes > kMaxHeaderBytes) {
    return damaged_file(file_name,
                        "header length",
                        std::to_string(header_bytes),
                        "at most " + std::to_string(std::min(left, kMaxHeaderBytes)));
  }
  const auto* text = reinterpret_cast<const char*>(file.data() + kLengthBytes);
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + header_bytes, &reader)) {
    return damaged_file(file_name, "header", reader.error, "a JSON object of tensors");
  }
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header_bytes);
  std::vector<FileTensor> tensors;
  for (Entry& entry : reader.entries) {
    SLUICE_TRY(FileTensor tensor, check_entry(entry, data, file_name));
    tensors.push_back(std::move(tensor));
  }
  SLUICE_TRY_VOID(check_places(tensors, data, file_name));
  return tensors;
}

Expected<std::map<std::string, std::string>> parse_safetensors_index(
    std::span<const std::byte> json, const std::string& file_name) {
  const auto* text = reinterpret_cast<const char*>(json.data());
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text, text + json.size(), &reader)) {
    return damaged_file(file_name, "index", reader.error, "a JSON object with weight_map");
  }
  if (reader.files.empty())
    return damaged_file(file_name, "weight_map", "nothing", "tensors and files");
  return std::move(reader.files);
}

}  // namespace sluice
