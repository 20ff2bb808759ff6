// SPDX-License-Identifier: Apache-2.0
#include "server/hub/repo_files.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/hex.h"

namespace sluice::hub {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFiles = 100'000;
constexpr size_t kMaxPathBytes = 512;
constexpr size_t kMaxShown = 12;  // names in a message
constexpr std::string_view kUsualQuantization = "q4_k_m";

// Before the weights, so that a directory with all weights has these too.
constexpr std::string_view kSmallFiles[] = {"config.json",
                                            "generation_config.json",
                                            "hf_quant_config.json",
                                            "quantize_config.json",
                                            "quant_config.json",
                                            "tokenizer.json",
                                            "tiktoken.model",
                                            "tokenizer_config.json",
                                            "special_tokens_map.json",
                                            "added_tokens.json",
                                            "chat_template.jinja",
                                            "chat_template.json",
                                            "additional_chat_templates/tool_use.jinja",
                                            "additional_chat_templates/rag.jinja",
                                            "artifact.metadata",
                                            "config_sentence_transformers.json",
                                            "sentence_bert_config.json",
                                            "sentence_roberta_config.json",
                                            "sentence_xlm-roberta_config.json",
                                            "sentence_distilbert_config.json",
                                            "sentence_camembert_config.json",
                                            kModulesFile};
// What a tokenizer without a tokenizer.json is read from.
constexpr std::string_view kVocabularies[] = {
    "vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "tekken.json"};

// Weights of one format: a single file, or an index of several.
struct WeightNames {
  std::string_view single;
  std::string_view index;
};

constexpr WeightNames kSafetensors{"model.safetensors", "model.safetensors.index.json"};
constexpr WeightNames kTorch{"pytorch_model.bin", "pytorch_model.bin.index.json"};

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_repo_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(), is_name_character);
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower;
}

bool is_gguf(std::string_view path) { return lowered(path).ends_with(".gguf"); }

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// "model-00001-of-00003.gguf" as "model.gguf"; every other path as it is.
std::string without_part(const std::string& path) {
  constexpr size_t kTail = std::string_view("-00001-of-00003.gguf").size();
  if (path.size() <= kTail) return path;
  const std::string tail = path.substr(path.size() - kTail);
  for (size_t i = 0; i < kTail; ++i) {
    const bool digit = (i >= 1 && i <= 5) || (i >= 10 && i <= 14);
    if (digit ? tail[i] < '0' || tail[i] > '9' : tail[i] != "-00001-of-00003.gguf"[i]) return path;
  }
  return path.substr(0, path.size() - kTail) + ".gguf";
}

// How many parts the name speaks of; 1 where it has no part number.
size_t part_count(const std::string& path) {
  if (without_part(path) == path) return 1;
  constexpr size_t kCountAt = std::string_view("00003.gguf").size();
  return std::strtoul(path.c_str() + path.size() - kCountAt, nullptr, 10);
}

// GGUF files of the text model by the name without their part numbers; each list ascending.
using GgufModels = std::map<std::string, std::vector<std::string>>;

// Whether a name is of a draft model of the repository's model.
bool is_draft_head(std::string_view base) {
  return base.starts_with("mtp-") || base.starts_with("dflash-");
}

GgufModels gguf_models(const std::vector<std::string>& listing, bool with_draft_heads) {
  GgufModels models;
  for (const std::string& path : listing) {
    const std::string base = lowered(base_name(path));
    if (!is_gguf(path) || base.find("mmproj") != std::string::npos || base.starts_with("imatrix")) {
      continue;
    }
    if (is_draft_head(base) && !with_draft_heads) continue;
    models[without_part(path)].push_back(path);
  }
  for (auto& [name, parts] : models) std::sort(parts.begin(), parts.end());
  return models;
}

// Whether `path` names this quantization: "q4_k_m" in "Model-Q4_K_M.gguf", but not "q4_k".
bool has_quantization(const std::string& path, const std::string& quantization) {
  const std::string text = lowered(path);
  for (size_t at = text.find(quantization); at != std::string::npos;
       at = text.find(quantization, at + 1)) {
    const size_t end = at + quantization.size();
    const auto border = [](char c) { return c == '-' || c == '.' || c == '/'; };
    const bool begins = at == 0 || border(text[at - 1]) || text[at - 1] == '_';
    if (begins && end < text.size() && border(text[end])) return true;
  }
  return false;
}

using Names = std::set<std::string_view>;

