// SPDX-License-Identifier: Apache-2.0
// Reads the files of a model directory for its tokenizer and chat template.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/mistral_templates.h"
#include "engine/tokenizer/files/named_templates.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "engine/tokenizer/files/vocabulary_files.h"

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

// Reads templates: a string, or a list of {"name", "template"}.
NamedTemplates templates_in(const std::string& text) {
  NamedTemplates found;
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return found;
  const auto field = json.find("chat_template");
  if (field == json.end()) return found;
  if (field->is_string()) found.standard = field->get<std::string>();
  if (!field->is_array()) return found;
  std::string first;
  for (const Json& item : *field) {
    if (!item.is_object() || !item.contains("template") || !item["template"].is_string()) continue;
    const Json name = item.value("name", Json());
    const auto& source = item["template"].get_ref<const std::string&>();
    if (name == "default") {
      found.standard = source;
    } else if (name == "tool_use") {
      found.tool_use = source;
    } else if (name == "rag") {
      found.rag = source;
    } else if (first.empty()) {
      first = source;
    }
  }
  if (found.standard.empty()) found.standard = first;
  return found;
}

Expected<std::string> read_templates(const std::string& directory, const std::string& config) {
  NamedTemplates found = templates_in(config);
  SLUICE_TRY(const std::string file, read_file(directory, "chat_template.jinja"));
  if (!file.empty()) found.standard = file;
  const auto& [standard, tool_use, rag] = found;
  if (standard.empty() && tool_use.empty() && rag.empty()) {
    SLUICE_TRY(const std::string beside, read_file(directory, "chat_template.json"));
    found = templates_in(beside);
  }
  const std::string folder = directory + "/additional_chat_templates";
  SLUICE_TRY(std::string of_tools, read_file(folder, "tool_use.jinja"));
  SLUICE_TRY(std::string of_documents, read_file(folder, "rag.jinja"));
  if (!of_tools.empty()) found.tool_use = std::move(of_tools);
  if (!of_documents.empty()) found.rag = std::move(of_documents);
  return joined_templates(found);
}

// Names the tokenizer that a directory has in another layout, and what makes tokenizer.json of it.
std::string what_is_instead(const std::string& directory) {
  std::error_code error;
  for (const char* name :
       {"tokenizer.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt"}) {
    if (!std::filesystem::exists(std::filesystem::path(directory) / name, error)) continue;
    return std::string("nothing, and ") + name +
           ", which is not read for this model, expected a tokenizer.json: that of the same model's repository in "
           "Hugging Face's layout, or what transformers' AutoTokenizer saves for this directory";
  }
  return "nothing, expected a tokenizer";
}

}  // namespace

Expected<std::string> load_own_template(const std::string& directory) {
  SLUICE_TRY(const std::string config, read_file(directory, "tokenizer_config.json"));
  return read_templates(directory, config);
}

Expected<std::string> load_tokenizer_json(const std::string& directory) {
  SLUICE_TRY(std::string json, read_file(directory, "tokenizer.json"));
  if (!json.empty()) return json;
  for (const char* name : kRankedFiles) {
    SLUICE_TRY(const std::string ranks, read_file(directory, name));
    if (!ranks.empty()) return json;
  }
  VocabularyFiles files;
  SLUICE_TRY(files.words, read_file(directory, "vocab.txt"));
  SLUICE_TRY(files.tokens, read_file(directory, "vocab.json"));
  SLUICE_TRY(files.merges, read_file(directory, "merges.txt"));
  SLUICE_TRY(files.pieces, read_file(directory, "tokenizer.model"));
  if (files.words.empty() && files.merges.empty() && files.pieces.empty()) return json;
  SLUICE_TRY(files.tokenizer_config, read_file(directory, "tokenizer_config.json"));
  SLUICE_TRY(files.config, read_file(directory, "config.json"));
  SLUICE_TRY(files.special_tokens_map, read_file(directory, "special_tokens_map.json"));
  SLUICE_TRY(files.added_tokens, read_file(directory, "added_tokens.json"));
  Expected<std::string> made = vocabulary_as_json(files);
  if (made) return made;
  return make_error(made.error().code, directory + ": " + made.error().message);
}

Expected<HfText> load_hf_text(const std::string& directory) {
  HfTokenizerFiles files;
  SLUICE_TRY(files.tokenizer_json, load_tokenizer_json(directory));
  const char* source = "tokenizer.json";
  for (const char* name : kRankedFiles) {
    if (!files.tokenizer_json.empty() || !files.ranks.empty()) break;
    source = name;
    SLUICE_TRY(files.ranks, read_file(directory, name));
  }
  if (files.tokenizer_json.empty() && files.ranks.empty()) {
    return make_error(ErrorCode::kNotFound, directory + "/tokenizer.json: file: found " +
                                                what_is_instead(directory));
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
    const bool is_named = first.ends_with(".json") || first == source;
    error.message = directory + ": " + (is_named ? "" : source + std::string(": ")) + error.message;
    return tl::unexpected(std::move(error));
  }
  HfText result;
  result.tokenizer = std::move(*tokenizer);
  SLUICE_TRY(result.chat_template, read_templates(directory, files.tokenizer_config));
  if (!result.chat_template.empty()) return result;
  SLUICE_TRY(const std::string tekken, read_file(directory, "tekken.json"));
  if (tekken.empty()) return result;
  SLUICE_TRY(result.chat_template, template_of_tekken(tekken, *result.tokenizer));
  return result;
}

}  // namespace sluice
