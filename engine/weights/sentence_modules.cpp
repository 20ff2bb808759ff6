// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/sentence_modules.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxModules = 16;

std::string text_of(const Json& object, std::string_view name) {
  const Json* const value = json_field(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

struct PoolingName {
  std::string_view name;
  PoolingType type;
};

constexpr PoolingName kPoolingNames[] = {{"cls", PoolingType::kCls},
                                         {"mean", PoolingType::kMean},
                                         {"max", PoolingType::kMax},
                                         {"mean_sqrt_len_tokens", PoolingType::kMeanSqrt},
                                         {"weightedmean", PoolingType::kWeightedMean},
                                         {"lasttoken", PoolingType::kLast}};

constexpr PoolingName kPoolingFlags[] = {
    {"pooling_mode_cls_token", PoolingType::kCls},
    {"pooling_mode_mean_tokens", PoolingType::kMean},
    {"pooling_mode_max_tokens", PoolingType::kMax},
    {"pooling_mode_mean_sqrt_len_tokens", PoolingType::kMeanSqrt},
    {"pooling_mode_weightedmean_tokens", PoolingType::kWeightedMean},
    {"pooling_mode_lasttoken", PoolingType::kLast}};

Expected<PoolingType> read_pooling_type(const std::string& path, bool& counts_prompts) {
  SLUICE_TRY(const Json json, read_json_file(path));
  if (!json.is_object()) return wrong_in_file(path, "file", "no JSON object", "a JSON object");
  const Json* const counts = json_field(json, "include_prompt");
  counts_prompts = counts == nullptr || *counts != false;
  const Json* mode = json_field(json, "pooling_mode");
  if (mode != nullptr && mode->is_array() && mode->size() == 1) mode = &mode->front();
  if (mode != nullptr) {
    const auto* const named = std::ranges::find_if(kPoolingNames, [mode](const PoolingName& row) {
      return mode->is_string() && mode->get_ref<const std::string&>() == row.name;
    });
    if (named != std::end(kPoolingNames)) return named->type;
    return wrong_in_file(path,
                         "pooling_mode",
                         mode->dump(),
                         "one of cls, mean, max, mean_sqrt_len_tokens, weightedmean and lasttoken");
  }
  std::optional<PoolingType> type;
  for (const PoolingName& row : kPoolingFlags) {
    const Json* const flag = json_field(json, row.name);
    if (flag == nullptr || *flag != true) continue;
    if (type) {
      return wrong_in_file(path, std::string(row.name), "true beside another", "one way to pool");
    }
    type = row.type;
  }
  return type.value_or(PoolingType::kMean);
}

// The tokens of LogitScore: the score is the second one's logit minus the first one's, or the only
// one's.
Expected<std::vector<TokenId>> read_score_tokens(const std::string& file) {
  SLUICE_TRY(const Json json, read_json_file(file));
  std::vector<TokenId> tokens;
  for (const std::string_view name : {"false_token_id", "true_token_id"}) {
    const Json* const value = json_field(json, name);
    if (value == nullptr && name == "false_token_id") continue;
    const std::optional<int64_t> whole =
        value == nullptr ? std::nullopt : json_whole_number(*value);
    if (!whole || *whole < 0 || *whole > std::numeric_limits<TokenId>::max()) {
      return wrong_in_file(file,
                           std::string(name),
                           value == nullptr ? "nothing" : value->dump(),
                           "the id of a token: true_token_id, and false_token_id or null");
    }
    tokens.push_back(static_cast<TokenId>(*whole));
  }
  return tokens;
}

// What LogitScore's model is given beside the messages of a pair, as its template has it.
Expected<bool> read_begins_answer(const std::string& folder) {
  const std::string file = folder + "/sentence_bert_config.json";
  SLUICE_TRY(const Json json, read_json_file(file));
  const Json* const kwargs = json_field(json, "processing_kwargs");
  const Json* const options = kwargs == nullptr ? nullptr : json_field(*kwargs, "chat_template");
  if (options == nullptr || !options->is_object()) return false;
  for (const auto& [name, value] : options->items()) {
    if (name == "add_generation_prompt" && value.is_boolean()) continue;
    return wrong_in_file(file,
                         "processing_kwargs.chat_template",
                         in_quotes(name) + ": " + value.dump(),
                         "add_generation_prompt, true or false");
  }
  const Json* const begins = json_field(*options, "add_generation_prompt");
  return begins != nullptr && *begins == true;
}

// Modules run in the one order that answers are made in: a pooling, layers, then the length of 1 or
// nothing where they give scores. Another order makes other vectors.
Expected<void> check_order(const std::string& file,
                           const std::string& type,
                           std::string_view name,
                           const SentenceModules& modules) {
  if (modules.gives_scores) {
    return wrong_in_file(file, "type", in_quotes(type), "no module behind the scores");
  }
  if (name == "Pooling" && !modules.layers.empty()) {
    return wrong_in_file(file, "type", in_quotes(type), "no layer before it");
  }
  if (name == "Pooling" && modules.type) {
    return wrong_in_file(file, "type", in_quotes(type), "one way to pool");
  }
  const bool is_layer = name == "Dense" || name == "LayerNorm";
  if ((name == "Pooling" || is_layer) && modules.normalizes) {
    return wrong_in_file(file, "type", in_quotes(type), "no Normalize before it");
  }
  return {};
}

// A Dense module takes what the one before gives. Without a pooling that is a state of each token,
// by whatever name.
Expected<void> read_dense(const std::string& folder, SentenceModules& modules) {
  const std::string file = folder + "/config.json";
  SLUICE_TRY(const Json json, read_json_file(file));
  const std::string from = text_of(json, "module_input_name");
  const std::string to = text_of(json, "module_output_name");
  constexpr std::string_view kVector = "sentence_embedding";
  if (modules.type && !from.empty() && from != kVector) {
    return wrong_in_file(file, "module_input_name", in_quotes(from), std::string(kVector));
  }
  modules.gives_scores = modules.type && to == "scores";
  if (modules.type && !modules.gives_scores && !to.empty() && to != kVector) {
    return wrong_in_file(file, "module_output_name", in_quotes(to), "sentence_embedding or scores");
  }
  SLUICE_TRY(PooledLayer layer, read_dense_module(folder));
  modules.layers.push_back(std::move(layer));
  return {};
}

Expected<void> read_module(const std::string& folder,
                           const Json& module,
                           SentenceModules& modules) {
  const std::string type = text_of(module, "type");
  const std::string name = type.substr(type.rfind('.') + 1);
  const std::string path = text_of(module, "path");
  const std::string list = folder + "/modules.json";
  if (path.find("..") != std::string::npos || path.starts_with('/')) {
    return wrong_in_file(list, "path", in_quotes(path), "a folder inside");
  }
  const std::string own = folder + "/" + path;
  SLUICE_TRY_VOID(check_order(list, type, name, modules));
  if (name == "Transformer") return {};
  if (name == "Pooling") {
    SLUICE_TRY(modules.type, read_pooling_type(own + "/config.json", modules.counts_prompts));
    return {};
  }
  if (name == "MultiVectorMask") {
    modules.mask_file = own + "/config.json";
    return {};
  }
  if (name == "Normalize") {
    modules.normalizes = true;
    return {};
  }
  if (name == "Dense") return read_dense(own, modules);
  if (name == "LayerNorm") {
    const bool has_layer = !modules.layers.empty() && !modules.layers.back().adds_input &&
                           modules.layers.back().norm_weight.empty();
    if (!has_layer) return wrong_in_file(list, "type", in_quotes(type), "a Dense before it");
    return read_norm_module(own, modules.layers.back());
  }
  if (name == "LogitScore") {
    SLUICE_TRY(modules.label_tokens, read_score_tokens(own + "/config.json"));
    return {};
  }
  return wrong_in_file(list,
                       "type",
                       in_quotes(type),
                       "Transformer, Pooling, Dense, LayerNorm, MultiVectorMask, Normalize or "
                       "LogitScore");
}

}  // namespace

Expected<SentenceModules> read_modules(const std::string& folder) {
  SentenceModules modules;
  const std::string file = folder + "/modules.json";
  SLUICE_TRY(const Json list, read_json_file(file));
  if (list.is_null()) return modules;
  if (!list.is_array() || list.size() > kMaxModules) {
    return wrong_in_file(file, "file", "no short list", "a list of modules");
  }
  modules.are_there = true;
  for (const Json& module : list) SLUICE_TRY_VOID(read_module(folder, module, modules));
  SLUICE_TRY(const Json saved, read_json_file(folder + "/config_sentence_transformers.json"));
  modules.is_cross_encoder = text_of(saved, "model_type") == "CrossEncoder";
  if (modules.is_cross_encoder || modules.gives_scores) {
    modules.score_function = text_of(saved, "activation_fn");
    modules.default_prompt_name = text_of(saved, "default_prompt_name");
  }
  if (!modules.label_tokens.empty()) {
    SLUICE_TRY(modules.begins_answer, read_begins_answer(folder));
  }
  return modules;
}

}  // namespace sluice
