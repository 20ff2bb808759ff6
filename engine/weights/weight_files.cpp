// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/weight_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "engine/core/log.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/safetensors.h"
#include "engine/weights/torch_file.h"

namespace sluice {
namespace {

using Index = std::map<std::string, std::string>;  // file name by tensor name

// The names of one format's files.
struct Naming {
  std::string_view single;
  std::string_view index;
  std::string_view start;  // of a part's name, before its number
  std::string_view end;
};

constexpr Naming kSafetensors{
    "model.safetensors", "model.safetensors.index.json", "model-", ".safetensors"};
constexpr Naming kTorch{
    "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-", ".bin"};

bool exists(const std::string& directory, std::string_view name) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(directory) / name, error);
}

constexpr size_t kPartDigits = 5;

std::string part_name(const Naming& naming, size_t number, size_t total) {
  const auto digits = [](size_t value) {
    const std::string text = std::to_string(value);
    return std::string(kPartDigits - text.size(), '0') + text;
  };
  return std::string(naming.start) + digits(number) + "-of-" + digits(total) +
         std::string(naming.end);
}

// Returns 3 for "model-00001-of-00003.safetensors", 0 for other names.
size_t parts_of_name(const Naming& naming, std::string_view name) {
  const size_t total_at = naming.start.size() + kPartDigits + std::string_view("-of-").size();
  if (name.size() != total_at + kPartDigits + naming.end.size()) return 0;
  const auto number_at = [&](size_t at) {
    size_t number = 0;
    for (const char c : name.substr(at, kPartDigits)) {
      if (c < '0' || c > '9') return size_t{0};
      number = 10 * number + static_cast<size_t>(c - '0');
    }
    return number;
  };
  const size_t number = number_at(naming.start.size());
  const size_t total = number_at(total_at);
  return number > 0 && number <= total && name == part_name(naming, number, total) ? total : 0;
}

bool is_listed(const Index& index, const FileTensor& tensor, const WeightFile& file) {
  const auto found = index.find(tensor.name);
  return found != index.end() && found->second == file.name;
}

class WeightFolder {
 public:
  WeightFolder(const std::string& path,
               const Naming& naming,
               const std::function<bool(std::string_view)>& is_left_out)
      : path_(path),
        naming_(naming),
        index_path_(path + "/" + std::string(naming.index)),
        is_left_out_(is_left_out) {}

  // An index that does not fit its files gives way to a file that needs none: it dates from before
  // the model was saved as a whole. Empty: there are no files of this format.
  [[nodiscard]] Expected<std::vector<WeightFile>> open() const {
    const bool has_single = exists(path_, naming_.single);
    if (exists(path_, naming_.index)) {
      Expected<std::vector<WeightFile>> listed = open_listed();
      if (listed || !has_single) return listed;
      warn_of_file(index_path_, "weight_map", listed.error().message, "not given");
    }
    if (!has_single) return open_numbered();
    SLUICE_TRY(WeightFile whole, open_weight_file(path_, std::string(naming_.single)));
    std::vector<WeightFile> files;
    files.push_back(std::move(whole));
    return files;
  }

 private:
  // Opens all files that the index names, with the tensors that the index places there.
  [[nodiscard]] Expected<std::vector<WeightFile>> open_listed() const;
  // Opens all files with their number in their names; empty: there are none.
  [[nodiscard]] Expected<std::vector<WeightFile>> open_numbered() const;
  void correct_places(const std::vector<WeightFile>& files, Index& index) const;
  void leave_out_unlisted(const Index& index, WeightFile& file) const;
  [[nodiscard]] Expected<void> check_listed(const Index& index,
                                            const std::vector<WeightFile>& files) const;

  const std::string& path_;
  const Naming& naming_;
  std::string index_path_;
  const std::function<bool(std::string_view)>& is_left_out_;
};

// Drops tensors that the index omits or places elsewhere: they are not part of the model.
void WeightFolder::leave_out_unlisted(const Index& index, WeightFile& file) const {
  std::vector<std::string> left_out;
  std::erase_if(file.tensors, [&](const FileTensor& tensor) {
    if (is_listed(index, tensor, file)) return false;
    left_out.push_back(tensor.name);
    return true;
  });
  if (left_out.empty()) return;
  warn_of_file(path_ + "/" + file.name,
               left_out.front(),
               std::to_string(left_out.size()) + " tensors that the index does not list here",
               "not given");
}

