// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/log.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/gguf.h"
#include "engine/weights/gguf_parse.h"

namespace sluice {
namespace {

// Bounds what a file of empty strings can make us allocate; the largest vocabularies are 2^18.
constexpr uint64_t kMaxTokens = 1 << 22;

tl::unexpected<Error> wrong(const GgufFile& file,
                            std::string_view key,
                            const std::string& found,
                            const std::string& expected) {
  return make_error(
      ErrorCode::kDataLoss,
      file.path() + ": metadata " + in_quotes(key) + ": found " + found + ", expected " + expected);
}

bool is_integer(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kUint16:
    case GgufType::kInt16:
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kUint64:
    case GgufType::kInt64:
      return true;
    default:
      return false;
  }
}

bool is_float(GgufType type) { return type == GgufType::kFloat32 || type == GgufType::kFloat64; }

bool is_string(GgufType type) { return type == GgufType::kString; }

// Returns the array at `key`, checked for its element type; null where the key is absent.
Expected<const GgufArray*> find_array(const GgufFile& file,
                                      std::string_view key,
                                      bool (*accepts)(GgufType),
                                      const char* expected) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr) return wrong(file, key, std::string(to_string(value->type)), expected);
  if (array->count > 0 && !accepts(array->element_type)) {
    return wrong(file, key, "array of " + std::string(to_string(array->element_type)), expected);
  }
  if (array->count > kMaxTokens) {
    return wrong(file,
                 key,
                 std::to_string(array->count) + " elements",
                 "at most " + std::to_string(kMaxTokens));
  }
  return array;
}

// Returns such an array with one element per token.
Expected<const GgufArray*> find_token_array(const GgufFile& file,
                                            std::string_view key,
                                            bool (*accepts)(GgufType),
                                            const char* expected,
                                            size_t num_tokens) {
  SLUICE_TRY(const GgufArray* array, find_array(file, key, accepts, expected));
  if (array != nullptr && array->size() != num_tokens) {
    return wrong(file,
                 key,
                 std::to_string(array->size()) + " elements",
                 "one per token: " + std::to_string(num_tokens));
  }
  return array;
}

Expected<void> read_tokens(const GgufFile& file, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  SLUICE_TRY(const GgufArray* array, find_array(file, kKey, is_string, "array of string"));
  if (array == nullptr) return wrong(file, kKey, "no such key", "array of string");
  if (array->count == 0) return wrong(file, kKey, "0 tokens", "at least 1");
  const auto views = array->strings();
  vocabulary.tokens.assign(views.begin(), views.end());
  return {};
}

Expected<void> read_token_types(const GgufFile& file, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  SLUICE_TRY(const GgufArray* any, find_array(file, kKey, is_integer, "array of integer"));
  if (any != nullptr && any->count == 0) {
    warn_of_file(file.path(), kKey, "0 elements", "type 1 for each token");
    return {};
  }
  SLUICE_TRY(
      const GgufArray* array,
      find_token_array(file, kKey, is_integer, "array of integer", vocabulary.tokens.size()));
  if (array == nullptr) return {};
  vocabulary.token_types.reserve(array->size());
  size_t num_undefined = 0;
  for (size_t i = 0; i < array->size(); ++i) {
    const double type = array->number(i);
    // GGUF calls type 0 undefined; converters that know no types write it for every token.
    const bool is_undefined = type < 1 || type > 6;
    if (is_undefined && num_undefined++ == 0) {
      warn_of_file(file.path(),
                   kKey,
                   "type " + number_text(type) + " for token " + std::to_string(i),
                   "type 1, as of all others of no type from 1 to 6");
    }
    vocabulary.token_types.push_back(is_undefined ? TokenType::kNormal
                                                  : static_cast<TokenType>(static_cast<int>(type)));
  }
  return {};
}

Expected<void> read_scores(const GgufFile& file, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  SLUICE_TRY(const GgufArray* array,
             find_token_array(file, kKey, is_float, "array of float", vocabulary.tokens.size()));
  if (array == nullptr) return {};
  vocabulary.scores.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const double score = array->number(i);
    // Tokens are sorted by score, and NaN has no order.
    if (!(std::fabs(score) <= std::numeric_limits<float>::max())) {
      return wrong(
          file, kKey, number_text(score) + " for token " + std::to_string(i), "a finite float");
    }
    vocabulary.scores.push_back(static_cast<float>(score));
  }
  return {};
}

Expected<void> read_charsmap(const GgufFile& file, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.precompiled_charsmap";
  SLUICE_TRY(const GgufArray* array, find_array(file, kKey, is_integer, "array of integer"));
  if (array == nullptr) return {};
  vocabulary.precompiled_charsmap.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const auto byte = static_cast<int64_t>(array->number(i));
    vocabulary.precompiled_charsmap += static_cast<char>(byte & 0xFF);
  }
  return {};
}

// Whether a normal token has several characters, which only merges make.
bool has_merged_token(const Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const bool is_normal =
        vocabulary.token_types.empty() || vocabulary.token_types[i] == TokenType::kNormal;
    const auto is_start = [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80U; };
    if (is_normal && std::ranges::count_if(vocabulary.tokens[i], is_start) > 1) return true;
  }
  return false;
}

Expected<void> read_merges(const GgufFile& file, Vocabulary& vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.merges";
  SLUICE_TRY(const GgufArray* array, find_array(file, kKey, is_string, "array of string"));
  if (array == nullptr || array->count == 0) {
    if (!has_merged_token(vocabulary)) return {};
    return wrong(file,
                 kKey,
                 array == nullptr ? "no such key" : "0 merges",
                 "those that make the vocabulary's tokens of several characters");
  }
  const auto views = array->strings();
  vocabulary.merges.assign(views.begin(), views.end());
  return {};
}

// Reads an id; one that no token has counts as absent: converters write -1 or its 32 bits for
// "none". `is_written`: the token begins or ends every text and must exist.
Expected<TokenId> read_id(const GgufFile& file,
                          std::string_view key,
                          size_t num_tokens,
                          bool is_written = false) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return kInvalidToken;
  const auto* with_sign = std::get_if<int64_t>(&value->value);
  std::string found;
  if (with_sign != nullptr && *with_sign < 0) {
    found = std::to_string(*with_sign);
  } else {
    SLUICE_TRY(const uint64_t id, file.get_uint(key));
    if (id < num_tokens) return static_cast<TokenId>(id);
    found = std::to_string(id);
  }
  if (is_written) return wrong(file, key, found, "an id below " + std::to_string(num_tokens));
  warn_of_file(file.path(), key, found, "not given");
  return kInvalidToken;
}

constexpr std::string_view kBeginKey = "tokenizer.ggml.bos_token_id";
constexpr std::string_view kEndKey = "tokenizer.ggml.eos_token_id";

// Encoders enclose texts in tokens with keys of their own, if a file has these.
std::string_view id_key(const GgufFile& file,
                        bool is_encoder,
                        std::string_view own,
                        std::string_view usual) {
  return is_encoder && file.find(own) != nullptr ? own : usual;
}

// Returns a key that early converters do not write; none: it is not there.
Expected<std::optional<bool>> read_flag(const GgufFile& file, std::string_view key) {
  if (file.find(key) == nullptr) return std::optional<bool>();
  return file.get_bool_or(key, false).map([](bool value) { return std::optional(value); });
}

// `spec`: the file's family; null: none has it.
Expected<void> read_special(const GgufFile& file, const FileSpec* spec, Vocabulary& vocabulary) {
  // Absent keys mean the default of the tokenizer's kind.
  const std::optional<TokenizerKind> kind = tokenizer_kind(vocabulary);
  const bool is_scored_bpe = kind == TokenizerKind::kScoredBpe;
  const bool is_unigram = kind == TokenizerKind::kUnigram;
  const bool is_bert = kind == TokenizerKind::kWordPiece;
  // Files of XLM-R that early converters wrote do not say that texts begin with <s>, whose state is
  // the vector of many. T5 has such vocabularies too.
  const bool is_xlm_roberta = is_unigram && spec != nullptr && spec->is_encoder;
  const bool is_encoder = is_bert || is_xlm_roberta;
  const bool begins = is_scored_bpe || kind == TokenizerKind::kCharBpe || is_encoder ||
                      begins_with_bos(vocabulary.pre);
  SLUICE_TRY(vocabulary.add_bos, file.get_bool_or("tokenizer.ggml.add_bos_token", begins));
  SLUICE_TRY(vocabulary.add_eos,
             file.get_bool_or("tokenizer.ggml.add_eos_token", is_unigram || is_bert));
  SLUICE_TRY(vocabulary.add_space_prefix,
             file.get_bool_or("tokenizer.ggml.add_space_prefix", is_scored_bpe || is_unigram));
  SLUICE_TRY(vocabulary.remove_extra_whitespaces,
             file.get_bool_or("tokenizer.ggml.remove_extra_whitespaces", false));
  if (is_bert) {
    SLUICE_TRY(vocabulary.lowercases, read_flag(file, "tokenizer.ggml.normalizer.lowercase"));
    SLUICE_TRY(vocabulary.strips_accents,
               read_flag(file, "tokenizer.ggml.normalizer.strip_accents"));
  }
  const size_t num_tokens = vocabulary.tokens.size();
  const std::string_view begin = id_key(file, is_encoder, "tokenizer.ggml.cls_token_id", kBeginKey);
  const std::string_view end = id_key(file, is_encoder, "tokenizer.ggml.seperator_token_id", kEndKey);
  SLUICE_TRY(vocabulary.bos, read_id(file, begin, num_tokens, vocabulary.add_bos));
  SLUICE_TRY(vocabulary.eos, read_id(file, end, num_tokens, vocabulary.add_eos));
  SLUICE_TRY(vocabulary.eot, read_id(file, "tokenizer.ggml.eot_token_id", num_tokens));
  SLUICE_TRY(vocabulary.eom, read_id(file, "tokenizer.ggml.eom_token_id", num_tokens));
  SLUICE_TRY(vocabulary.unknown, read_id(file, "tokenizer.ggml.unknown_token_id", num_tokens));
  SLUICE_TRY(vocabulary.padding, read_id(file, "tokenizer.ggml.padding_token_id", num_tokens));
  return {};
}

}  // namespace

Expected<Vocabulary> read_vocabulary(const GgufFile& file) {
  Vocabulary vocabulary;
  vocabulary.file = file.path();
  SLUICE_TRY(vocabulary.model, file.get_string("tokenizer.ggml.model"));
  if (file.find("tokenizer.ggml.pre") != nullptr) {
    SLUICE_TRY(vocabulary.pre, file.get_string("tokenizer.ggml.pre"));
  }
  // Ollama's files name few pre-tokenizers.
  const bool is_unnamed = vocabulary.pre.empty() || vocabulary.pre == "default";
  const FileSpec* spec = find_gguf_spec(file.get_string("general.architecture").value_or(""));
  if (is_unnamed && vocabulary.model == "gpt2" && spec != nullptr &&
      !spec->usual_pretokenizer.empty()) {
    vocabulary.pre = spec->usual_pretokenizer;
  }
  const std::optional<TokenizerKind> kind = tokenizer_kind(vocabulary);
  SLUICE_TRY_VOID(read_tokens(file, vocabulary));
  SLUICE_TRY_VOID(read_token_types(file, vocabulary));
  // Each kind of tokenizer but WordPiece needs either merges or scores.
  if (kind == TokenizerKind::kByteBpe || kind == TokenizerKind::kCharBpe) {
    SLUICE_TRY_VOID(read_merges(file, vocabulary));
  } else if (kind != TokenizerKind::kWordPiece) {
    SLUICE_TRY_VOID(read_scores(file, vocabulary));
  }
  if (kind == TokenizerKind::kUnigram) SLUICE_TRY_VOID(read_charsmap(file, vocabulary));
  SLUICE_TRY_VOID(read_special(file, spec, vocabulary));
  return vocabulary;
}

}  // namespace sluice
