// SPDX-License-Identifier: Apache-2.0
// Names of models on a hub, and which of a repository's files serving one needs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice::hub {

// "org/name", "org/name:Q4_K_M", "org/name:file.gguf" or "org/name/folder/file.gguf".
struct ModelName {
  std::string repo;    // "org/name"
  std::string choice;  // a quantization or a .gguf file; empty: none given
};

// nullopt: nothing a hub could have, so it can only be a path.
std::optional<ModelName> parse_model_name(std::string_view text);

// What the hub's API says of one revision.
struct RepoInfo {
  std::string commit;              // 40 hex digits
  std::vector<std::string> files;  // paths inside the repository
};

// kDataLoss: not that JSON, or paths that would leave the repository.
Expected<RepoInfo> parse_repo_info(std::string_view json);

struct FileSelection {
  std::vector<std::string> files;  // what makes a model complete is last
  std::string gguf;                // the file to open; empty: the directory
  std::string index;               // names more files: see shards_of_index(); empty: none
};

// Selects from a listing: a directory with safetensors, else GGUF, else a directory with PyTorch's
// weights. kNotFound names what it has. `with_weights` false: config and tokenizer.
Expected<FileSelection> select_files(const std::vector<std::string>& listing,
                                     const ModelName& name,
                                     bool with_weights);

// Says which modules of sentence-transformers follow a model.
constexpr const char* kModulesFile = "modules.json";

// Tells from a config.json whether a model's answers would be others with a modules.json than
// without one. A model that generates text does that in either case, unless it is asked for vectors
// or scores.
bool modules_matter(std::string_view config_json);

// The config.json of each module that a modules.json lists and that has one; paths that leave the
// repository are left out.
std::vector<std::string> module_configs(std::string_view modules_json);

// The files of an index of weights, such as model.safetensors.index.json; kDataLoss where it is
// none.
Expected<std::vector<std::string>> shards_of_index(std::string_view json);

// A path of plain names below a folder: not absolute, no "..", no control character.
bool is_safe_path(std::string_view path);
bool is_commit(std::string_view text);

}  // namespace sluice::hub