// Tells whether a module of sentence-transformers may need this file, such as
// "1_Pooling/config.json" or "2_Dense/model.safetensors"; PyTorch's format where that is the only.
bool is_module_file(std::string_view path, const Names& there) {
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return false;
  const size_t number_end = path.find_first_not_of("0123456789");
  if (number_end == 0 || path[number_end] != '_') return false;
  const std::string_view file = path.substr(slash + 1);
  if (file != kTorch.single) return file == "config.json" || file == kSafetensors.single;
  return !there.contains(std::string(path.substr(0, slash + 1)) + std::string(kSafetensors.single));
}

// The weights that a directory of these files is read with: GGUF files come before PyTorch's.
const WeightNames* weights_of(const Names& there) {
  const auto has = [&there](const WeightNames& names) {
    return there.contains(names.index) || there.contains(names.single);
  };
  if (has(kSafetensors)) return &kSafetensors;
  return has(kTorch) && std::none_of(there.begin(), there.end(), is_gguf) ? &kTorch : nullptr;
}

std::string shown(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxShown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMaxShown)
    text += ", and " + std::to_string(names.size() - kMaxShown) + " more";
  return text.empty() ? "nothing" : text;
}

// The shortest name of those that match: "Model-Q8_0.gguf" before "Model-UD-Q8_0.gguf".
const std::vector<std::string>* find_gguf(const GgufModels& models, const std::string& choice) {
  const std::vector<std::string>* found = nullptr;
  for (const auto& [name, parts] : models) {
    const bool is_file = is_gguf(choice);
    const bool matches =
        is_file ? name == without_part(choice) || base_name(name) == without_part(choice)
                : has_quantization(name, lowered(choice));
    if (!matches) continue;
    if (found == nullptr || parts.front().size() < found->front().size()) found = &parts;
  }
  return found;
}

Expected<FileSelection> select_gguf(const std::vector<std::string>& listing,
                                    const ModelName& name) {
  const GgufModels models = gguf_models(listing, /*with_draft_heads=*/is_gguf(name.choice));
  const std::vector<std::string>* parts = nullptr;
  if (!name.choice.empty()) {
    parts = find_gguf(models, name.choice);
  } else if (models.size() == 1) {
    parts = &models.begin()->second;
  } else {
    parts = find_gguf(models, std::string(kUsualQuantization));
  }
  if (parts == nullptr) {
    std::vector<std::string> names;
    for (const auto& [model, files] : models) names.push_back(model);
    const std::string expected = name.choice.empty() ? "a choice such as " + name.repo + ":Q4_K_M"
                                                     : "\"" + name.choice + "\"";
    return make_error(ErrorCode::kNotFound,
                      name.repo + ": GGUF files: found " + shown(names) + ", expected " + expected);
  }
  const size_t num_parts = part_count(parts->front());
  if (parts->size() != num_parts) {
    return make_error(ErrorCode::kNotFound,
                      name.repo + ": " + without_part(parts->front()) + ": found " +
                          std::to_string(parts->size()) + " parts, expected " +
                          std::to_string(num_parts));
  }
  return FileSelection{.files = *parts, .gguf = parts->front(), .index = {}};
}

Json parse(std::string_view json) {
  return Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

std::optional<ModelName> parse_model_name(std::string_view text) {
  ModelName name;
  std::string_view repo = text;
  if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    repo = text.substr(0, colon);
    name.choice = text.substr(colon + 1);
    if (name.choice.empty() || !is_safe_path(name.choice)) return std::nullopt;
  }
  const size_t slash = repo.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const size_t second = repo.find('/', slash + 1);
  if (second != std::string_view::npos) {
    if (!name.choice.empty() || !is_gguf(repo)) return std::nullopt;
    name.choice = repo.substr(second + 1);
    if (!is_safe_path(name.choice)) return std::nullopt;
    repo = repo.substr(0, second);
  }
  // "models/file.gguf" is a path.
  if (!is_repo_part(repo.substr(0, slash)) || !is_repo_part(repo.substr(slash + 1)) ||
      is_gguf(repo)) {
    return std::nullopt;
  }
  name.repo = repo;
  return name;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPathBytes) return false;
  const bool printable = std::all_of(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '\\';
  });
  if (!printable) return false;
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

bool is_commit(std::string_view text) { return text.size() == 40 && is_hex(text); }

