// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/sentence_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/gguf_parse.h"
#include "engine/weights/json_file.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostPrompts = 1024;
constexpr size_t kMostSkippedWords = 4096;
constexpr int32_t kUsualQueryTokens = 32;
constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

struct JsonFile {
  std::string path;
  Json json;

  // Null: it is not there, or null.
  [[nodiscard]] const Json* find(std::string_view name) const {
    if (!json.is_object()) return nullptr;
    const auto found = json.find(name);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }

  [[nodiscard]] bool has(std::string_view name) const { return find(name) != nullptr; }
};

Expected<JsonFile> read_file(std::string path) {
  SLUICE_TRY(Json json, read_json_file(path));
  return JsonFile{std::move(path), std::move(json)};
}

// The files of one model; those of other kinds of models are empty.
struct Files {
  JsonFile sentence;     // config_sentence_transformers.json
  JsonFile transformer;  // sentence_bert_config.json
  JsonFile mask;         // of the module
  JsonFile artifact;     // artifact.metadata
  JsonFile tokenizer;    // tokenizer_config.json
  bool is_older = false;  // of PyLate or ColBERT: markers are tokens, and queries are filled up
};

constexpr std::string_view kOlderFields[] = {"query_prefix",
                                             "document_prefix",
                                             "do_query_expansion",
                                             "attend_to_expansion_tokens",
                                             "skiplist_words"};

Expected<Files> read_files(const std::string& folder, const ComparedModel& model) {
  Files files;
  SLUICE_TRY(files.sentence, read_file(folder + "/config_sentence_transformers.json"));
  SLUICE_TRY(files.transformer, read_file(folder + "/sentence_bert_config.json"));
  SLUICE_TRY(files.tokenizer, read_file(folder + "/tokenizer_config.json"));
  if (!model.mask_file.empty()) {
    SLUICE_TRY(files.mask, read_file(model.mask_file));
  }
  if (model.is_stanford) {
    SLUICE_TRY(files.artifact, read_file(folder + "/artifact.metadata"));
  }
  files.is_older = model.is_stanford || std::ranges::any_of(kOlderFields, [&](auto name) {
                     return files.sentence.has(name);
                   });
  return files;
}

Expected<std::string> read_text(const JsonFile& file, std::string_view name) {
  const Json* const value = file.find(name);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  return wrong_in_file(file.path, std::string(name), value->dump(), "a string");
}

// Returns `usual` where the field is not there.
Expected<bool> read_flag(const JsonFile& file, std::string_view name, bool usual) {
  const Json* const value = file.find(name);
  if (value == nullptr) return usual;
  if (value->is_boolean()) return value->get<bool>();
  return wrong_in_file(file.path, std::string(name), value->dump(), "true or false");
}

// 0: the field is not there.
Expected<int32_t> read_length(const std::string& path, std::string_view name, const Json* value) {
  if (value == nullptr) return 0;
  const std::optional<int64_t> whole = json_whole_number(*value);
  if (whole && *whole >= 1) return static_cast<int32_t>(std::min<int64_t>(*whole, INT32_MAX));
  return wrong_in_file(path, std::string(name), value->dump(), "1 or more");
}

Expected<int32_t> read_length(const JsonFile& file, std::string_view name) {
  return read_length(file.path, name, file.find(name));
}

// --- Sides -----------------------------------------------------------------------------------

// In older files a marker is a token of the vocabulary, whole or up to a space; what is none is put
// before the text.
void place_marker(const Tokenizer& tokenizer, const std::string& marker, ComparedSide& side) {
  side.marker = marker.empty() ? kInvalidToken : tokenizer.find_token(marker);
  if (side.marker != kInvalidToken || marker.empty()) return;
  const size_t space = marker.find_first_of(" \t\n");
  side.marker = tokenizer.find_token(std::string_view(marker).substr(0, space));
  side.prompt = side.marker == kInvalidToken     ? marker
                : space == std::string::npos ? std::string()
                                             : marker.substr(space);
}

