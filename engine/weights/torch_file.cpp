// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/torch_file.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/core/checked.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"
#include "engine/weights/stored_zip.h"
#include "engine/weights/tensor_pickle.h"

namespace sluice {
namespace {

using Bytes = std::span<const std::byte>;
using Storages = std::map<std::string_view, Bytes>;  // by key
using Kind = PickleValue::Kind;

// Where the elements of a tensor are in its storage.
struct Extent {
  uint64_t elements = 1;
  uint64_t end = 0;  // one past the last element; `first` or less if there are no elements
  bool is_row_major = true;
};

// nullopt: a number has no 64 bits.
std::optional<Extent> extent_of(const PickledTensor& tensor) {
  Extent extent;
  std::optional<uint64_t> elements = 1;
  std::optional<uint64_t> last = tensor.first;
  for (size_t i = tensor.shape.size(); i > 0; --i) {
    const uint64_t dim = tensor.shape[i - 1];
    const uint64_t stride = tensor.strides[i - 1];
    if (dim != 1 && elements != stride) extent.is_row_major = false;
    elements = elements ? checked_mul(*elements, dim) : elements;
    const auto step = checked_mul(dim > 0 ? dim - 1 : 0, stride);
    last = last && step ? checked_add(*last, *step) : std::nullopt;
    if (!elements || !last) return std::nullopt;
  }
  const auto end = checked_add(*last, 1);
  if (!end) return std::nullopt;
  extent.elements = *elements;
  extent.end = *elements == 0 ? 0 : *end;
  if (*elements == 0) extent.is_row_major = true;
  return extent;
}

// Copies the elements in the order of their rows.
std::vector<std::byte> row_major_copy(const PickledTensor& tensor, Bytes storage, size_t elements) {
  const auto width = static_cast<size_t>(tensor.element_bytes);
  std::vector<std::byte> copy(elements * width);
  std::vector<uint64_t> place(tensor.shape.size());
  uint64_t at = tensor.first;
  for (size_t i = 0; i < elements; ++i) {
    std::memcpy(copy.data() + i * width, storage.data() + at * width, width);
    for (size_t d = place.size(); d > 0; --d) {
      at += tensor.strides[d - 1];
      if (++place[d - 1] < tensor.shape[d - 1]) break;
      at -= tensor.strides[d - 1] * tensor.shape[d - 1];
      place[d - 1] = 0;
    }
  }
  return copy;
}

std::string dims_text(const std::vector<uint64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(dims[i]);
  return text + "]";
}

class TorchParser {
 public:
  TorchParser(Bytes file, const std::string& name) : file_(file), name_(name) {}

  Expected<TorchFile> parse() {
    constexpr std::string_view kZip = "PK\x03\x04";
    constexpr std::string_view kPickle = "\x80\x02";
    const std::string_view text(reinterpret_cast<const char*>(file_.data()), file_.size());
    if (text.starts_with(kZip)) return parse_zip();
    if (text.starts_with(kPickle)) return parse_pickles();
    return wrong_in_file(
        name_, "file", "no ZIP archive and no pickle", "a state dict as torch.save() writes it");
  }

 private:
  [[nodiscard]] tl::unexpected<Error> damaged(const std::string& field,
                                              const std::string& found,
                                              const std::string& expected) const {
    return damaged_file(name_, field, found, expected);
  }

  Expected<TorchFile> parse_zip();
  Expected<TorchFile> parse_pickles();
  // Reads the first three pickles of a file without an archive, and returns what follows them.
  [[nodiscard]] Expected<Bytes> skip_preamble() const;
  Expected<void> add(const PickledTensor& tensor, const Storages& storages);

  Bytes file_;
  const std::string& name_;
  // What a tensor shows of which storage.
  using View = std::tuple<std::string_view,
                          std::string_view,
                          uint64_t,
                          std::vector<uint64_t>,
                          std::vector<uint64_t>>;

