// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/vocabulary_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/sentencepiece_files.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kWordsFile = "vocab.txt";
constexpr const char* kTokensFile = "vocab.json";
constexpr const char* kMergesFile = "merges.txt";

// A class of transformers, and the family whose files have it where they name none.
struct Kind {
  std::string_view name;
  std::string_view model_type;
  bool has_pairs;  // merges instead of whole words
  bool is_marked;  // texts begin with <s>, as RoBERTa's
  std::string_view unknown;
};

constexpr Kind kKinds[] = {{"BertTokenizer", "bert", false, false, "[UNK]"},
                           {"DistilBertTokenizer", "distilbert", false, false, "[UNK]"},
                           {"MPNetTokenizer", "mpnet", false, true, "[UNK]"},
                           {"RobertaTokenizer", "roberta", true, true, "<unk>"}};

struct Options {
  const Kind& kind;
  Json config;   // tokenizer_config.json
  Json renamed;  // special_tokens_map.json, where it counts
};

// Returns the class that the files name, without "Fast"; empty: none.
std::string class_name(const Json& tokenizer, const Json& config) {
  for (const Json* place : {&tokenizer, &config}) {
    const Json* const found = json_field(*place, "tokenizer_class");
    if (found == nullptr || !found->is_string()) continue;
    std::string_view name = found->get_ref<const std::string&>();
    if (name.ends_with("Fast")) name.remove_suffix(4);
    return std::string(name);
  }
  return {};
}

std::string model_type_of(const Json& config) {
  const Json* const type = json_field(config, "model_type");
  return type == nullptr || !type->is_string() ? std::string() : type->get<std::string>();
}

// Null: the class has no row.
const Kind* find_kind(std::string_view name, std::string_view model_type) {
  const auto* const kind = name.empty() ? std::ranges::find(kKinds, model_type, &Kind::model_type)
                                        : std::ranges::find(kKinds, name, &Kind::name);
  return kind == std::end(kKinds) ? nullptr : kind;
}

// Calls `take` for each line, without what ends it and white space before that.
template <typename Take>
Expected<void> for_each_line(std::string_view text, Take&& take) {
  constexpr std::string_view kSpace = " \t\r\v\f";
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t last = line.find_last_not_of(kSpace);
    line = line.substr(0, last == std::string_view::npos ? 0 : last + 1);
    SLUICE_TRY_VOID(take(line));
  }
  return {};
}

// Returns ids by text; where a text comes again, its last line counts.
Expected<Json> read_words(const std::string& text) {
  Json vocab = Json::object();
  size_t id = 0;
  if (find_invalid_utf8(text, 0) != text.size()) return json_error(kWordsFile, "it is no UTF-8");
  SLUICE_TRY_VOID(for_each_line(text, [&](std::string_view line) -> Expected<void> {
    vocab[std::string(line)] = id++;
    return {};
  }));
  return vocab;
}

Expected<Json> read_merges(const std::string& text) {
  Json merges = Json::array();
  if (find_invalid_utf8(text, 0) != text.size()) return json_error(kMergesFile, "it is no UTF-8");
  SLUICE_TRY_VOID(for_each_line(text, [&](std::string_view line) -> Expected<void> {
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(std::string(line));
    return {};
  }));
  return merges;
}

// The token that has this role: a text, or an object with its flags.
Json named_token(const Options& options, std::string_view role) {
  for (const Json* place : {&options.renamed, &options.config}) {
    const Json* const found = json_field(*place, role);
    if (found == nullptr) continue;
    if (found->is_string()) return Json{{"content", *found}};
    const Json* const content = json_field(*found, "content");
    if (content != nullptr && content->is_string()) return *found;
  }
  const bool is_marked = options.kind.is_marked;
  if (role == "unk_token") return {{"content", options.kind.unknown}};
  if (role == "pad_token") return {{"content", is_marked ? "<pad>" : "[PAD]"}};
  if (role == "cls_token") return {{"content", is_marked ? "<s>" : "[CLS]"}};
  if (role == "sep_token") return {{"content", is_marked ? "</s>" : "[SEP]"}};
  // The mask takes the space before it there.
  return {{"content", is_marked ? "<mask>" : "[MASK]"}, {"lstrip", is_marked}};
}

Json* find_token(Json& list, const std::string& content) {
  const auto found = std::ranges::find_if(
      list, [&](const Json& token) { return token["content"] == content; });
  return found == list.end() ? nullptr : &*found;
}

// Returns the tokens that tokenizer_config.json lists by their ids, or that added_tokens.json has.
Expected<Json> listed_tokens(const Json& config, const std::string& added_tokens) {
  Json list = Json::array();
  const auto add = [&list](Json token, const Json& id) {
    token["id"] = id;
    list.push_back(std::move(token));
  };
  const Json* const decoder = json_field(config, "added_tokens_decoder");
  if (decoder == nullptr) {
    SLUICE_TRY(const Json added, json_object_in(added_tokens, "added_tokens.json"));
    for (const auto& [text, id] : added.items()) add({{"content", text}}, id);
    return list;
  }
  for (const auto& [key, token] : decoder->items()) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const bool is_id = error == std::errc() && end == key.data() + key.size();
    const Json* const content = json_field(token, "content");
    if (!is_id || content == nullptr || !content->is_string()) {
      return json_error(kConfig, "\"added_tokens_decoder\": expected ids and their tokens");
    }
    add(token, id);
  }
  return list;
}