Expected<void> read_side(const Files& files,
                         const Tokenizer& tokenizer,
                         bool is_query,
                         ComparedSide& side) {
  const std::string name = is_query ? "query" : "document";
  std::string prompt;
  if (const Json* const prompts = files.sentence.find("prompts"); prompts != nullptr) {
    SLUICE_TRY(prompt, read_text({files.sentence.path, *prompts}, name));
  }
  std::string marker;
  if (files.sentence.has(name + "_prefix")) {
    SLUICE_TRY(marker, read_text(files.sentence, name + "_prefix"));
  } else if (files.artifact.path.empty()) {
    side.prompt = std::move(prompt);
    return {};
  } else {
    SLUICE_TRY(marker, read_text(files.artifact, is_query ? "query_token_id" : "doc_token_id"));
    if (marker.empty()) marker = is_query ? "[unused0]" : "[unused1]";
    marker += " ";
  }
  place_marker(tokenizer, marker, side);
  if (prompt.starts_with(marker)) prompt.erase(0, marker.size());
  side.prompt += prompt;
  return {};
}

Expected<std::vector<TokenId>> skipped_tokens(const JsonFile& file,
                                              const Json& words,
                                              const Tokenizer& tokenizer) {
  if (!words.is_array() || words.size() > kMostSkippedWords) {
    return wrong_in_file(file.path, "skiplist_words", "no such list", "a list of tokens");
  }
  std::vector<TokenId> tokens;
  for (const Json& word : words) {
    if (!word.is_string()) {
      return wrong_in_file(file.path, "skiplist_words", word.dump(), "a token");
    }
    const TokenId token = tokenizer.find_token(word.get_ref<const std::string&>());
    if (token != kInvalidToken) tokens.push_back(token);
  }
  std::ranges::sort(tokens);
  return tokens;
}

Expected<void> read_skipped(const Files& files,
                            const Tokenizer& tokenizer,
                            TokenComparison& comparison) {
  if (files.mask.has("keep_only_token_ids")) {
    return wrong_in_file(files.mask.path, "keep_only_token_ids", "a list", "null");
  }
  const JsonFile& file = files.mask.has("skiplist_words") ? files.mask : files.sentence;
  Json words = Json::array();
  SLUICE_TRY(const bool skips, read_flag(files.artifact, "mask_punctuation", true));
  if (const Json* const listed = file.find("skiplist_words"); listed != nullptr) {
    words = *listed;
  } else if (files.is_older && files.mask.path.empty() && skips) {
    for (const char each : kPunctuation) words.push_back(std::string(1, each));
  }
  SLUICE_TRY(std::vector<TokenId> tokens, skipped_tokens(file, words, tokenizer));
  const Json* const tasks = files.mask.find("skiplist_tasks");
  const auto has_task = [tasks](std::string_view name) {
    if (tasks == nullptr) return name == "document";
    if (!tasks->is_array()) return *tasks == name;
    return std::ranges::find(*tasks, Json(name)) != tasks->end();
  };
  if (has_task("query")) comparison.query.skipped = tokens;
  if (has_task("document")) comparison.document.skipped = std::move(tokens);
  return {};
}

// --- Queries that are filled up --------------------------------------------------------------

struct Expansion {
  std::string file;
  bool is_asked = false;
  bool attends = false;  // other tokens see those that are added
  bool cuts = true;      // longer queries are cut to the same length
  int32_t length = 0;
  std::string token;  // empty: the tokenizer's mask token
};

Expected<Expansion> read_expansion(const Files& files) {
  Expansion expansion;
  expansion.file = files.sentence.path;
  const bool is_in_transformer = files.transformer.has("query_expansion");
  const JsonFile& file = is_in_transformer ? files.transformer : files.sentence;
  if (const Json* const said = file.find("query_expansion"); said != nullptr) {
    const JsonFile inner{file.path + ": query_expansion", *said};
    expansion.file = inner.path;
    expansion.is_asked = true;
    SLUICE_TRY(const std::string strategy, read_text(inner, "strategy"));
    if (strategy != "fixed" && strategy != "min") {
      return wrong_in_file(inner.path, "strategy", in_quotes(strategy), "fixed or min");
    }
    expansion.cuts = strategy == "fixed";
    SLUICE_TRY(expansion.attends, read_flag(inner, "attend", false));
    SLUICE_TRY(expansion.token, read_text(inner, "token"));
    SLUICE_TRY(expansion.length, read_length(inner, "length"));
    if (expansion.length == 0) return wrong_in_file(inner.path, "length", "nothing", "1 or more");
    return expansion;
  }
  const bool is_off = file.json.is_object() && file.json.contains("query_expansion");
  if (!files.is_older || is_off) return expansion;
  SLUICE_TRY(expansion.is_asked, read_flag(files.sentence, "do_query_expansion", true));
  if (!expansion.is_asked) return expansion;
  const bool is_artifact = !files.artifact.path.empty() && files.artifact.json.is_object();
  const JsonFile& older = is_artifact ? files.artifact : files.sentence;
  expansion.file = older.path;
  SLUICE_TRY(expansion.attends,
             read_flag(older,
                       is_artifact ? "attend_to_mask_tokens" : "attend_to_expansion_tokens",
                       false));
  SLUICE_TRY(expansion.length, read_length(older, is_artifact ? "query_maxlen" : "query_length"));
  if (expansion.length == 0) expansion.length = kUsualQueryTokens;
  return expansion;
}

// The tokenizer's mask token, by its name.
std::string mask_of(const JsonFile& tokenizer) {
  const Json* const mask = tokenizer.find("mask_token");
  if (mask != nullptr && mask->is_string()) return mask->get<std::string>();
  if (mask != nullptr && mask->is_object() && mask->contains("content") &&
      mask->at("content").is_string()) {
    return mask->at("content").get<std::string>();
  }
  return "[MASK]";
}

Expected<void> expand_queries(const Files& files,
                              const Tokenizer& tokenizer,
                              const ComparedModel& model,
                              TokenComparison& comparison) {
  SLUICE_TRY(const Expansion expansion, read_expansion(files));
  if (!expansion.is_asked) return {};
  if (!model.sees_whole) {
    return wrong_in_file(expansion.file, "query_expansion", "one", "none, of a decoder");
  }
  if (expansion.length > model.max_tokens) {
    return wrong_in_file(expansion.file,
                         "length of queries",
                         std::to_string(expansion.length),
                         "at most " + std::to_string(model.max_tokens));
  }
  const std::string name = expansion.token.empty() ? mask_of(files.tokenizer) : expansion.token;
  comparison.expansion = tokenizer.find_token(name);
  if (comparison.expansion == kInvalidToken) {
    return wrong_in_file(expansion.file, "token", in_quotes(name), "one of the vocabulary");
  }
  comparison.expanded_tokens = expansion.length;
  int32_t& most = comparison.query.max_tokens;
  if (expansion.cuts) most = expansion.length;
  if (!expansion.cuts && most > 0) most = std::max(most, expansion.length);
  if (expansion.attends) return {};
  // Every added token must see the text's first ones.
  if (model.unseen == 0 || (model.window > 0 && expansion.length > model.window)) {
    return wrong_in_file(expansion.file, "attend", "false", "true, with this model's attention");
  }
  comparison.expansion += model.unseen;
  return {};
}

// --- Lengths ---------------------------------------------------------------------------------

