// SPDX-License-Identifier: Apache-2.0
// Reads the files of a model directory for its tokenizer and chat template.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/hf_tokenizer.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

// Returns an empty string if the file does not exist. Never waits on a special file.
Expected<std::string> read_file(const std::string& directory, const char* name) {
  const std::filesystem::path path = std::filesystem::path(directory) / name;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::string();
  if (!std::filesystem::is_regular_file(path, error)) {
    return make_error(
        ErrorCode::kDataLoss,
        path.string() + ": file: found a directory or device, expected a regular file");
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxFileBytes) {
    return make_error(ErrorCode::kDataLoss,
                      path.string() + ": more than " + std::to_string(kMaxFileBytes) + " bytes");
  }
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.is_open() || file.bad()) {
    return make_error(ErrorCode::kNotFound, "cannot read " + path.string());
  }
  return text;
}

// Reads a template: a string, or the default in a list of {"name", "template"}.
std::string template_in(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  const auto field = json.find("chat_template");
  if (field == json.end()) return {};
  if (field->is_string()) return field->get<std::string>();
  if (!field->is_array()) return {};
  std::string found;
  for (const Json& item : *field) {
    if (!item.is_object() || !item.contains("template") || !item["template"].is_string()) continue;
    const bool is_default = item.contains("name") && item["name"] == "default";
    if (found.empty() || is_default) found = item["template"].get<std::string>();
    if (is_default) break;
  }
  return found;
}

}  // namespace

Expected<HfText> load_hf_text(const std::string& directory) {
  HfTokenizerFiles files;
  SLUICE_TRY(files.tokenizer_json, read_file(directory, "tokenizer.json"));
  if (files.tokenizer_json.empty()) {
    return make_error(ErrorCode::kNotFound,
                      directory + "/tokenizer.json: file: found nothing, expected a tokenizer");
  }
  SLUICE_TRY(files.tokenizer_config, read_file(directory, "tokenizer_config.json"));
  SLUICE_TRY(files.config, read_file(directory, "config.json"));
  if (auto text = read_file(directory, "generation_config.json")) {
    files.generation_config = std::move(*text);
  } else {
    warn_of_file("generation_config.json", "eos_token_id", text.error().message, "not given");
  }
  auto tokenizer = create_hf_tokenizer(files);
  if (!tokenizer) {
    Error error = std::move(tokenizer).error();
    // Parts shared with GGUF do not know the file.
    const std::string first = error.message.substr(0, error.message.find(": "));
    error.message =
        directory + ": " + (first.ends_with(".json") ? "" : "tokenizer.json: ") + error.message;
    return tl::unexpected(std::move(error));
  }
  HfText result;
  result.tokenizer = std::move(*tokenizer);
  SLUICE_TRY(result.chat_template, read_file(directory, "chat_template.jinja"));
  if (result.chat_template.empty()) result.chat_template = template_in(files.tokenizer_config);
  if (result.chat_template.empty()) {
    SLUICE_TRY(const std::string beside, read_file(directory, "chat_template.json"));
    result.chat_template = template_in(beside);
  }
  return result;
}

}  // namespace sluice