  TorchFile result_;
  uint64_t copied_ = 0;           // bytes
  std::map<View, Bytes> copies_;  // in the result, one for all that share it
};

Expected<void> TorchParser::add(const PickledTensor& tensor, const Storages& storages) {
  const std::string field = "tensor " + in_quotes(tensor.name);
  const auto found = storages.find(tensor.storage);
  if (found == storages.end()) {
    return damaged(field, "no storage " + in_quotes(tensor.storage), "the one of its values");
  }
  const Bytes storage = found->second;
  const auto stated = checked_mul(tensor.storage_elements, tensor.storage_unit);
  if (stated != storage.size()) {
    return damaged(field,
                   "a storage of " + std::to_string(storage.size()) + " bytes",
                   std::to_string(tensor.storage_elements) + " elements of " +
                       std::to_string(tensor.storage_unit) + " bytes");
  }
  const std::optional<Extent> extent = extent_of(tensor);
  const uint64_t num_stored = storage.size() / tensor.element_bytes;
  if (!extent || extent->end > num_stored) {
    return damaged(field,
                   "shape " + dims_text(tensor.shape) + " with strides " +
                       dims_text(tensor.strides) + " from " + std::to_string(tensor.first),
                   "elements of the " + std::to_string(num_stored) + " of its storage");
  }
  FileTensor entry{.name = tensor.name,
                   .type = element_type(tensor.dtype),
                   .shape = tensor.shape,
                   .data = {},
                   .unreadable = {}};
  entry.unreadable = why_unreadable(tensor.dtype, entry.shape, name_, field);
  const View view{tensor.storage, tensor.dtype, tensor.first, tensor.shape, tensor.strides};
  if (const auto copy = copies_.find(view); copy != copies_.end()) {
    entry.data = copy->second;
  } else if (extent->elements > 0 && extent->is_row_major) {
    entry.data = storage.subspan(tensor.first * tensor.element_bytes,
                                 extent->elements * tensor.element_bytes);
  } else if (!entry.unreadable) {
    // An expanded tensor has more elements than its storage.
    const bool fits = extent->elements <= num_stored &&
                      extent->elements * tensor.element_bytes <= file_.size() - copied_;
    if (!fits) {
      entry.unreadable =
          wrong_in_file(name_,
                        field + ": strides",
                        dims_text(tensor.strides) + " for shape " + dims_text(entry.shape),
                        "tensors that take no more memory than the file")
              .value();
    } else {
      result_.copies.push_back(
          row_major_copy(tensor, storage, static_cast<size_t>(extent->elements)));
      entry.data = result_.copies.back();
      copies_.emplace(view, entry.data);
      copied_ += entry.data.size();
    }
  }
  result_.tensors.push_back(std::move(entry));
  return {};
}

Expected<TorchFile> TorchParser::parse_zip() {
  constexpr std::string_view kPickle = "/data.pkl";
  SLUICE_TRY(const ZipRecords records, read_stored_zip(file_, name_));
  std::optional<std::string> archive;  // the folder of all records
  for (const auto& [name, bytes] : records) {
    if (name.find('/') != name.rfind('/') || !name.ends_with(kPickle)) continue;
    archive = std::string(name.substr(0, name.size() - kPickle.size()));
  }
  if (!archive) return damaged("records", "no data.pkl", "the pickle of a state dict");
  const auto order = records.find(*archive + "/byteorder");
  if (order != records.end()) {
    const std::string_view text(reinterpret_cast<const char*>(order->second.data()),
                                order->second.size());
    if (text != "little") return wrong_in_file(name_, "byteorder", in_quotes(text), "little");
  }
  result_.header = records.at(*archive + std::string(kPickle));
  SLUICE_TRY(const TensorPickle pickle, read_tensor_pickle(result_.header, name_));
  SLUICE_TRY(const std::vector<PickledTensor> tensors, tensors_of_state_dict(pickle, name_));
  Storages storages;
  for (const PickledTensor& tensor : tensors) {
    const auto record = records.find(*archive + "/data/" + std::string(tensor.storage));
    if (record != records.end()) storages.emplace(tensor.storage, record->second);
  }
  for (const PickledTensor& tensor : tensors) SLUICE_TRY_VOID(add(tensor, storages));
  return std::move(result_);
}

Expected<Bytes> TorchParser::skip_preamble() const {
  constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  constexpr int64_t kProtocol = 1001;
  Bytes rest = file_;
  SLUICE_TRY(const TensorPickle magic, read_tensor_pickle(rest, name_));
  if (magic.values[magic.root].text != kMagic) {
    return wrong_in_file(name_, "file", "a pickle of others", "one that torch.save() writes");
  }
  rest = rest.subspan(magic.bytes);
  SLUICE_TRY(const TensorPickle protocol, read_tensor_pickle(rest, name_));
  const PickleValue& number = protocol.values[protocol.root];
  if (number.kind != Kind::kNumber || number.number != kProtocol) {
    return wrong_in_file(name_, "protocol_version", "another", std::to_string(kProtocol));
  }
  rest = rest.subspan(protocol.bytes);
  SLUICE_TRY(const TensorPickle system, read_tensor_pickle(rest, name_));
  const std::vector<uint32_t>& facts = system.values[system.root].items;
  for (size_t i = 0; i + 1 < facts.size(); i += 2) {
    const bool is_order = system.values[facts[i]].text == "little_endian";
    if (is_order && system.values[facts[i + 1]].number != 1) {
      return wrong_in_file(name_, "little_endian", "false", "true");
    }
  }
  return rest.subspan(system.bytes);
}

// Behind the state dict are the keys of its storages, then the storages: a number of elements, and
// those.
Expected<TorchFile> TorchParser::parse_pickles() {
  SLUICE_TRY(Bytes rest, skip_preamble());
  SLUICE_TRY(const TensorPickle pickle, read_tensor_pickle(rest, name_));
  SLUICE_TRY(const std::vector<PickledTensor> tensors, tensors_of_state_dict(pickle, name_));
  rest = rest.subspan(pickle.bytes);
  SLUICE_TRY(const TensorPickle keys, read_tensor_pickle(rest, name_));
  rest = rest.subspan(keys.bytes);
  result_.header = file_.first(file_.size() - rest.size());
  std::map<std::string_view, uint64_t> units;  // bytes of an element, by key
  for (const PickledTensor& tensor : tensors) units[tensor.storage] = tensor.storage_unit;
  if (keys.values[keys.root].kind != Kind::kList) {
    return damaged("keys", "no list", "those of the storages");
  }
  Storages storages;
  for (const uint32_t item : keys.values[keys.root].items) {
    const std::string_view key = keys.values[item].text;
    const std::string field = "storage " + in_quotes(key);
    const auto unit = units.find(key);
    if (unit == units.end()) return damaged(field, "no tensor of it", "one");
    uint64_t elements = 0;
    if (rest.size() < sizeof(elements)) return damaged(field, "no number of elements", "one");
    std::memcpy(&elements, rest.data(), sizeof(elements));
    rest = rest.subspan(sizeof(elements));
    const auto bytes = checked_mul(elements, unit->second);
    if (!bytes || *bytes > rest.size()) {
      return damaged(field,
                     std::to_string(elements) + " elements",
                     "as many as the " + std::to_string(rest.size()) + " bytes left have");
    }
    storages[key] = rest.first(*bytes);
    rest = rest.subspan(*bytes);
  }
  for (const PickledTensor& tensor : tensors) SLUICE_TRY_VOID(add(tensor, storages));
  return std::move(result_);
}

}  // namespace

Expected<TorchFile> parse_torch_file(std::span<const std::byte> file,
                                     const std::string& file_name) {
  return TorchParser(file, file_name).parse();
}

}  // namespace sluice
