// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/mistral_pattern.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "engine/tokenizer/models/affix_bpe.h"
#include "engine/tokenizer/models/bpe_tables.h"
#include "engine/tokenizer/models/unigram.h"
#include "engine/tokenizer/models/word_models.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr double kUnknownPenalty = 10;  // below the lowest score

Expected<Json> parse_file(std::string_view text, std::string_view name) {
  if (text.empty()) return Json::object();
  if (is_deeper_json(text, kMaxFileLevels)) return json_error(name, "values are nested too deep");
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return make_error(ErrorCode::kDataLoss, std::string(name) + ": it is no JSON object");
  }
  return json;
}

Json section_of(const Json& json, std::string_view key) {
  const Json* field = json_field(json, key);
  return field == nullptr ? Json() : *field;
}

// Returns vocab_size of a config.json; 0: not stated.
Expected<int64_t> embedding_rows(std::string_view config_text) {
  SLUICE_TRY(const Json config, parse_file(json_without_nan(config_text, ""), "config.json"));
  for (const Json* section : {text_config_of(config), &config}) {
    const Json* size = section == nullptr ? nullptr : json_field(*section, "vocab_size");
    if (size != nullptr && size->is_number_unsigned()) return size->get<int64_t>();
  }
  return 0;
}

class HfReader {
 public:
  // `is_ranked`: merges are those of ranked_merges().
  HfReader(Json json, bool is_ranked) : json_(std::move(json)), is_ranked_(is_ranked) {}

  Expected<void> read(const HfTokenizerFiles& files) {
    SLUICE_TRY_VOID(read_vocabulary());
    SLUICE_TRY(num_rows_, embedding_rows(files.config));
    SLUICE_TRY_VOID(read_added_tokens());
    SLUICE_TRY(auto steps, read_normalizer(section_of(json_, "normalizer")));
    parts_.normalizer = Normalizer(std::move(steps));
    normalize_names();
    SLUICE_TRY(auto pretokenizer, read_pretokenizer(section_of(json_, "pre_tokenizer")));
    parts_.stages = std::move(pretokenizer.stages);
    SLUICE_TRY_VOID(read_decoder());
    SLUICE_TRY_VOID(read_model(pretokenizer));
    SLUICE_TRY(auto post, read_post_processor(section_of(json_, "post_processor"), num_tokens()));
    parts_.prefix = std::move(post.prefix);
    parts_.between = std::move(post.between);
    parts_.suffix = std::move(post.suffix);
    SLUICE_TRY_VOID(read_special_tokens(files));
    return {};
  }

  TokenizerParts take() { return std::move(parts_); }

 private:
  [[nodiscard]] size_t num_tokens() const { return parts_.names.size(); }

  Expected<void> read_vocabulary();
  Expected<void> set_name(const std::string& name, int64_t id, std::string_view where);
  Expected<void> read_added_tokens();
  Expected<void> read_added_token(const Json& item);
  [[nodiscard]] TokenId find_in_model(const std::string& text) const;
  void normalize_names();
  Expected<void> read_decoder();
  static bool has_all_bytes(const TokenTable& tokens);
  void keep_spelling(const JsonPretokenizer& pretokenizer);
  Expected<void> read_bpe(const JsonPretokenizer& pretokenizer);
  template <typename Model>
  void set_byte_tokens(const TokenTable& tokens, Model& model) const;
  Expected<MergeList> merge_list() const;
  Expected<void> read_unigram(const JsonPretokenizer& pretokenizer);
  Expected<void> read_words(const JsonPretokenizer& pretokenizer);
  Expected<void> read_model(const JsonPretokenizer& pretokenizer);
  Expected<void> read_special_tokens(const HfTokenizerFiles& files);
  Expected<TokenId> special_token(const Json& config, std::string_view key) const;
  void add_named(const std::string& name, const Json* field);
  void add_end(int64_t id, const std::string& file);
  Expected<void> add_ends(const Json& config, const std::string& file);
  void add_ends_of_generation(std::string_view text);
  [[nodiscard]] TokenId find_name(std::string_view name) const;

  // Selects tokens that arise from text without being named in it.
  [[nodiscard]] std::function<bool(TokenId)> in_model() const {
    return [this](TokenId id) {
      return in_model_[static_cast<size_t>(id)] && !parts_.special[static_cast<size_t>(id)];
    };
  }

  Json json_;
  bool is_ranked_;
  Json model_;
  std::string type_;      // the model's
  int64_t num_rows_ = 0;  // rows of the model's embedding; 0: not known
  // Ids by text: for a vocabulary that is a list, and for added tokens.
  std::unordered_map<std::string_view, TokenId> listed_ids_;
  std::unordered_map<std::string, TokenId> added_ids_;
  std::vector<bool> in_model_;  // by id
  std::vector<bool> is_added_;  // by id
  TokenizerParts parts_;
};

Expected<void> HfReader::set_name(const std::string& name, int64_t id, std::string_view where) {
  if (id < 0 || id >= kMaxTokenIds) {
    return json_error(where, "token id " + std::to_string(id) + " is out of range");
  }
  if (find_invalid_utf8(name, 0) != name.size()) return json_error(where, "a token is no UTF-8");
  const auto index = static_cast<size_t>(id);
  if (index >= parts_.names.size()) {
    parts_.names.resize(index + 1);
    in_model_.resize(index + 1);
    is_added_.resize(index + 1);
    parts_.special.resize(index + 1);
  }
  if (!parts_.names[index].empty() && parts_.names[index] != name) {
    return json_error(where,
                      "token id " + std::to_string(id) + " is \"" + parts_.names[index] +
                          "\" and \"" + name + "\"");
  }
  parts_.names[index] = name;
  return {};
}

Expected<void> HfReader::read_vocabulary() {
  constexpr std::string_view kWhere = "model";
  model_ = section_of(json_, "model");
  const Json* vocab = json_field(model_, "vocab");
  // Old files omit the type.
  const bool is_list = vocab != nullptr && vocab->is_array();
  SLUICE_TRY(type_, json_string_or(model_, "type", kWhere, is_list ? "Unigram" : "BPE"));
  const bool is_unigram = type_ == "Unigram";
  if (!is_unigram && type_ != "BPE" && type_ != "WordPiece" && type_ != "WordLevel") {
    return json_unsupported(kWhere, type_, "BPE, Unigram, WordPiece, WordLevel");
  }
  if (vocab == nullptr || vocab->is_array() != is_unigram || vocab->empty() ||
      (!is_unigram && !vocab->is_object())) {
    return json_error(kWhere, "\"vocab\" is missing or of the wrong kind");
  }
  if (static_cast<int64_t>(vocab->size()) > kMaxTokenIds) {
    return json_error(kWhere, "\"vocab\" is too large");
  }
  if (is_unigram) {
    for (const Json& item : *vocab) {
      if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number()) {
        return json_error(kWhere, "an item of \"vocab\" is no pair of a token and a score");
      }
      const auto id = static_cast<int64_t>(in_model_.size());
      SLUICE_TRY_VOID(set_name(item[0].get_ref<const std::string&>(), id, kWhere));
      in_model_[static_cast<size_t>(id)] = true;
      listed_ids_[item[0].get_ref<const std::string&>()] = static_cast<TokenId>(id);
    }
    return {};
  }
  for (const auto& [name, id] : vocab->items()) {
    if (!id.is_number_integer()) return json_error(kWhere, "a token id is no integer");
    SLUICE_TRY_VOID(set_name(name, id.get<int64_t>(), kWhere));
    in_model_[id.get<size_t>()] = true;
  }
  return {};
}

Expected<void> HfReader::read_added_token(const Json& item) {
  constexpr std::string_view kWhere = "added_tokens";
  SLUICE_TRY(const std::string content, json_string(item, "content", kWhere));
  SLUICE_TRY(const int64_t id, json_integer_or(item, "id", kWhere, -1));
  SLUICE_TRY(const bool special, json_bool_or(item, "special", kWhere, false));
  SLUICE_TRY(const bool normalized, json_bool_or(item, "normalized", kWhere, !special));
  AddedToken added;
  added.flags.is_control = special;
  SLUICE_TRY(added.flags.single_word, json_bool_or(item, "single_word", kWhere, false));
  SLUICE_TRY(added.flags.strips_left, json_bool_or(item, "lstrip", kWhere, false));
  SLUICE_TRY(added.flags.strips_right, json_bool_or(item, "rstrip", kWhere, false));
  if (content.empty()) return {};  // never found
  // A text-only model may keep the tokenizer of a multimodal one: tokens for images have no row in
  // its embedding, so nothing may encode to one.
  if (special && num_rows_ > 0 && id >= num_rows_) return {};
  SLUICE_TRY_VOID(set_name(content, id, kWhere));
  added.id = static_cast<TokenId>(id);
  parts_.special[static_cast<size_t>(id)] = special;
  is_added_[static_cast<size_t>(id)] = true;
  // The package keeps the first token of a text, the model's above all: others only decode.
  const TokenId in_model = find_in_model(content);
  if (in_model != kInvalidToken) added.id = in_model;
  const auto [first, is_new] = added_ids_.emplace(content, added.id);
  if (first->second != id) {
    warn_of_file(
        "tokenizer.json",
        kWhere,
        "the text of token " + std::to_string(first->second) + " for token " + std::to_string(id),
        "token " + std::to_string(first->second) + " in encoding");
  }
  if (!is_new) return {};
  added.content = content;
  added.in_normalized = normalized;
  parts_.special[static_cast<size_t>(added.id)] = special;
  is_added_[static_cast<size_t>(added.id)] = true;
  parts_.added.push_back(std::move(added));
  return {};
}

// Among tokens with one text returns the last, like the package.
TokenId HfReader::find_in_model(const std::string& text) const {
  const Json& vocab = model_["vocab"];
  if (vocab.is_object()) {
    const auto found = vocab.find(text);
    return found == vocab.end() ? kInvalidToken : found->get<TokenId>();
  }
  const auto found = listed_ids_.find(text);
  return found == listed_ids_.end() ? kInvalidToken : found->second;
}

Expected<void> HfReader::read_added_tokens() {
  const Json* list = json_field(json_, "added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) return json_error("added_tokens", "it has to be a list");
  for (const Json& item : *list) SLUICE_TRY_VOID(read_added_token(item));
  return {};
}

// Normalizes the names that are searched for in normalized text.
void HfReader::normalize_names() {
  Regex::Scanner scanner;
  std::string normalized;
  for (AddedToken& added : parts_.added) {
    if (added.in_normalized && parts_.normalizer.normalize(added.content, scanner, normalized)) {
      added.content = normalized;
    }
  }
}

Expected<void> HfReader::read_decoder() {
  SLUICE_TRY(const TokenDecoder decoder, TokenDecoder::read(section_of(json_, "decoder")));
  for (size_t id = 0; id < num_tokens(); ++id) {
    const std::string& name = parts_.names[id];
    if (parts_.special[id]) {
      parts_.bytes.push_back(name);
    } else {
      parts_.bytes.push_back(is_added_[id] ? decoder.decode_added(name) : decoder.decode(name));
    }
  }
  parts_.strips_first_space = decoder.strips_first_space();
  return {};
}

Expected<MergeList> HfReader::merge_list() const {
  constexpr std::string_view kWhere = "model merges";
  MergeList merges;
  const Json* list = json_field(model_, "merges");
  if (list == nullptr) return merges;
  if (!list->is_array()) return json_error(kWhere, "\"merges\" has to be a list");
  if (list->size() >= std::numeric_limits<uint32_t>::max()) {
    return json_error(kWhere, "\"merges\" is too long");
  }
  for (const Json& item : *list) {
    if (item.is_string()) {
      const std::string_view text = item.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == 0 || space == std::string_view::npos || space + 1 == text.size() ||
          text.find(' ', space + 1) != std::string_view::npos) {
        return json_error(kWhere, "\"" + std::string(text) + "\" is no pair of tokens");
      }
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else if (item.is_array() && item.size() == 2 && item[0].is_string() && item[1].is_string()) {
      merges.emplace_back(item[0].get_ref<const std::string&>(),
                          item[1].get_ref<const std::string&>());
    } else {
      return json_error(kWhere, "an item is no pair of tokens");
    }
  }
  return merges;
}

// Whether all bytes of UTF-8 have tokens; the package spells others by several tokens.
bool HfReader::has_all_bytes(const TokenTable& tokens) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (in_utf8 && tokens.find(spell_byte(static_cast<uint8_t>(byte))) == kInvalidToken) {
      return false;
    }
  }
  return true;
}

void HfReader::keep_spelling(const JsonPretokenizer& pretokenizer) {
  parts_.sees_spelling = pretokenizer.is_byte_level;
  if (pretokenizer.is_byte_level && !pretokenizer.is_spelled) {
    parts_.stages.emplace_back(SpellBytesStage{});
  }
}

template <typename Model>
void HfReader::set_byte_tokens(const TokenTable& tokens, Model& model) const {
  for (int byte = 0; byte < 256; ++byte) {
    model.set_byte_token(static_cast<uint8_t>(byte),
                         tokens.find(byte_token_name(static_cast<uint8_t>(byte))));
  }
}

Expected<void> HfReader::read_bpe(const JsonPretokenizer& pretokenizer) {
  constexpr std::string_view kWhere = "model BPE";
  if (const Json* dropout = json_field(model_, "dropout");
      dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return json_unsupported(kWhere, "dropout", "none");
  }
  AffixBpe::Options options;
  SLUICE_TRY(options.prefix, json_string_or(model_, "continuing_subword_prefix", kWhere, ""));
  SLUICE_TRY(options.suffix, json_string_or(model_, "end_of_word_suffix", kWhere, ""));
  SLUICE_TRY(options.whole_pieces_first, json_bool_or(model_, "ignore_merges", kWhere, false));
  SLUICE_TRY(options.fuse_unknown, json_bool_or(model_, "fuse_unk", kWhere, false));
  SLUICE_TRY(const bool byte_fallback, json_bool_or(model_, "byte_fallback", kWhere, false));
  SLUICE_TRY(const std::string unknown_name, json_string_or(model_, "unk_token", kWhere, ""));
  TokenTable tokens =
      index_names(parts_.names, [this](TokenId id) { return in_model_[static_cast<size_t>(id)]; });
  SLUICE_TRY(const MergeList list, merge_list());
  SLUICE_TRY(
      MergeTable table,
      read_merges(list, tokens, RepeatedMerge::kLast, UnknownMerge::kRefused, options.prefix));
  if (is_ranked_) table.merges = ranked_merges(parts_.names, tokens);
  BpeMerges& merges = table.merges;
  if (table.num_repeated > 0) {
    warn_of_file("tokenizer.json",
                 "model.merges",
                 std::to_string(table.num_repeated) + " pairs that come again",
                 "the last of each");
  }
  if (!unknown_name.empty()) options.unknown = tokens.find(unknown_name);
  if (!options.prefix.empty() || !options.suffix.empty()) {
    keep_spelling(pretokenizer);
    auto model = std::make_unique<AffixBpe>(
        std::move(merges), index_names(parts_.names, in_model()), options);
    if (byte_fallback) set_byte_tokens(tokens, *model);
    parts_.model = std::move(model);
    return {};
  }
  if (pretokenizer.is_byte_level && (!byte_fallback || has_all_bytes(tokens))) {
    for (const std::string& name : parts_.names) {
      parts_.spelled.push_back(unspell_bytes(name).value_or(std::string()));
    }
    parts_.model = make_byte_bpe(std::move(merges),
                                 tokens,
                                 parts_.spelled,
                                 in_model(),
                                 options.whole_pieces_first,
                                 options.unknown,
                                 options.fuse_unknown);
    return {};
  }
  keep_spelling(pretokenizer);
  auto model = std::make_unique<CharBpe>(std::move(merges),
                                         CharBpe::Options{options.unknown,
                                                          options.fuse_unknown,
                                                          options.whole_pieces_first,
                                                          static_cast<TokenId>(num_tokens())});
  for (size_t id = 0; id < num_tokens(); ++id) {
    if (in_model_[id]) model->add_token(parts_.names[id], static_cast<TokenId>(id));
  }
  if (byte_fallback) set_byte_tokens(tokens, *model);
  if (options.whole_pieces_first) {
    model->set_whole_pieces(index_names(parts_.names, in_model()));
  }
  parts_.model = std::move(model);
  return {};
}

Expected<void> HfReader::read_unigram(const JsonPretokenizer& pretokenizer) {
  constexpr std::string_view kWhere = "model Unigram";
  keep_spelling(pretokenizer);
  SLUICE_TRY(const bool byte_fallback, json_bool_or(model_, "byte_fallback", kWhere, false));
  SLUICE_TRY(const int64_t unknown, json_integer_or(model_, "unk_id", kWhere, -1));
  const Json& vocab = model_["vocab"];
  if (unknown >= static_cast<int64_t>(vocab.size())) {
    return json_error(kWhere, "\"unk_id\" is outside the vocabulary");
  }
  double lowest = std::numeric_limits<double>::infinity();
  for (const Json& item : vocab) lowest = std::min(lowest, score_as_written(item[1].get<double>()));
  if (!std::isfinite(lowest)) return json_error(kWhere, "a score is not finite");
  auto model = std::make_unique<Unigram>(Unigram::Options{
      unknown < 0 ? kInvalidToken : static_cast<TokenId>(unknown), lowest - kUnknownPenalty});
  TokenTable tokens(parts_.names);
  for (size_t id = vocab.size(); id-- > 0;) {
    const auto token = static_cast<TokenId>(id);
    if (parts_.names[id].empty()) continue;
    if (!tokens.insert(token)) {
      // The package takes the last as well.
      const TokenId last = tokens.find(parts_.names[id]);
      warn_of_file("tokenizer.json",
                   "model.vocab",
                   "the text of token " + std::to_string(last) + " for token " + std::to_string(id),
                   "token " + std::to_string(last) + " in encoding");
      continue;
    }
    if (in_model()(token)) {
      model->add_token(parts_.names[id], token, score_as_written(vocab[id][1].get<double>()));
    }
  }
  model->build();
  if (byte_fallback) set_byte_tokens(tokens, *model);
  parts_.model = std::move(model);
  return {};
}

Expected<void> HfReader::read_words(const JsonPretokenizer& pretokenizer) {
  const std::string where = "model " + type_;
  const bool is_level = type_ == "WordLevel";
  keep_spelling(pretokenizer);
  SLUICE_TRY(const std::string unknown_name,
             json_string_or(model_, "unk_token", where, is_level ? "<unk>" : "[UNK]"));
  const TokenId unknown = index_names(parts_.names, [this](TokenId id) {
                            return in_model_[static_cast<size_t>(id)];
                          }).find(unknown_name);
  // The package fails only at the first such word.
  if (unknown == kInvalidToken) {
    return json_error(where, "unk_token \"" + unknown_name + "\" is not in the vocabulary");
  }
  if (is_level) {
    parts_.model = std::make_unique<WordLevel>(index_names(parts_.names, in_model()), unknown);
    return {};
  }
  WordPiece::Options options{.prefix = "##", .unknown = unknown};
  SLUICE_TRY(options.prefix,
             json_string_or(model_, "continuing_subword_prefix", where, options.prefix));
  SLUICE_TRY(const int64_t max_characters,
             json_integer_or(model_, "max_input_chars_per_word", where, 100));
  options.max_characters = static_cast<size_t>(std::max<int64_t>(max_characters, 0));
  auto model = std::make_unique<WordPiece>(options);
  for (size_t id = 0; id < num_tokens(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!parts_.names[id].empty() && in_model()(token)) model->add_token(parts_.names[id], token);
  }
  model->build();
  parts_.model = std::move(model);
  return {};
}

Expected<void> HfReader::read_model(const JsonPretokenizer& pretokenizer) {
  if (type_ == "BPE") return read_bpe(pretokenizer);
  return type_ == "Unigram" ? read_unigram(pretokenizer) : read_words(pretokenizer);
}

TokenId HfReader::find_name(std::string_view name) const {
  if (name.empty()) return kInvalidToken;
  const auto at = std::find(parts_.names.begin(), parts_.names.end(), name);
  return at == parts_.names.end() ? kInvalidToken : static_cast<TokenId>(at - parts_.names.begin());
}

// Returns the text of a name, "<s>", or of an added token, {"content": "<s>"}.
Expected<std::string> token_text(const Json& field) {
  if (field.is_string()) return field.get<std::string>();
  return json_string(field, "content", "tokenizer_config.json");
}

Expected<TokenId> HfReader::special_token(const Json& config, std::string_view key) const {
  const Json* field = json_field(config, key);
  if (field == nullptr) return kInvalidToken;
  SLUICE_TRY(const std::string text, token_text(*field));
  return find_name(text);
}

// A name without a token has no effect.
void HfReader::add_named(const std::string& name, const Json* field) {
  if (field == nullptr) return;
  if (auto text = token_text(*field)) parts_.named.push_back({name, std::move(*text)});
}

// An id without a token counts as absent.
void HfReader::add_end(int64_t id, const std::string& file) {
  if (id >= 0 && id < static_cast<int64_t>(num_tokens())) {
    parts_.more_ends.push_back(static_cast<TokenId>(id));
  } else {
    warn_of_file(file, "eos_token_id", std::to_string(id), "not given");
  }
}