Expected<void> WeightFolder::check_listed(const Index& index,
                                          const std::vector<WeightFile>& files) const {
  std::set<std::string_view> found;
  for (const WeightFile& file : files) {
    for (const FileTensor& tensor : file.tensors) {
      if (is_listed(index, tensor, file)) found.insert(tensor.name);
    }
  }
  for (const auto& [tensor, shard] : index) {
    if (found.contains(tensor)) continue;
    if (is_left_out_(tensor)) {
      warn_of_file(index_path_, tensor, "nothing in " + shard, "not given");
      continue;
    }
    return make_error(ErrorCode::kDataLoss,
                      index_path_ + ": weight_map: tensor " + sluice::in_quotes(tensor) +
                          ": found nothing in " + shard + ", expected it there");
  }
  return {};
}

// A tensor found in exactly one file other than the listed one is the one meant.
void WeightFolder::correct_places(const std::vector<WeightFile>& files, Index& index) const {
  std::map<std::string_view, std::set<std::string_view>> places;
  for (const WeightFile& file : files) {
    for (const FileTensor& tensor : file.tensors) places[tensor.name].insert(file.name);
  }
  for (auto& [tensor, file] : index) {
    const auto found = places.find(tensor);
    if (is_left_out_(tensor) || found == places.end()) continue;
    if (found->second.size() > 1 || found->second.contains(file)) continue;
    const std::string place(*found->second.begin());
    warn_of_file(index_path_, tensor, "nothing in " + file, "in " + place);
    file = place;
  }
}

Expected<std::vector<WeightFile>> WeightFolder::open_numbered() const {
  size_t total = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    total = std::max(total, parts_of_name(naming_, entry.path().filename().string()));
  }
  std::vector<WeightFile> files;
  for (size_t i = 1; i <= total; ++i) {
    SLUICE_TRY(WeightFile file, open_weight_file(path_, part_name(naming_, i, total)));
    files.push_back(std::move(file));
  }
  if (total > 0) {
    warn_of_file(path_,
                 naming_.index,
                 "no file",
                 "one of the " + std::to_string(total) + " files beside it");
  }
  return files;
}

Expected<std::vector<WeightFile>> WeightFolder::open_listed() const {
  SLUICE_TRY(const MappedFile index_file, MappedFile::open(index_path_));
  SLUICE_TRY(Index index, parse_safetensors_index(index_file.bytes(), index_path_));
  std::set<std::string> names;
  std::set<std::string_view> needed;
  for (const auto& [tensor, shard] : index) {
    names.insert(shard);
    if (!is_left_out_(tensor)) needed.insert(shard);
  }
  std::vector<WeightFile> files;
  for (const std::string& name : names) {
    if (!needed.contains(name) && !exists(path_, name)) continue;
    SLUICE_TRY(WeightFile file, open_weight_file(path_, name));
    files.push_back(std::move(file));
  }
  correct_places(files, index);
  SLUICE_TRY_VOID(check_listed(index, files));
  for (WeightFile& file : files) leave_out_unlisted(index, file);
  return files;
}

}  // namespace

Expected<WeightFile> open_weight_file(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  SLUICE_TRY(MappedFile file, MappedFile::open(path));
  WeightFile opened{
      .name = name, .file = std::move(file), .tensors = {}, .copies = {}, .header = {}};
  const std::span<const std::byte> bytes = opened.file.bytes();
  if (name.ends_with(kTorch.end)) {
    SLUICE_TRY(TorchFile parsed, parse_torch_file(bytes, path));
    opened.tensors = std::move(parsed.tensors);
    opened.copies = std::move(parsed.copies);
    opened.header = parsed.header;
  } else {
    SLUICE_TRY(opened.tensors, parse_safetensors(bytes, path));
    opened.header = bytes.first(safetensors_header_bytes(bytes));
  }
  return opened;
}

Expected<WeightFile> open_single_weight_file(const std::string& directory) {
  const bool is_torch = !exists(directory, kSafetensors.single) && exists(directory, kTorch.single);
  return open_weight_file(directory, std::string(is_torch ? kTorch.single : kSafetensors.single));
}

Expected<std::vector<WeightFile>> open_weight_files(
    const std::string& directory, const std::function<bool(std::string_view)>& is_left_out) {
  for (const Naming& naming : {kSafetensors, kTorch}) {
    SLUICE_TRY(std::vector<WeightFile> files, WeightFolder(directory, naming, is_left_out).open());
    if (!files.empty()) return files;
  }
  // There are none: the error is that of the usual name.
  SLUICE_TRY(WeightFile file, open_weight_file(directory, std::string(kSafetensors.single)));
  std::vector<WeightFile> files;
  files.push_back(std::move(file));
  return files;
}

}  // namespace sluice
