// SPDX-License-Identifier: Apache-2.0
#include "server/cli/vllm_model.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "server/cli/joined.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// nullopt: there is no such file, or it cannot be read.
std::optional<std::string> text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !file.is_open()) return std::nullopt;
  return text.str();
}

Json json_of(const fs::path& path) {
  const std::optional<std::string> text = text_of(path);
  return text ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
}

// Lower case, with one kind of dash, and without the kernel that vLLM picks for the scheme.
std::string plain_scheme(std::string name) {
  std::ranges::transform(name, name.begin(), [](char c) {
    return c == '_' ? '-' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  constexpr std::string_view kKernel = "-marlin";
  if (name.ends_with(kKernel)) name.resize(name.size() - kKernel.size());
  return name;
}

// Aliases may put a node into itself, or a few lines into each other many times.
constexpr int32_t kMostDepth = 32;
constexpr int32_t kMostValues = 10'000;

// The JSON of a node, at `depth` and after `num_values` others of its flag; what is quoted stays
// text. Throws YAML::Exception as the parser does.
Json json_of_node(const YAML::Node& node, int32_t depth, int32_t& num_values) {
  if (depth > kMostDepth || ++num_values > kMostValues) {
    throw YAML::RepresentationException(node.Mark(), "a value that is too large");
  }
  if (node.IsMap()) {
    Json object = Json::object();
    for (const auto& entry : node) {
      object[entry.first.as<std::string>()] = json_of_node(entry.second, depth + 1, num_values);
    }
    return object;
  }
  if (node.IsSequence()) {
    Json array = Json::array();
    for (const auto& item : node) array.push_back(json_of_node(item, depth + 1, num_values));
    return array;
  }
  if (node.IsNull()) return nullptr;
  const std::string text = node.as<std::string>();
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool is_plain = node.Tag() == "?" && !value.is_discarded();
  return is_plain ? std::move(value) : Json(text);
}

void add_words(const std::string& key, const YAML::Node& value, std::vector<std::string>& words) {
  if (value.IsNull()) return;
  if (value.IsMap()) {
    int32_t num_values = 0;
    const Json json = json_of_node(value, 0, num_values);
    words.push_back("--" + key + "=" + json.dump(-1, ' ', false, Json::error_handler_t::replace));
  } else if (value.IsSequence()) {
    words.push_back("--" + key);
    for (const auto& item : value) words.push_back(item.as<std::string>());
  } else {
    const std::string text = value.as<std::string>();
    const bool is_plain = value.Tag() == "?";
    if (is_plain && (text == "true" || text == "True")) {
      words.push_back("--" + key);
    } else if (is_plain && (text == "false" || text == "False")) {
      words.push_back("--no-" + key);
    } else {
      words.push_back("--" + key + "=" + text);
    }
  }
}

}  // namespace

// KServe mounts a model as a folder, which may hold one GGUF file, or the parts of one.
Expected<std::string> vllm_model_file(const std::string& model) {
  std::error_code error;
  if (!fs::is_directory(model, error) || fs::exists(model + "/config.json", error)) return model;
  std::vector<std::string> files;
  for (fs::directory_iterator entry(model, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".gguf") files.push_back(entry->path().string());
  }
  std::ranges::sort(files);
  const std::string count = std::to_string(files.size());
  const bool is_split =
      files.size() > 1 && count.size() < 5 &&
      files.front().ends_with("-00001-of-" + std::string(5 - count.size(), '0') + count + ".gguf");
  if (files.size() == 1 || is_split) return files.front();
  return make_error(ErrorCode::kInvalidArgument,
                    model + " must hold exactly one .gguf file, it holds " +
                        std::to_string(files.size()) + (files.empty() ? "" : ": ") +
                        joined(files, ','));
}

bool is_tokenizer_of(const std::string& tokenizer, const std::string& model) {
  if (tokenizer == model) return true;
  std::error_code error;
  if (!fs::exists(model, error)) {
    const size_t quant = model.rfind(':');
    return quant != std::string::npos && tokenizer == model.substr(0, quant);
  }
  if (!fs::exists(tokenizer, error)) return false;
  if (fs::equivalent(tokenizer, model, error)) return true;
  if (!fs::is_directory(model, error)) {
    const fs::path folder = fs::absolute(model, error).parent_path();
    return fs::equivalent(tokenizer, folder, error);
  }
  const std::optional<std::string> own = text_of(fs::path(model) / "tokenizer.json");
  return own && own == text_of(fs::path(tokenizer) / "tokenizer.json");
}

std::optional<std::string> quantization_of(const std::string& model) {
  std::error_code error;
  if (!fs::exists(model, error)) return std::nullopt;
  const fs::path folder = model;
  if (!fs::exists(folder / "config.json", error)) return "gguf";
  const Json config = json_of(folder / "config.json");
  const bool is_object = config.is_object();
  for (const Json& place : {is_object ? config.value("quantization_config", Json()) : Json(),
                            json_of(folder / "quantize_config.json"),
                            json_of(folder / "quant_config.json")}) {
    if (!place.is_object()) continue;
    if (place.contains("quant_method") && place["quant_method"].is_string()) {
      return place["quant_method"].get<std::string>();
    }
  }
  if (fs::exists(folder / "hf_quant_config.json", error)) return "modelopt";
  if (fs::exists(folder / "quantize_config.json", error)) return "gptq";
  return fs::exists(folder / "quant_config.json", error) ? "awq" : "";
}

bool is_quantization(const std::string& name, const std::string& own) {
  const std::string plain = plain_scheme(name);
  const std::string scheme = plain_scheme(own);
  return !scheme.empty() && (plain == scheme || plain.starts_with(scheme + "-fp"));
}

Expected<std::vector<std::string>> vllm_config_words(const std::string& path) {
  std::vector<std::string> words;
  try {
    const YAML::Node root = YAML::LoadFile(path);
    if (root.IsNull()) return words;
    if (!root.IsMap()) {
      return make_error(ErrorCode::kInvalidArgument,
                        path + ": must be a map of vLLM's flags, such as `port: 8000`");
    }
    for (const auto& entry : root) {
      auto key = entry.first.as<std::string>();
      std::ranges::replace(key, '_', '-');
      add_words(key, entry.second, words);
    }
  } catch (const YAML::BadFile&) {
    return make_error(ErrorCode::kNotFound, path + ": cannot read this configuration file");
  } catch (const YAML::Exception& error) {
    return make_error(ErrorCode::kInvalidArgument, path + ": " + error.what());
  }
  return words;
}

}  // namespace sluice