// Whether a text and the same in lower case are the same tokens.
bool ignores_case(const Tokenizer& tokenizer) {
  std::vector<TokenId> capitals;
  std::vector<TokenId> small;
  tokenizer.encode("ABCDEFGHI JKLMNOPQR STUVWXYZ ÄÇÑ ДЖ ΔΩ", SpecialText::kText, capitals);
  tokenizer.encode("abcdefghi jklmnopqr stuvwxyz äçñ дж δω", SpecialText::kText, small);
  return capitals == small;
}

// Returns 0 where a tokenizer's files say nothing, or 1e30 as for one without a limit.
Expected<int32_t> read_tokenizer_limit(const std::string& folder) {
  SLUICE_TRY(const JsonFile file, read_file(folder + "/tokenizer_config.json"));
  const Json* const most = file.find("model_max_length");
  const std::optional<int64_t> whole = most == nullptr ? std::nullopt : json_whole_number(*most);
  return whole && *whole >= 1 && *whole <= INT32_MAX ? static_cast<int32_t>(*whole) : 0;
}

}  // namespace

Expected<int32_t> read_max_tokens(const std::string& folder,
                                  const Tokenizer& tokenizer,
                                  PoolingType type) {
  for (const char* name : {"sentence_bert_config.json",
                           "sentence_roberta_config.json",
                           "sentence_xlm-roberta_config.json",
                           "sentence_distilbert_config.json",
                           "sentence_camembert_config.json"}) {
    SLUICE_TRY(const JsonFile file, read_file(folder + "/" + name));
    const Json* const lowers = file.find("do_lower_case");
    if (lowers != nullptr && *lowers == true && !ignores_case(tokenizer)) {
      return wrong_in_file(file.path,
                           "do_lower_case",
                           "true",
                           "false, or a tokenizer that makes texts lower case");
    }
    SLUICE_TRY(const int32_t length, read_length(file, "max_seq_length"));
    if (length > 0) return length;
  }
  // PyLate sets the tokenizer's limit for the side that it reads next.
  if (type == PoolingType::kEvery) return 0;
  return read_tokenizer_limit(folder);
}

Expected<std::vector<NamedPrompt>> read_prompts(const std::string& folder) {
  SLUICE_TRY(const JsonFile file, read_file(folder + "/config_sentence_transformers.json"));
  std::vector<NamedPrompt> prompts;
  const Json* const listed = file.find("prompts");
  if (listed == nullptr) return prompts;
  if (!listed->is_object() || listed->size() > kMostPrompts) {
    return wrong_in_file(file.path, "prompts", "no such object", "an object of texts");
  }
  for (const auto& [name, text] : listed->items()) {
    if (text.is_null()) continue;
    if (!text.is_string()) {
      return wrong_in_file(file.path, "prompts: " + in_quotes(name), text.dump(), "a string");
    }
    prompts.push_back({.name = name, .text = text.get<std::string>()});
  }
  return prompts;
}

Expected<TokenComparison> read_comparison(const std::string& folder,
                                          const Tokenizer& tokenizer,
                                          const ComparedModel& model) {
  SLUICE_TRY(const Files files, read_files(folder, model));
  TokenComparison comparison;
  SLUICE_TRY_VOID(read_side(files, tokenizer, true, comparison.query));
  SLUICE_TRY_VOID(read_side(files, tokenizer, false, comparison.document));
  for (const JsonFile* file : {&files.sentence, &files.transformer}) {
    SLUICE_TRY(const int32_t query, read_length(*file, "query_length"));
    SLUICE_TRY(const int32_t document, read_length(*file, "document_length"));
    if (query > 0) comparison.query.max_tokens = query;
    if (document > 0) comparison.document.max_tokens = document;
  }
  SLUICE_TRY(const int32_t of_artifact, read_length(files.artifact, "doc_maxlen"));
  if (of_artifact > 0) comparison.document.max_tokens = of_artifact;
  SLUICE_TRY_VOID(read_skipped(files, tokenizer, comparison));
  SLUICE_TRY_VOID(expand_queries(files, tokenizer, model, comparison));
  return comparison;
}

}  // namespace sluice