// Reads the model's generation_config.json; wrong values there leave the other files' ids in place.
void HfReader::add_ends_of_generation(std::string_view text) {
  constexpr const char* kFile = "generation_config.json";
  constexpr size_t kMaxShown = 60;  // characters of a value in a warning
  const Expected<Json> config = parse_file(json_without_nan(text, ""), kFile);
  if (!config) {
    warn_of_file(kFile, "eos_token_id", config.error().message, "not given");
    return;
  }
  const Json* field = json_field(*config, "eos_token_id");
  if (field == nullptr) return;
  const Json list = field->is_array() ? *field : Json::array({*field});
  for (const Json& id : list) {
    if (const std::optional<int64_t> token = json_whole_number(id)) {
      add_end(*token, kFile);
    } else {
      const std::string found = id.dump(-1, ' ', true, Json::error_handler_t::replace);
      warn_of_file(kFile, "eos_token_id", found.substr(0, kMaxShown), "not given");
    }
  }
}

// Reads eos_token_id: an id or a list of ids.
Expected<void> HfReader::add_ends(const Json& config, const std::string& file) {
  const Json* field = json_field(config, "eos_token_id");
  if (field == nullptr) return {};
  const Json list = field->is_array() ? *field : Json::array({*field});
  for (const Json& id : list) {
    const std::optional<int64_t> token = json_whole_number(id);
    if (!token) {
      return make_error(ErrorCode::kDataLoss, file + ": \"eos_token_id\" has to hold integers");
    }
    add_end(*token, file);
  }
  return {};
}

Expected<void> HfReader::read_special_tokens(const HfTokenizerFiles& files) {
  constexpr std::string_view kWhere = "tokenizer_config.json";
  SLUICE_TRY(const Json tokenizer,
             parse_file(json_without_nan(files.tokenizer_config, kWhere), kWhere));
  SLUICE_TRY(const Json config, parse_file(json_without_nan(files.config, ""), "config.json"));
  warn_of_mistral_pattern(json_, config);
  SLUICE_TRY(parts_.bos, special_token(tokenizer, "bos_token"));
  SLUICE_TRY(parts_.eos, special_token(tokenizer, "eos_token"));
  for (const char* name : {"unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    add_named(name, json_field(tokenizer, name));
  }
  // Extra names, as {"image_token": "<image>"}; a list has no names.
  if (const Json extra = section_of(tokenizer, "extra_special_tokens"); extra.is_object()) {
    for (const auto& [name, field] : extra.items()) add_named(name, &field);
  }
  SLUICE_TRY_VOID(add_ends(config, "config.json"));
  if (const Json* const text = text_config_of(config)) {
    SLUICE_TRY_VOID(add_ends(*text, "config.json"));
  }
  add_ends_of_generation(files.generation_config);
  if (parts_.bos == kInvalidToken && !parts_.prefix.empty()) parts_.bos = parts_.prefix.front();
  if (parts_.eos == kInvalidToken && !parts_.more_ends.empty()) {
    parts_.eos = parts_.more_ends.front();
  }
  // Classes for SentencePiece models add these tokens by their own flags, whatever tokenizer.json
  // says.
  SLUICE_TRY(const std::string kind, json_string_or(tokenizer, "tokenizer_class", kWhere, ""));
  const bool own_flags = kind.starts_with("Llama") || kind.starts_with("Gemma");
  if (own_flags && json_field(tokenizer, "add_bos_token") != nullptr) {
    SLUICE_TRY(const bool add, json_bool_or(tokenizer, "add_bos_token", kWhere, false));
    parts_.prefix.clear();
    if (add && parts_.bos != kInvalidToken) parts_.prefix.push_back(parts_.bos);
  }
  if (own_flags && json_field(tokenizer, "add_eos_token") != nullptr) {
    SLUICE_TRY(const bool add, json_bool_or(tokenizer, "add_eos_token", kWhere, false));
    parts_.suffix.clear();
    if (add && parts_.eos != kInvalidToken) parts_.suffix.push_back(parts_.eos);
  }
  return {};
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> create_hf_tokenizer(const HfTokenizerFiles& files) {
  const bool is_ranked = files.tokenizer_json.empty() && !files.ranks.empty();
  SLUICE_TRY(Json json, parse_file(files.tokenizer_json, "tokenizer.json"));
  if (is_ranked) {
    SLUICE_TRY(const Json config,
               parse_file(json_without_nan(files.tokenizer_config, ""), "tokenizer_config.json"));
    SLUICE_TRY(json, read_tiktoken(files.ranks, config));
  }
  HfReader reader(std::move(json), is_ranked);
  SLUICE_TRY_VOID(reader.read(files));
  return create_pipeline(reader.take());
}

}  // namespace sluice
