// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/tokenizer_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/tokenizer_json.h"
#include "engine/weights/gguf.h"

namespace sluice {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

// The files that readers of such directories look for, beside tokenizer.json.
constexpr const char* kNames[] = {"tokenizer_config.json",
                                  "config.json",
                                  "generation_config.json",
                                  "special_tokens_map.json",
                                  "added_tokens.json",
                                  "vocab.json",
                                  "merges.txt",
                                  "tokenizer.model",
                                  "tiktoken.model",
                                  "tekken.json",
                                  "chat_template.json",
                                  "chat_template.jinja",
                                  "additional_chat_templates/tool_use.jinja",
                                  "additional_chat_templates/rag.jinja"};

Expected<std::vector<NamedFile>> files_of_directory(const std::string& directory,
                                                    const std::string& chat_template) {
  std::vector<NamedFile> files;
  SLUICE_TRY(std::string json, load_tokenizer_json(directory));
  if (!json.empty()) files.push_back({"tokenizer.json", std::move(json)});
  for (const char* name : kNames) {
    const std::filesystem::path path = std::filesystem::path(directory) / name;
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    const uintmax_t size = std::filesystem::file_size(path, error);
    if (error || size > kMaxFileBytes) {
      return make_error(ErrorCode::kDataLoss,
                        path.string() + ": more than " + std::to_string(kMaxFileBytes) + " bytes");
    }
    std::ifstream file(path, std::ios::binary);
    std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad()) {
      return make_error(ErrorCode::kNotFound, "cannot read " + path.string());
    }
    files.push_back({name, std::move(content)});
  }
  SLUICE_TRY(const std::string own, load_own_template(directory));
  if (own.empty() && !chat_template.empty()) files.push_back({"chat_template.jinja", chat_template});
  return files;
}

}  // namespace

Expected<std::vector<NamedFile>> read_tokenizer_files(const std::string& path,
                                                      const std::string& chat_template,
                                                      const std::vector<TokenId>& end_tokens) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return files_of_directory(path, chat_template);
  SLUICE_TRY(const auto file, GgufFile::open(path));
  SLUICE_TRY(const Vocabulary vocabulary, read_vocabulary(*file));
  std::vector<NamedFile> files;
  SLUICE_TRY(std::string json, tokenizer_json(vocabulary));
  files.push_back({"tokenizer.json", std::move(json)});
  files.push_back({"tokenizer_config.json", tokenizer_config_json(vocabulary, chat_template)});
  files.push_back(
      {"generation_config.json", nlohmann::json({{"eos_token_id", end_tokens}}).dump()});
  return files;
}

}  // namespace sluice