// Adds the tokens that have a role to those that are listed.
Expected<Json> read_added(const Options& options,
                          const std::string& added_tokens,
                          const Json& vocab) {
  SLUICE_TRY(Json list, listed_tokens(options.config, added_tokens));
  const auto add = [&](Json token) {
    const auto content = token["content"].get<std::string>();
    if (Json* const listed = find_token(list, content); listed != nullptr) {
      (*listed)["special"] = true;
      return;
    }
    const auto found = vocab.find(content);
    if (found == vocab.end()) return;
    token["id"] = *found;
    token["special"] = true;
    token["normalized"] = false;
    list.push_back(std::move(token));
  };
  for (const char* role : {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    add(named_token(options, role));
  }
  for (const Json* place : {&options.renamed, &options.config}) {
    const Json* const more = json_field(*place, "additional_special_tokens");
    if (more == nullptr || !more->is_array()) continue;
    for (const Json& token : *more) {
      if (token.is_string()) add(Json{{"content", token}});
      const Json* const content = json_field(token, "content");
      if (content != nullptr && content->is_string()) add(token);
    }
  }
  return list;
}

// What encloses texts.
Expected<Json> read_ends(const Options& options, const Json& vocab) {
  Json ends = {{"type", options.kind.is_marked ? "RobertaProcessing" : "BertProcessing"}};
  for (const char* role : {"cls", "sep"}) {
    const Json token = named_token(options, std::string(role) + "_token")["content"];
    const auto found = vocab.find(token.get_ref<const std::string&>());
    if (found == vocab.end()) {
      return json_error(options.kind.has_pairs ? kTokensFile : kWordsFile,
                        "found no token " + token.get_ref<const std::string&>() +
                            ", expected one that encloses texts");
    }
    ends[role] = {token, *found};
  }
  return ends;
}

// BERT's basic tokenizer and WordPiece.
Expected<Json> word_pieces(const Options& options, Json vocab) {
  SLUICE_TRY(const bool lower, json_bool_or(options.config, "do_lower_case", kConfig, true));
  SLUICE_TRY(const bool strips, json_bool_or(options.config, "strip_accents", kConfig, lower));
  SLUICE_TRY(const bool parts,
             json_bool_or(options.config, "tokenize_chinese_chars", kConfig, true));
  return Json{{"normalizer",
               {{"type", "BertNormalizer"},
                {"clean_text", true},
                {"handle_chinese_chars", parts},
                {"strip_accents", strips},
                {"lowercase", lower}}},
              {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
              {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
              {"model",
               {{"type", "WordPiece"},
                {"unk_token", named_token(options, "unk_token")["content"]},
                {"continuing_subword_prefix", "##"},
                {"max_input_chars_per_word", 100},
                {"vocab", std::move(vocab)}}}};
}

// RoBERTa's BPE over bytes.
Expected<Json> byte_pairs(const Options& options, Json vocab, const std::string& merges) {
  SLUICE_TRY(const bool prefix, json_bool_or(options.config, "add_prefix_space", kConfig, false));
  SLUICE_TRY(Json pairs, read_merges(merges));
  return Json{{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", prefix}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model",
               {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(pairs)}}}};
}

}  // namespace

Expected<std::string> vocabulary_as_json(const VocabularyFiles& files) {
  SLUICE_TRY(Json config, json_object_in(files.tokenizer_config, kConfig));
  SLUICE_TRY(const Json model, json_object_in(files.config, "config.json"));
  SLUICE_TRY(Json renamed, json_object_in(files.special_tokens_map, "special_tokens_map.json"));
  if (json_field(config, "added_tokens_decoder") != nullptr) renamed = Json::object();
  const std::string name = class_name(config, model);
  const std::string type = model_type_of(model);
  if (const auto* const pieces = find_sentencepiece_kind(name, type); pieces != nullptr) {
    if (files.pieces.empty()) return std::string();
    SLUICE_TRY(const Json listed, listed_tokens(config, files.added_tokens));
    SLUICE_TRY(const Json json,
               sentencepiece_as_json(files.pieces, *pieces, {config, renamed, listed}));
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  const Kind* const kind = find_kind(name, type);
  if (kind == nullptr) return std::string();
  const bool are_there =
      kind->has_pairs ? !files.tokens.empty() && !files.merges.empty() : !files.words.empty();
  if (!are_there) return std::string();
  const Options options = {*kind, std::move(config), std::move(renamed)};
  Json vocab;
  if (kind->has_pairs) {
    SLUICE_TRY(vocab, json_object_in(files.tokens, kTokensFile));
  } else {
    SLUICE_TRY(vocab, read_words(files.words));
  }
  SLUICE_TRY(Json added, read_added(options, files.added_tokens, vocab));
  SLUICE_TRY(Json ends, read_ends(options, vocab));
  Json json;
  if (kind->has_pairs) {
    SLUICE_TRY(json, byte_pairs(options, std::move(vocab), files.merges));
  } else {
    SLUICE_TRY(json, word_pieces(options, std::move(vocab)));
  }
  json["added_tokens"] = std::move(added);
  json["post_processor"] = std::move(ends);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice
