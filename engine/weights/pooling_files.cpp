// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pooling_files.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/causal_flags.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"
#include "engine/weights/override_keys.h"
#include "engine/weights/sentence_files.h"
#include "engine/weights/sentence_modules.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// GGUF's pooling_type of a model whose vector is a classifier's score.
constexpr uint64_t kGgufRank = 4;

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

struct Source {
  Json json;  // config.json; null: a GGUF file
  SentenceModules modules;
  std::optional<PoolingType> type;
  bool is_rank = false;
  std::vector<PooledLayer> head;  // of a classifier, where it follows the pooling
};

// The function that files name for scores; none: they name none. What a CrossEncoder was saved with
// comes before config.json.
Expected<std::optional<ScoreFunction>> read_function(const std::string& folder,
                                                     const Source& source) {
  std::string file = folder + "/config_sentence_transformers.json";
  std::string function = source.modules.score_function;
  if (function.empty()) {
    file = folder + "/config.json";
    if (const Json* own = member(source.json, "sentence_transformers"); own != nullptr) {
      function = text_of(*own, "activation_fn");
    }
  }
  if (function.empty()) function = text_of(source.json, "sbert_ce_default_activation_function");
  if (function.empty()) return std::optional<ScoreFunction>();
  if (function.ends_with(".Identity")) return ScoreFunction::kIdentity;
  if (function.ends_with(".Sigmoid")) return ScoreFunction::kSigmoid;
  if (function.ends_with(".Softmax")) return ScoreFunction::kSoftmax;
  return wrong_in_file(
      file, "activation_fn", in_quotes(function), "Identity, Sigmoid or Softmax");
}

// Sets the names of a layer's labels, and the usual function for them: that of transformers'
// pipeline, which vLLM has for texts and pairs alike. A regression's value is its logit.
void read_labels(const Json& json, PoolingInfo& info) {
  info.labels.clear();
  const Json* const names = member(json, "id2label");
  for (int32_t i = 0; i < info.width; ++i) {
    const std::string key = std::to_string(i);
    const std::string name = names == nullptr ? std::string() : text_of(*names, key);
    info.labels.push_back(name.empty() ? "LABEL_" + key : name);
  }
  const std::string kind = text_of(json, "problem_type");
  const bool is_each_apart = info.width == 1 || kind == "multi_label_classification";
  info.function = is_each_apart ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  if (kind == "regression") info.function = ScoreFunction::kIdentity;
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

// The texts of the tokens that classifier_from_token names; empty: it names none. `method` is how
// vLLM makes a layer of them: of two the difference, of one its own row.
Expected<std::vector<std::string>> named_tokens(const std::string& folder, const Json& json) {
  std::vector<std::string> texts;
  const std::string file = folder + "/config.json";
  const Json* const named = member(json, "classifier_from_token");
  if (named == nullptr) return texts;
  for (const Json& text : named->is_array() ? *named : Json::array()) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  const bool has_one_or_two = texts.size() == 1 || texts.size() == 2;
  if (!has_one_or_two || texts.size() != named->size()) {
    return wrong_in_file(file, "classifier_from_token", named->dump(), "one token or two");
  }
  const std::string method = text_of(json, "method");
  const std::string fitting = texts.size() == 2 ? "from_2_way_softmax" : "no_post_processing";
  if (method.empty() || method == fitting) return texts;
  return wrong_in_file(
      file, "method", in_quotes(method), in_quotes(fitting) + " with " + named->dump());
}

// Makes the scores of a model without a layer for them: the tokens whose logits they are.
Expected<void> find_label_tokens(const Checkpoint& checkpoint,
                                 const Source& source,
                                 const Tokenizer& tokenizer,
                                 PoolingInfo& info) {
  SLUICE_TRY(std::vector<std::string> texts, named_tokens(checkpoint.path(), source.json));
  info.label_tokens = source.modules.label_tokens;
  if (texts.empty() && info.label_tokens.empty()) texts = {"no", "yes"};
  if (!texts.empty()) info.label_tokens.clear();
  for (const std::string& text : texts) {
    info.label_tokens.push_back(tokenizer.find_token(text));
  }
  for (const TokenId token : info.label_tokens) {
    if (token >= 0 && token < tokenizer.vocab_size()) continue;
    std::string wanted;
    for (const std::string& text : texts) {
      wanted += (wanted.empty() ? " " : " and ") + in_quotes(text);
    }
    return make_error(ErrorCode::kUnsupported,
                      checkpoint.path() + ": found neither a layer for scores nor the tokens" +
                          wanted + " of one; --convert embed makes vectors",
                      "convert");
  }
  info.width = 1;
  info.type = PoolingType::kLast;
  info.function = ScoreFunction::kSigmoid;
  info.labels = {"LABEL_0"};
  return {};
}

// What an encoder ends with decides what it can make.
Expected<void> check_encoder(const Checkpoint& checkpoint,
                             const Source& source,
                             const PooledModel& model,
                             bool is_classifier) {
  const bool may_be_both = !model.is_encoder && !source.modules.gives_scores;
  if (may_be_both || is_classifier == (model.num_labels > 0)) return {};
  std::string found = ": found a layer for scores; --convert classify";
  std::string place = checkpoint.path();
  if (is_classifier) {
    found = ": found no layer for scores; --convert embed";
    const FileSpec* const spec = checkpoint.file_spec();
    if (checkpoint.has("cls.output.weight") && !has_scoring_head(checkpoint)) {
      place = checkpoint.place_of(spec->before_scores);
      found = ": found nothing, expected what the layer for scores follows; --convert embed";
    }
  }
  return make_error(ErrorCode::kUnsupported, place + found, "convert");
}

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
  if (text.empty()) return {};
  SLUICE_TRY(const Json overrides, parse_overrides(text));
  if (!json.is_object()) json = Json::object();
  for (const auto& [name, value] : overrides.items()) json[name] = value;
  return {};
}

// Reads what config.json says of scores, and of how states become one where no module does.
Expected<void> read_named_pooling(const std::string& folder, Source& source) {
  const std::string file = folder + "/config.json";
  const Json* const temperature = member(source.json, "temperature");
  if (source.is_rank && temperature != nullptr && *temperature != 1) {
    return wrong_in_file(file, "temperature", temperature->dump(), "1");
  }
  const std::string name = text_of(source.json, "pooling");
  if (name.empty() || source.type) return {};
  if (name == "avg") source.type = PoolingType::kMean;
  if (name == "cls") source.type = PoolingType::kCls;
  if (name == "last") source.type = PoolingType::kLast;
  if (!source.type) return wrong_in_file(file, "pooling", in_quotes(name), "avg, cls or last");
  return {};
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
    source.is_rank = is_classifier_class(source.json) || source.modules.gives_scores ||
                     source.modules.is_cross_encoder || !source.modules.label_tokens.empty();
    const FileSpec* const spec = checkpoint.file_spec();
    if (spec != nullptr && spec->names_pooling) {
      SLUICE_TRY_VOID(read_named_pooling(checkpoint.path(), source));
    }
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
  if (source.modules.gives_scores) {
    if (model.num_labels > 0) {
      return wrong_in_file(checkpoint.path() + "/modules.json",
                           "type",
                           "a Dense of scores beside the model's own layer for them",
                           "one of the two");
    }
    source.head = std::move(source.modules.layers);
  } else {
    const bool is_file = checkpoint.kind() == CheckpointKind::kGguf;
    if (is_file ? !model.is_encoder : !source.is_rank) return {};
    if (model.num_labels > 0) return {};  // the model applies it
    // The layer for scores of BERT and RoBERTa follows another, which the model applies or lacks.
    const bool has_pooler = checkpoint.has("cls.weight") && !checkpoint.has("cls.norm.weight");
    if (model.is_encoder && has_pooler) return {};
    SLUICE_TRY(source.head, read_scoring_head(checkpoint));
  }
  if (source.head.empty()) return {};
  SLUICE_TRY_VOID(check_pooled_layers(checkpoint.path(), model.hidden, source.head));
  model.num_labels = source.head.back().out;
  if (source.modules.gives_scores) return {};
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

// Texts are cut where sentence-transformers cuts them.
Expected<void> limit_tokens(const Checkpoint& checkpoint,
                            const Tokenizer& tokenizer,
                            PoolingInfo& info) {
  if (checkpoint.kind() != CheckpointKind::kHuggingFace) return {};
  SLUICE_TRY(const int32_t most, read_max_tokens(checkpoint.path(), tokenizer, info.type));
  if (most > 0) info.max_tokens = std::min(info.max_tokens, most);
  return {};
}

// Qwen3-Reranker's files are those of a chat model of its family. What sets it apart is its name, a
// GGUF file's kind of pooling, or the flag that vLLM has for it.
bool is_qwen3_reranker(const Checkpoint& checkpoint,
                       const Source& source,
                       const Tokenizer& tokenizer,
                       const PoolingInfo& info) {
  const FileSpec* const spec = checkpoint.file_spec();
  if (spec == nullptr || !spec->may_be_qwen3_reranker) return false;
  const std::array usual = {tokenizer.find_token("no"), tokenizer.find_token("yes")};
  if (!std::ranges::equal(info.label_tokens, usual)) return false;
  std::string path = checkpoint.path();
  std::ranges::transform(path, path.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const bool is_ranked_file = source.is_rank && checkpoint.kind() == CheckpointKind::kGguf;
  return is_ranked_file || is_true(source.json, "is_original_qwen3_reranker") ||
         path.find("qwen3-reranker") != std::string::npos;
}

// The instruction before each pair: the default prompt of a CrossEncoder, or the one that
// --hf-overrides names.
Expected<void> read_instruction(const Checkpoint& checkpoint, Source& source, PoolingInfo& info) {
  // A GGUF file has no prompts, so that it refuses the name of one.
  if (checkpoint.kind() != CheckpointKind::kHuggingFace) return choose_prompt(source.json, info);
  SLUICE_TRY(info.prompts, read_prompts(checkpoint.path()));
  const std::string& usual = source.modules.default_prompt_name;
  const bool has_usual = std::ranges::find(info.prompts, usual, &NamedPrompt::name) !=
                         info.prompts.end();
  if (has_usual && member(source.json, "default_prompt_name") == nullptr) {
    source.json["default_prompt_name"] = usual;
  }
  return choose_prompt(source.json, info);
}

Expected<std::optional<Pooling>> read_scores(const Checkpoint& checkpoint,
                                             const Tokenizer& tokenizer,
                                             Source source,
                                             const PooledModel& model,
                                             PoolingInfo info) {
  info.type = source.type.value_or(model.is_encoder ? PoolingType::kCls : PoolingType::kLast);
  info.width = model.num_labels;
  if (info.width > 0) {
    read_labels(source.json, info);
  } else {
    if (model.lacks_output) {
      return make_error(ErrorCode::kUnsupported,
                        checkpoint.path() +
                            ": found neither a layer for scores nor an output layer; --convert "
                            "embed makes vectors",
                        "convert");
    }
    SLUICE_TRY_VOID(find_label_tokens(checkpoint, source, tokenizer, info));
    info.begins_answer = source.modules.begins_answer;
    info.is_qwen3_reranker = is_qwen3_reranker(checkpoint, source, tokenizer, info);
    SLUICE_TRY_VOID(read_instruction(checkpoint, source, info));
  }
  SLUICE_TRY(const auto function, read_function(checkpoint.path(), source));
  info.function = function.value_or(info.function);
  SLUICE_TRY_VOID(limit_tokens(checkpoint, tokenizer, info));
  Pooling pooling = {std::move(info), std::move(source.head)};
  const bool is_last = pooling.info.type == PoolingType::kLast && !pooling.layers.empty();
  const bool looks_past = !model.is_encoder && !source.modules.gives_scores;
  if (is_last && looks_past) pooling.padding = padding_of(checkpoint.metadata());
  return std::optional(std::move(pooling));
}

Expected<std::optional<Pooling>> read_vectors(const Checkpoint& checkpoint,
                                              const Tokenizer& tokenizer,
                                              Source source,
                                              const PooledModel& model,
                                              PoolingInfo info) {
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
    SLUICE_TRY_VOID(limit_tokens(checkpoint, tokenizer, info));
    SLUICE_TRY_VOID(read_texts(checkpoint.path(), tokenizer, source, model, info));
  }
  SLUICE_TRY_VOID(choose_prompt(source.json, info));
  warn_of_ends(tokenizer, info);
  return std::optional(Pooling{std::move(info), std::move(source.modules.layers)});
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
  SLUICE_TRY_VOID(check_encoder(checkpoint, source, model, info.is_classifier));
  info.max_tokens = model.max_model_len;
  info.has_segments = model.has_segments;
  if (info.is_classifier) {
    return read_scores(checkpoint, tokenizer, std::move(source), model, std::move(info));
  }
  return read_vectors(checkpoint, tokenizer, std::move(source), model, std::move(info));
}

}  // namespace sluice
