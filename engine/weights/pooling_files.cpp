// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pooling_files.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/causal_flags.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"
#include "engine/weights/sentence_files.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxModules = 16;
// GGUF's pooling_type of a model whose vector is a classifier's score.
constexpr uint64_t kGgufRank = 4;

// What the files of sentence-transformers say.
struct Modules {
  bool are_there = false;
  std::optional<PoolingType> type;
  bool normalizes = false;
  std::optional<std::array<TokenId, 2>> yes_and_no;
  std::vector<PooledLayer> layers;
  bool counts_prompts = true;  // a prompt's tokens are part of the pooling
  std::string mask_file;       // of the tokens of ColBERT that have vectors; empty: none
};

const Json* member(const Json& object, std::string_view name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const Json& object, std::string_view name) {
  const Json* const value = member(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

bool is_true(const Json& object, std::string_view name) {
  const Json* const value = member(object, name);
  return value != nullptr && value->is_boolean() && value->get<bool>();
}

// No value: none is named, or none that a token can have.
std::optional<TokenId> token_of(const Json& object, std::string_view name) {
  const Json* const value = member(object, name);
  const std::optional<int64_t> whole =
      value == nullptr ? std::nullopt : json_whole_number(*value);
  if (!whole || *whole < 0 || *whole > std::numeric_limits<TokenId>::max()) return std::nullopt;
  return static_cast<TokenId>(*whole);
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
  const Json* const counts = member(json, "include_prompt");
  counts_prompts = counts == nullptr || *counts != false;
  const Json* mode = member(json, "pooling_mode");
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
    if (!is_true(json, row.name)) continue;
    if (type) {
      return wrong_in_file(path, std::string(row.name), "true beside another", "one way to pool");
    }
    type = row.type;
  }
  return type.value_or(PoolingType::kMean);
}

// Modules run in the one order that vectors are made in: a pooling, layers, the length of 1.
// Another order makes other vectors.
Expected<void> check_order(const std::string& file,
                           const std::string& type,
                           std::string_view name,
                           const Modules& modules) {
  if (name == "Pooling" && !modules.layers.empty()) {
    return wrong_in_file(file, "type", in_quotes(type), "no layer before it");
  }
  if (name == "Pooling" && modules.type) {
    return wrong_in_file(file, "type", in_quotes(type), "one way to pool");
  }
  if ((name == "Pooling" || name == "Dense") && modules.normalizes) {
    return wrong_in_file(file, "type", in_quotes(type), "no Normalize before it");
  }
  return {};
}

Expected<void> read_module(const std::string& folder, const Json& module, Modules& modules) {
  const std::string type = text_of(module, "type");
  const std::string name = type.substr(type.rfind('.') + 1);
  const std::string path = text_of(module, "path");
  if (path.find("..") != std::string::npos || path.starts_with('/')) {
    return wrong_in_file(folder + "/modules.json", "path", in_quotes(path), "a folder inside");
  }
  const std::string file = folder + "/" + path + "/config.json";
  SLUICE_TRY_VOID(check_order(folder + "/modules.json", type, name, modules));
  if (name == "Transformer") return {};
  if (name == "Pooling") {
    SLUICE_TRY(modules.type, read_pooling_type(file, modules.counts_prompts));
    return {};
  }
  if (name == "MultiVectorMask") {
    modules.mask_file = file;
    return {};
  }
  if (name == "Normalize") {
    modules.normalizes = true;
    return {};
  }
  if (name == "Dense") {
    SLUICE_TRY(PooledLayer layer, read_dense_module(folder + "/" + path));
    modules.layers.push_back(std::move(layer));
    return {};
  }
  if (name == "LogitScore") {
    SLUICE_TRY(const Json json, read_json_file(file));
    const std::optional<TokenId> yes = token_of(json, "true_token_id");
    const std::optional<TokenId> no = token_of(json, "false_token_id");
    if (!yes || !no) {
      return wrong_in_file(file, "true_token_id, false_token_id", "no tokens", "two token ids");
    }
    modules.yes_and_no = {*yes, *no};
    return {};
  }
  return wrong_in_file(folder + "/modules.json",
               "type",
               in_quotes(type),
               "Transformer, Pooling, Dense, MultiVectorMask, Normalize or LogitScore");
}

Expected<Modules> read_modules(const std::string& folder) {
  Modules modules;
  SLUICE_TRY(const Json list, read_json_file(folder + "/modules.json"));
  if (list.is_null()) return modules;
  if (!list.is_array() || list.size() > kMaxModules) {
    return wrong_in_file(folder + "/modules.json", "file", "no short list", "a list of modules");
  }
  modules.are_there = true;
  for (const Json& module : list) SLUICE_TRY_VOID(read_module(folder, module, modules));
  return modules;
}

// Whether a text and the same in lower case are the same tokens.
bool ignores_case(const Tokenizer& tokenizer) {
  std::vector<TokenId> capitals;
  std::vector<TokenId> small;
  tokenizer.encode("ABCDEFGHI JKLMNOPQR STUVWXYZ ÄÇÑ ДЖ ΔΩ", SpecialText::kText, capitals);
  tokenizer.encode("abcdefghi jklmnopqr stuvwxyz äçñ дж δω", SpecialText::kText, small);
  return capitals == small;
}

// The length that sentence-transformers cuts texts to; 0: the files do not say. Texts that it would
// make lower case before the tokenizer sees them are refused where that makes a difference.
Expected<int32_t> read_max_tokens(const std::string& folder, const Tokenizer& tokenizer) {
  for (const char* name : {"sentence_bert_config.json",
                           "sentence_roberta_config.json",
                           "sentence_xlm-roberta_config.json",
                           "sentence_distilbert_config.json",
                           "sentence_camembert_config.json"}) {
    SLUICE_TRY(const Json json, read_json_file(folder + "/" + name));
    if (is_true(json, "do_lower_case") && !ignores_case(tokenizer)) {
      return wrong_in_file(folder + "/" + name,
                           "do_lower_case",
                           "true",
                           "false, or a tokenizer that makes texts lower case");
    }
    const Json* const length = member(json, "max_seq_length");
    if (length == nullptr) continue;
    const std::optional<int64_t> whole = json_whole_number(*length);
    if (!whole || *whole < 1) {
      return wrong_in_file(folder + "/" + name, "max_seq_length", length->dump(), "1 or more");
    }
    return static_cast<int32_t>(std::min<int64_t>(*whole, INT32_MAX));
  }
  return 0;
}

// Sets the labels' names and function as config.json says.
Expected<void> read_labels(const std::string& folder, const Json& json, PoolingInfo& info) {
  info.labels.clear();
  const Json* const names = member(json, "id2label");
  for (int32_t i = 0; i < info.width; ++i) {
    const std::string key = std::to_string(i);
    const std::string name = names == nullptr ? std::string() : text_of(*names, key);
    info.labels.push_back(name.empty() ? "LABEL_" + key : name);
  }
  const bool is_multi = text_of(json, "problem_type") == "multi_label_classification";
  info.function =
      info.width == 1 || is_multi ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  std::string function;
  if (const Json* own = member(json, "sentence_transformers"); own != nullptr) {
    function = text_of(*own, "activation_fn");
  }
  if (function.empty()) function = text_of(json, "sbert_ce_default_activation_function");
  if (function.empty()) return {};
  if (function.ends_with(".Identity")) {
    info.function = ScoreFunction::kIdentity;
  } else if (function.ends_with(".Sigmoid")) {
    info.function = ScoreFunction::kSigmoid;
  } else if (function.ends_with(".Softmax")) {
    info.function = ScoreFunction::kSoftmax;
  } else {
    return wrong_in_file(folder + "/config.json",
                         "activation_fn",
                         in_quotes(function),
                         "Identity, Sigmoid or Softmax");
  }
  return {};
}

void read_matryoshka(const Json& json, PoolingInfo& info) {
  info.is_matryoshka = is_true(json, "is_matryoshka");
  const Json* const dimensions = member(json, "matryoshka_dimensions");
  if (dimensions == nullptr || !dimensions->is_array()) return;
  for (const Json& each : *dimensions) {
    const std::optional<int64_t> whole = json_whole_number(each);
    if (whole && *whole > 0 && *whole <= info.width) {
      info.matryoshka_dimensions.push_back(static_cast<int32_t>(*whole));
    }
  }
  info.is_matryoshka = info.is_matryoshka || !info.matryoshka_dimensions.empty();
}

bool is_classifier_class(const Json& json) {
  const Json* const classes = member(json, "architectures");
  if (classes == nullptr || !classes->is_array() || classes->empty()) return false;
  const Json& first = classes->front();
  return first.is_string() &&
         first.get_ref<const std::string&>().ends_with("ForSequenceClassification");
}

// Makes the scores of a model without a layer for them: the tokens whose logits they are.
Expected<void> find_label_tokens(const Config& config,
                                 const Json& json,
                                 const Modules& modules,
                                 const Tokenizer& tokenizer,
                                 PoolingInfo& info) {
  std::array<TokenId, 2> tokens = {tokenizer.find_token("no"), tokenizer.find_token("yes")};
  if (const Json* named = member(json, "classifier_from_token");
      named != nullptr && named->is_array() && named->size() == 2 && named->at(0).is_string() &&
      named->at(1).is_string()) {
    tokens = {tokenizer.find_token(named->at(0).get_ref<const std::string&>()),
              tokenizer.find_token(named->at(1).get_ref<const std::string&>())};
  }
  if (modules.yes_and_no) tokens = {(*modules.yes_and_no)[1], (*modules.yes_and_no)[0]};
  for (const TokenId token : tokens) {
    if (token < 0 || token >= tokenizer.vocab_size()) {
      return make_error(ErrorCode::kUnsupported,
                        config.model +
                            ": found neither a layer for scores nor tokens \"yes\" and \"no\"; "
                            "--convert embed makes vectors",
                        "convert");
    }
  }
  info.label_tokens = {tokens[0], tokens[1]};
  info.width = 1;
  info.type = PoolingType::kLast;
  info.function = ScoreFunction::kSigmoid;
  info.labels = {"LABEL_0"};
  return {};
}

// What an encoder ends with decides what it can make.
Expected<void> check_encoder(const Checkpoint& checkpoint,
                             const PooledModel& model,
                             bool is_classifier) {
  if (!model.is_encoder || is_classifier == (model.num_labels > 0)) return {};
  return make_error(ErrorCode::kUnsupported,
                    checkpoint.path() + (is_classifier
                                             ? ": found no layer for scores; --convert embed"
                                             : ": found a layer for scores; --convert classify"),
                    "convert");
}

struct Source {
  Json json;  // config.json; null: a GGUF file
  Modules modules;
  std::optional<PoolingType> type;
  bool is_rank = false;
  std::vector<PooledLayer> head;  // of a classifier, where it follows the pooling
};

// A decoder's layer for scores is known in a directory of a class for it, and in one form of GGUF
// files: the output layer's rows of "yes" and "no", whose difference a score is (Qwen3-Reranker).
Expected<void> check_decoder(const Checkpoint& checkpoint,
                             const PooledModel& model,
                             const Source& source) {
  constexpr const char* kHead = "cls.output.weight";
  if (model.is_encoder || !checkpoint.has(kHead)) return {};
  const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
  if (!is_file && source.is_rank) return {};
  const Json* const names = member(source.json, "id2label");
  const bool is_judge = is_file && names != nullptr && names->size() == 2 &&
                        text_of(*names, "0") == "yes" && text_of(*names, "1") == "no";
  if (is_judge) return {};
  return make_error(ErrorCode::kUnsupported,
                    checkpoint.place_of(kHead) +
                        ": found a decoder's layer for scores, expected " +
                        (is_file ? "none, or one with the labels \"yes\" and \"no\""
                                 : "architectures in config.json to name a class "
                                   "...ForSequenceClassification"),
                    "model");
}

// Puts --hf-overrides over what config.json says.
Expected<void> apply_overrides(const std::string& text, Json& json) {
  constexpr std::array<std::string_view, 7> kKnown = {"architectures",
                                                      "is_causal",
                                                      "default_prompt_name",
                                                      "is_matryoshka",
                                                      "matryoshka_dimensions",
                                                      "classifier_from_token",
                                                      "is_original_qwen3_reranker"};
  if (text.empty()) return {};
  SLUICE_TRY(const Json overrides, parse_overrides(text));
  if (!json.is_object()) json = Json::object();
  for (const auto& [name, value] : overrides.items()) {
    if (std::ranges::find(kKnown, name) == kKnown.end()) {
      return make_error(ErrorCode::kUnsupported,
                        "--hf-overrides: " + in_quotes(name) + " is not supported",
                        "hf-overrides");
    }
    json[name] = value;
  }
  return {};
}

// Reads how states become one where config.json says it alone, as NVIDIA's do (llama_bidirec).
Expected<void> read_pooling_key(const std::string& folder, Source& source) {
  const std::string file = folder + "/config.json";
  const std::string name = text_of(source.json, "pooling");
  if (name.empty() || source.type) return {};
  if (name == "avg") source.type = PoolingType::kMean;
  if (name == "cls") source.type = PoolingType::kCls;
  if (name == "last") source.type = PoolingType::kLast;
  if (!source.type) return wrong_in_file(file, "pooling", in_quotes(name), "avg, cls or last");
  const Json* const temperature = member(source.json, "temperature");
  if (!source.is_rank || temperature == nullptr || *temperature == 1) return {};
  return wrong_in_file(file, "temperature", temperature->dump(), "1");
}

Expected<Source> read_source(const Config& config, const Checkpoint& checkpoint) {
  Source source;
  if (checkpoint.kind() == CheckpointKind::kHuggingFace) {
    SLUICE_TRY(source.json, read_json_file(checkpoint.path() + "/config.json"));
    SLUICE_TRY_VOID(apply_overrides(config.hf_overrides, source.json));
    SLUICE_TRY(source.modules, read_modules(checkpoint.path()));
    if (!source.modules.are_there) {
      SLUICE_TRY(source.modules.layers, read_token_layer(checkpoint));
    }
    source.type = source.modules.type;
    // Layers without a pooling before them are each token's own: ColBERT's.
    const bool is_each = !source.modules.layers.empty() || !source.modules.mask_file.empty();
    if (!source.type && is_each) {
      source.type = PoolingType::kEvery;
      source.modules.normalizes = true;
    }
    source.is_rank = is_classifier_class(source.json) || source.modules.yes_and_no.has_value();
    SLUICE_TRY_VOID(read_pooling_key(checkpoint.path(), source));
    return source;
  }
  if (const auto labels = checkpoint.metadata().get_string("classifier.output_labels"); labels) {
    const Json names = Json::parse(*labels, nullptr, /*allow_exceptions=*/false);
    for (size_t i = 0; i < names.size(); ++i) {
      source.json["id2label"][std::to_string(i)] = names[i];
    }
  }
  SLUICE_TRY_VOID(apply_overrides(config.hf_overrides, source.json));
  SLUICE_TRY(source.modules.layers, read_dense_tensors(checkpoint));
  SLUICE_TRY(const uint64_t number, checkpoint.metadata().get_uint_or("pooling_type", 0));
  if (number == 0 && !source.modules.layers.empty()) source.type = PoolingType::kEvery;  // ColBERT
  constexpr std::array kTypes = {PoolingType::kMean, PoolingType::kCls, PoolingType::kLast};
  source.is_rank = number == kGgufRank;
  if (number >= 1 && number <= kTypes.size()) source.type = kTypes[number - 1];
  return source;
}

void apply_pooling_flag(const Config& config, Source& source) {
  if (config.pooling == "mean") source.type = PoolingType::kMean;
  if (config.pooling == "cls") source.type = PoolingType::kCls;
  if (config.pooling == "last") source.type = PoolingType::kLast;
}

// Finds a classifier's head after the pooling, and what config.json specifies for it.
Expected<void> find_scoring_head(const Checkpoint& checkpoint,
                                 Source& source,
                                 PooledModel& model) {
  const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
  if (is_file ? !model.is_encoder : !source.is_rank) return {};
  if (model.num_labels > 0) return {};  // the model applies it
  SLUICE_TRY(source.head, read_scoring_head(checkpoint));
  if (source.head.empty()) return {};
  SLUICE_TRY_VOID(check_pooled_layers(checkpoint.path(), model.hidden, source.head));
  model.num_labels = source.head.back().out;
  const std::string file = checkpoint.path() + "/config.json";
  const std::string function = text_of(source.json, "classifier_activation");
  if (!function.empty() && function != "gelu") {
    return wrong_in_file(file, "classifier_activation", in_quotes(function), "gelu");
  }
  const std::string pooled = text_of(source.json, "classifier_pooling");
  if (pooled.empty() || source.type) return {};
  if (pooled != "cls" && pooled != "mean") {
    return wrong_in_file(file, "classifier_pooling", in_quotes(pooled), "cls or mean");
  }
  source.type = pooled == "cls" ? PoolingType::kCls : PoolingType::kMean;
  return {};
}

// Returns the token that transformers' classes for scores look past at the end of a text.
TokenId padding_of(const Metadata& metadata) {
  const Expected<uint64_t> id = metadata.get_uint("padding_token_id");
  const bool is_token = id && *id <= uint64_t{std::numeric_limits<TokenId>::max()};
  return is_token ? static_cast<TokenId>(*id) : kInvalidToken;
}

// Finds the texts that are put before others, and how the sides of late interaction differ.
Expected<void> read_texts(const std::string& folder,
                          const Tokenizer& tokenizer,
                          const Source& source,
                          const PooledModel& model,
                          PoolingInfo& info) {
  if (source.modules.counts_prompts) {
    SLUICE_TRY(info.prompts, read_prompts(folder));
  }
  if (info.type != PoolingType::kEvery) return {};
  const Json* const classes = member(source.json, "architectures");
  const bool is_stanford = classes != nullptr && classes->dump() == R"(["HF_ColBERT"])";
  SLUICE_TRY(info.comparison,
             read_comparison(folder,
                             tokenizer,
                             {.mask_file = source.modules.mask_file,
                              .is_stanford = is_stanford,
                              .sees_whole = model.is_encoder,
                              .unseen = model.unseen,
                              .max_tokens = info.max_tokens,
                              .window = model.window}));
  return {};
}

// A prompt is put before all texts only where that is asked for, not where a file says so alone.
Expected<void> choose_prompt(const Json& json, PoolingInfo& info) {
  const std::string name = text_of(json, "default_prompt_name");
  if (name.empty()) return {};
  const auto found = std::ranges::find(info.prompts, name, &NamedPrompt::name);
  if (found != info.prompts.end()) {
    info.default_prompt = found->text;
    return {};
  }
  std::string known;
  for (const NamedPrompt& prompt : info.prompts) known += " " + in_quotes(prompt.name);
  return make_error(ErrorCode::kInvalidArgument,
                    "--hf-overrides: default_prompt_name: found " + in_quotes(name) +
                        ", the model has" + (known.empty() ? " none" : known),
                    "hf-overrides");
}

// A last token that is a text's own, and not one that ends all texts, is seldom what a model was
// trained with: files of Qwen3-Embedding that early converters wrote do not say that one follows.
void warn_of_ends(const Tokenizer& tokenizer, const PoolingInfo& info) {
  if (info.type != PoolingType::kLast || !tokenizer.suffix_tokens().empty()) return;
  log_event(LogLevel::kWarning,
            "texts_have_no_end",
            "pooling",
            "last",
            "found",
            "no token that ends each text",
            "remedy",
            "add_eos_token in the file, or its name at the end of each text");
}

bool is_pooling(const Config& config, const Source& source, const PooledModel& model) {
  if (config.runner != "auto") return config.runner == "pooling";
  const bool is_asked = config.convert == "embed" || config.convert == "classify" ||
                        config.pooling != "auto";
  const bool makes_tokens = !model.is_encoder && !model.lacks_output;
  return is_asked || !makes_tokens || source.modules.are_there || source.type.has_value() ||
         source.is_rank;
}

}  // namespace

Expected<std::optional<Pooling>> read_pooling(const Config& config,
                                                  const Checkpoint& checkpoint,
                                                  const Tokenizer& tokenizer,
                                                  PooledModel model) {
  SLUICE_TRY(Source source, read_source(config, checkpoint));
  SLUICE_TRY_VOID(check_decoder(checkpoint, model, source));
  if (!is_pooling(config, source, model)) {
    if (!model.is_encoder && !model.lacks_output) return std::optional<Pooling>();
    return make_error(ErrorCode::kUnsupported,
                      checkpoint.path() +
                          (model.is_encoder ? ": found an encoder, which generates no tokens"
                                            : ": found no tensor lm_head.weight, and "
                                              "tie_word_embeddings is false") +
                          "; --runner pooling makes vectors",
                      "runner");
  }
  SLUICE_TRY_VOID(check_remote_class(checkpoint, source.json));
  SLUICE_TRY_VOID(find_scoring_head(checkpoint, source, model));
  apply_pooling_flag(config, source);
  const bool is_asked = config.convert == "embed" || config.convert == "classify";
  PoolingInfo info;
  info.is_classifier = is_asked ? config.convert == "classify"
                                : source.is_rank || config.pooling == "rank" ||
                                      model.num_labels > 0;
  SLUICE_TRY_VOID(check_encoder(checkpoint, model, info.is_classifier));
  info.max_tokens = model.max_model_len;
  info.has_segments = model.has_segments;
  if (info.is_classifier) {
    info.type = source.type.value_or(model.is_encoder ? PoolingType::kCls : PoolingType::kLast);
    info.width = model.num_labels;
    if (info.width > 0) {
      SLUICE_TRY_VOID(read_labels(checkpoint.path(), source.json, info));
    } else {
      SLUICE_TRY_VOID(find_label_tokens(config, source.json, source.modules, tokenizer, info));
    }
    Pooling pooling = {std::move(info), std::move(source.head)};
    const bool is_last = pooling.info.type == PoolingType::kLast && !pooling.layers.empty();
    if (is_last && !model.is_encoder) pooling.padding = padding_of(checkpoint.metadata());
    return std::optional(std::move(pooling));
  }
  if (!source.type && checkpoint.kind() == CheckpointKind::kGguf) {
    return make_error(ErrorCode::kUnsupported,
                      checkpoint.path() +
                          ": pooling_type: found nothing, expected a way to pool; --pooling names "
                          "it: mean, cls or last",
                      "pooling");
  }
  info.type = source.type.value_or(model.is_encoder ? PoolingType::kCls : PoolingType::kLast);
  if (!source.type && model.is_encoder) {
    log_event(LogLevel::kWarning,
              "pooling_not_in_files",
              "used",
              "cls",
              "other_ways",
              "--pooling mean");
  }
  SLUICE_TRY_VOID(check_pooled_layers(checkpoint.path(), model.hidden, source.modules.layers));
  info.width = source.modules.layers.empty() ? model.hidden : source.modules.layers.back().out;
  // Without files that say it, vectors of decoders and of GGUF files have length 1, as in vLLM and
  // llama.cpp.
  info.normalizes = source.modules.are_there ? source.modules.normalizes : true;
  read_matryoshka(source.json, info);
  if (checkpoint.kind() == CheckpointKind::kHuggingFace) {
    SLUICE_TRY(const int32_t most, read_max_tokens(checkpoint.path(), tokenizer));
    if (most > 0) info.max_tokens = std::min(info.max_tokens, most);
    SLUICE_TRY_VOID(read_texts(checkpoint.path(), tokenizer, source, model, info));
  }
  SLUICE_TRY_VOID(choose_prompt(source.json, info));
  warn_of_ends(tokenizer, info);
  return std::optional(Pooling{std::move(info), std::move(source.modules.layers)});
}

}  // namespace sluice