Expected<RepoInfo> parse_repo_info(std::string_view json) {
  const auto wrong = [](const std::string& field, const std::string& found, const char* expected) {
    return make_error(ErrorCode::kDataLoss, field + ": found " + found + ", expected " + expected);
  };
  const Json root = parse(json);
  if (!root.is_object()) return wrong("answer", "no JSON object", "the description of a model");
  RepoInfo info;
  const auto commit = root.find("sha");
  if (commit != root.end() && commit->is_string()) info.commit = commit->get<std::string>();
  if (!is_commit(info.commit)) return wrong("sha", "no commit", "40 hex digits");
  const auto files = root.find("siblings");
  if (files == root.end() || !files->is_array() || files->size() > kMaxFiles) {
    return wrong("siblings", "no list of at most 100000", "the files of the model");
  }
  for (const Json& file : *files) {
    const auto name = file.is_object() ? file.find("rfilename") : file.end();
    if (name == file.end() || !name->is_string()) {
      return wrong("siblings", "an entry without a name", "rfilename");
    }
    if (!is_safe_path(name->get_ref<const std::string&>())) {
      return wrong("siblings.rfilename", "a path that leaves the repository", "plain names");
    }
    info.files.push_back(name->get<std::string>());
  }
  return info;
}

Expected<FileSelection> select_files(const std::vector<std::string>& listing,
                                     const ModelName& name,
                                     bool with_weights) {
  if (!name.choice.empty()) return select_gguf(listing, name);
  const Names there(listing.begin(), listing.end());
  const WeightNames* const weights = weights_of(there);
  if (!there.contains("config.json") || (weights == nullptr && with_weights)) {
    if (std::any_of(listing.begin(), listing.end(), is_gguf)) return select_gguf(listing, name);
    return make_error(ErrorCode::kNotFound,
                      name.repo + ": files: found " + shown(listing) +
                          ", expected config.json with safetensors or pytorch_model.bin, or GGUF");
  }
  FileSelection selection;
  for (const std::string_view file : kSmallFiles) {
    if (there.contains(file)) selection.files.emplace_back(file);
  }
  for (const std::string_view file : kVocabularies) {
    const bool is_needed = !there.contains("tokenizer.json") && there.contains(file);
    if (is_needed) selection.files.emplace_back(file);
  }
  // Without these a model would make other vectors, and nothing would say so.
  if (there.contains(kModulesFile)) {
    std::ranges::copy_if(listing, std::back_inserter(selection.files), [&there](const auto& path) {
      return is_module_file(path, there);
    });
  }
  if (!with_weights) return selection;
  if (there.contains(weights->index)) selection.index = weights->index;
  selection.files.emplace_back(selection.index.empty() ? weights->single : weights->index);
  return selection;
}

bool modules_matter(std::string_view config_json) {
  const Json root = parse(config_json);
  const auto names = root.is_object() ? root.find("architectures") : root.end();
  if (!root.is_object()) return false;
  if (names == root.end() || !names->is_array()) return true;
  return std::none_of(names->begin(), names->end(), [](const Json& name) {
    if (!name.is_string()) return false;
    const auto& text = name.get_ref<const std::string&>();
    return text.ends_with("ForCausalLM") || text.ends_with("ForConditionalGeneration");
  });
}

std::vector<std::string> module_configs(std::string_view modules_json) {
  std::vector<std::string> files;
  const Json root = parse(modules_json);
  for (const Json& module : root.is_array() ? root : Json::array()) {
    const auto text_of = [&module](const char* name) {
      const auto found = module.is_object() ? module.find(name) : module.end();
      const bool is_text = module.is_object() && found != module.end() && found->is_string();
      return is_text ? found->get<std::string>() : std::string();
    };
    const std::string path = text_of("path");
    if (is_safe_path(path) && !text_of("type").ends_with(".Normalize")) {
      files.push_back(path + "/config.json");
    }
  }
  return files;
}

Expected<std::vector<std::string>> shards_of_index(std::string_view json) {
  const Json root = parse(json);
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  std::set<std::string> shards;
  if (root.is_object() && map != root.end() && map->is_object()) {
    for (const Json& file : *map) {
      if (!file.is_string() || !is_safe_path(file.get_ref<const std::string&>())) {
        shards.clear();
        break;
      }
      shards.insert(file.get<std::string>());
    }
  }
  if (shards.empty()) {
    return make_error(
        ErrorCode::kDataLoss,
        "index of weights: weight_map: found no files, expected a file for each tensor");
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

}  // namespace sluice::hub
