// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <unordered_set>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/files/bert_stages.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "engine/tokenizer/models/bpe_tables.h"
#include "engine/tokenizer/models/unigram.h"
#include "engine/tokenizer/models/word_models.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";
constexpr std::string_view kInnerPrefix = "##";  // of a WordPiece token inside a word
constexpr double kUnknownPenalty = 10;  // below the lowest score, as in SentencePiece

// Tokens between the files of a text to be completed, and after its last one: llama.cpp ends where
// a model writes one, whatever the file says of them.
constexpr std::string_view kFileEnds[] = {"<|fim_pad|>",
                                          "<fim-pad>",
                                          "<fim_pad>",
                                          "<|fim_repo|>",
                                          "<|repo_name|>",
                                          "<fim-repo>",
                                          "<reponame>",
                                          "<REPO>",
                                          "<|file_sep|>"};

tl::unexpected<Error> bad_vocabulary(std::string message) {
  return make_error(ErrorCode::kDataLoss, "tokenizer vocabulary: " + std::move(message));
}

bool is_control(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

Expected<void> check_vocabulary(const Vocabulary& vocabulary, bool needs_scores) {
  const size_t count = vocabulary.tokens.size();
  if (count == 0) return bad_vocabulary("it has no tokens");
  if (count > std::numeric_limits<TokenId>::max() / 2 ||
      vocabulary.merges.size() >= std::numeric_limits<uint32_t>::max()) {
    return bad_vocabulary("it has more tokens or merges than ids can count");
  }
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    return bad_vocabulary("it has " + std::to_string(count) + " tokens and " +
                          std::to_string(vocabulary.token_types.size()) + " token types");
  }
  if (needs_scores && vocabulary.scores.size() != count) {
    return bad_vocabulary("it has " + std::to_string(count) + " tokens and " +
                          std::to_string(vocabulary.scores.size()) + " scores");
  }
  if (std::any_of(vocabulary.scores.begin(), vocabulary.scores.end(), [](float score) {
        return std::isnan(score);
      })) {
    return bad_vocabulary("a score is no number");
  }
  for (const TokenType type : vocabulary.token_types) {
    if (type < TokenType::kNormal || type > TokenType::kByte) {
      return bad_vocabulary("token type " + std::to_string(static_cast<int>(type)) +
                            " is none of 1 to 6");
    }
  }
  const std::pair<const char*, TokenId> ids[] = {{"bos", vocabulary.bos},
                                                 {"eos", vocabulary.eos},
                                                 {"eot", vocabulary.eot},
                                                 {"eom", vocabulary.eom},
                                                 {"unknown", vocabulary.unknown},
                                                 {"padding", vocabulary.padding}};
  for (const auto& [name, id] : ids) {
    if (id < kInvalidToken || (id >= 0 && static_cast<size_t>(id) >= count)) {
      return bad_vocabulary(std::string(name) + " token id " + std::to_string(id) +
                            " is outside the vocabulary of " + std::to_string(count));
    }
  }
  return {};
}

void warn_of_texts(const Vocabulary& vocabulary) {
  TokenTable names(vocabulary.tokens);
  size_t num_empty = 0;
  size_t num_repeated = 0;
  size_t repeated = 0;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.tokens[id].empty()) {
      ++num_empty;
    } else if (!names.insert(static_cast<TokenId>(id)) && num_repeated++ == 0) {
      repeated = id;
    }
  }
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  if (num_empty > 0) {
    warn_of_file(vocabulary.file, kKey, std::to_string(num_empty) + " empty texts", "no text");
  }
  if (num_repeated == 0) return;
  const std::string& text = vocabulary.tokens[repeated];
  warn_of_file(vocabulary.file,
               kKey,
               std::to_string(num_repeated) +
                   " texts that tokens before have, the first of token " +
                   std::to_string(repeated) + ", " + text.substr(0, 60),
               "the token " + std::to_string(names.find(text)) + " in encoding");
}

class GgufParts {
 public:
  explicit GgufParts(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
    warn_of_texts(vocabulary_);
    if (vocabulary_.token_types.empty()) {
      vocabulary_.token_types.assign(vocabulary_.tokens.size(), TokenType::kNormal);
    }
    parts_.names = std::move(vocabulary_.tokens);
    parts_.bos = vocabulary_.bos;
    parts_.eos = vocabulary_.eos;
    parts_.eot = vocabulary_.eot;
    parts_.eom = vocabulary_.eom;
    if (vocabulary_.add_bos && parts_.bos != kInvalidToken) parts_.prefix.push_back(parts_.bos);
    if (vocabulary_.add_eos && parts_.eos != kInvalidToken) parts_.suffix.push_back(parts_.eos);
    for (const auto& [name, id] :
         {std::pair("unk_token", vocabulary_.unknown), {"pad_token", vocabulary_.padding}}) {
      if (id == kInvalidToken) continue;
      parts_.named.push_back({name, parts_.names[static_cast<size_t>(id)]});
    }
    for (const TokenType type : vocabulary_.token_types) {
      parts_.special.push_back(is_control(type));
    }
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      if (!is_control(type_of(id)) && type_of(id) != TokenType::kUserDefined) continue;
      if (std::ranges::find(kFileEnds, parts_.names[id]) == std::end(kFileEnds)) continue;
      parts_.own_ends.push_back(static_cast<TokenId>(id));
    }
  }

  [[nodiscard]] TokenType type_of(size_t id) const { return vocabulary_.token_types[id]; }

  // Parts the texts of a pair by what ends one, `count` times.
  void put_between(int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      parts_.between.insert(parts_.between.end(), parts_.suffix.begin(), parts_.suffix.end());
    }
  }

  // Adds control and user-defined tokens, which are found in text by name. If a symbol spells
  // spaces, user-defined names with it are found in the spelled text. Among tokens with one name
  // the first is found.
  void add_named_tokens(bool spaces_are_symbols) {
    std::unordered_set<std::string_view> known;
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      const TokenType type = type_of(id);
      const std::string& name = parts_.names[id];
      if ((!is_control(type) && type != TokenType::kUserDefined) || name.empty()) continue;
      if (!known.insert(name).second) continue;
      AddedToken added;
      added.content = name;
      added.id = static_cast<TokenId>(id);
      added.flags.is_control = is_control(type);
      added.in_normalized =
          spaces_are_symbols && !is_control(type) && name.find(kSpaceSymbol) != std::string::npos;
      parts_.added.push_back(std::move(added));
    }
  }

  void fill_byte_level_bytes() {
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      // Special tokens and names outside the byte alphabet represent themselves.
      std::optional<std::string> bytes;
      if (type_of(id) == TokenType::kNormal) bytes = unspell_bytes(parts_.names[id]);
      parts_.bytes.push_back(bytes ? std::move(*bytes) : parts_.names[id]);
    }
  }

  void fill_sentencepiece_bytes() {
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      const int byte = type_of(id) == TokenType::kByte ? byte_of_name(parts_.names[id]) : -1;
      if (byte >= 0) {
        parts_.bytes.emplace_back(1, static_cast<char>(byte));
        TokenId& token = byte_tokens_[static_cast<size_t>(byte)];
        if (token == kInvalidToken) token = static_cast<TokenId>(id);
      } else if (is_control(type_of(id))) {
        parts_.bytes.push_back(parts_.names[id]);
      } else {
        parts_.bytes.push_back(replace_all(parts_.names[id], kSpaceSymbol, " "));
      }
    }
  }

  // Spells WordPiece's tokens as BERT does ("##ing" inside a word) where the file marks a word's
  // first token with a space symbol instead. Names in brackets belong to tokens that no text has.
  void spell_word_pieces() {
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      std::string& name = parts_.names[id];
      const bool in_brackets = name.size() > 2 && name.starts_with('[') && name.ends_with(']');
      if (type_of(id) != TokenType::kNormal || in_brackets || name.empty()) {
        parts_.bytes.push_back(name);
      } else if (name.starts_with(kSpaceSymbol)) {
        name.erase(0, kSpaceSymbol.size());
        parts_.bytes.push_back(" " + name);
      } else {
        parts_.bytes.push_back(name);
        name.insert(0, kInnerPrefix);
      }
    }
    parts_.strips_first_space = true;
  }

  // Whether a normal token has a capital letter: a model whose text is not made lower case.
  [[nodiscard]] bool has_capitals() const {
    for (size_t id = 0; id < parts_.names.size(); ++id) {
      const std::string& name = parts_.names[id];
      if (type_of(id) != TokenType::kNormal || name.starts_with('[')) continue;
      if (std::ranges::any_of(name, [](char c) { return c >= 'A' && c <= 'Z'; })) return true;
    }
    return false;
  }

  // Steps for SentencePiece models: a space in front, and every space as its symbol.
  std::vector<NormalizerStep> space_steps() {
    std::vector<NormalizerStep> steps;
    if (vocabulary_.add_space_prefix) steps.emplace_back(PrependStep{std::string(kSpaceSymbol)});
    steps.emplace_back(ReplaceStep{std::string(" "), std::string(kSpaceSymbol)});
    parts_.strips_first_space = vocabulary_.add_space_prefix;
    return steps;
  }

  // Reads merges without those that can never apply.
  [[nodiscard]] Expected<BpeMerges> read_merges(const TokenTable& names) const {
    constexpr std::string_view kKey = "tokenizer.ggml.merges";
    MergeList list;
    for (const std::string& text : vocabulary_.merges) {
      if (const auto parts = split_merge(text)) list.push_back(*parts);
    }
    SLUICE_TRY(MergeTable table,
               sluice::read_merges(list, names, RepeatedMerge::kFirst, UnknownMerge::kSkipped));
    if (table.num_repeated > 0) {
      warn_of_file(vocabulary_.file,
                   kKey,
                   std::to_string(table.num_repeated) + " pairs that are there before",
                   "the first of each");
    }
    const size_t num_useless = vocabulary_.merges.size() - list.size() + table.num_unknown;
    if (num_useless > 0) {
      warn_of_file(vocabulary_.file,
                   kKey,
                   std::to_string(num_useless) + " that are not two tokens which make a third",
                   "not given");
    }
    return std::move(table.merges);
  }

  // Indexes tokens by text. Among tokens with one text normal ones come before named ones, so that
  // no merge ends in a control token, and then the first counts.
  [[nodiscard]] TokenTable index_texts() const {
    TokenTable table(parts_.names);
    for (const bool normal : {true, false}) {
      for (size_t id = 0; id < parts_.names.size(); ++id) {
        if (parts_.names[id].empty() || (type_of(id) == TokenType::kNormal) != normal) continue;
        table.insert(static_cast<TokenId>(id));
      }
    }
    return table;
  }

  // Selects tokens that arise from text without being named in it.
  [[nodiscard]] std::function<bool(TokenId)> is_normal() const {
    return [types = vocabulary_.token_types](TokenId id) {
      return types[static_cast<size_t>(id)] == TokenType::kNormal;
    };
  }

  Expected<std::unique_ptr<Tokenizer>> create() { return create_pipeline(std::move(parts_)); }

  Vocabulary vocabulary_;
  TokenizerParts parts_;
  std::array<TokenId, 256> byte_tokens_ = filled_with_none();

 private:
  static std::array<TokenId, 256> filled_with_none() {
    std::array<TokenId, 256> tokens{};
    tokens.fill(kInvalidToken);
    return tokens;
  }
};

// Phi-3's control tokens strip the white space after them, for which GGUF has no field.
void add_phi3_flags(TokenizerParts& parts) {
  for (AddedToken& added : parts.added) {
    added.flags.strips_right = added.content != "<unk>" && added.content != "<s>" &&
                               added.content != "<|endoftext|>" && added.flags.is_control;
  }
}

// RoBERTa's and Jina's texts of a pair are two marks apart, ModernBERT's one, decoders' none.
int32_t marks_between(const Vocabulary& vocabulary) {
  constexpr std::string_view kTwo[] = {"roberta-bpe", "jina-v1-en", "jina-v2-code"};
  if (!vocabulary.add_bos) return 0;
  return std::ranges::find(kTwo, vocabulary.pre) != std::end(kTwo) ? 2 : 1;
}

}  // namespace

Expected<std::unique_ptr<Tokenizer>> create_byte_bpe_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary, /*needs_scores=*/false));
  if (vocabulary.pre.empty()) {
    warn_of_file(vocabulary.file, "tokenizer.ggml.pre", "no name", kUsualPretokenizer);
  }
  SLUICE_TRY(auto named, pretokenizer_by_name(vocabulary.pre));
  GgufParts gguf(std::move(vocabulary));
  gguf.add_named_tokens(/*spaces_are_symbols=*/false);
  gguf.fill_byte_level_bytes();
  gguf.parts_.stages = std::move(named.stages);
  gguf.put_between(marks_between(gguf.vocabulary_));
  if (named.nfc) {
    std::vector<NormalizerStep> steps;
    steps.emplace_back(UnicodeFormStep{UnicodeForm::kNfc});
    gguf.parts_.normalizer = Normalizer(std::move(steps));
  }
  const TokenTable names = gguf.index_texts();
  SLUICE_TRY(BpeMerges merges, gguf.read_merges(names));
  gguf.parts_.model = make_byte_bpe(
      std::move(merges), names, gguf.parts_.bytes, gguf.is_normal(), named.whole_words_first);
  return gguf.create();
}

Expected<std::unique_ptr<Tokenizer>> create_sentencepiece_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary, /*needs_scores=*/true));
  GgufParts gguf(std::move(vocabulary));
  gguf.add_named_tokens(/*spaces_are_symbols=*/true);
  gguf.fill_sentencepiece_bytes();
  gguf.parts_.normalizer = Normalizer(gguf.space_steps());
  if (gguf.vocabulary_.pre == "phi-3") add_phi3_flags(gguf.parts_);
  gguf.parts_.model = make_scored_bpe(gguf.parts_.names,
                                      gguf.vocabulary_.scores,
                                      gguf.is_normal(),
                                      gguf.byte_tokens_,
                                      gguf.vocabulary_.unknown);
  return gguf.create();
}

Expected<std::unique_ptr<Tokenizer>> create_char_bpe_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary, /*needs_scores=*/false));
  GgufParts gguf(std::move(vocabulary));
  // Files may omit the type of byte tokens.
  for (size_t id = 0; id < gguf.parts_.names.size(); ++id) {
    if (gguf.type_of(id) == TokenType::kNormal && byte_of_name(gguf.parts_.names[id]) >= 0) {
      gguf.vocabulary_.token_types[id] = TokenType::kByte;
    }
  }
  gguf.add_named_tokens(/*spaces_are_symbols=*/false);
  gguf.fill_sentencepiece_bytes();
  gguf.parts_.normalizer = Normalizer(gguf.space_steps());
  const TokenTable names = gguf.index_texts();
  SLUICE_TRY(BpeMerges merges, gguf.read_merges(names));
  const auto num_tokens = static_cast<TokenId>(gguf.parts_.names.size());
  auto model = std::make_unique<CharBpe>(
      std::move(merges),
      CharBpe::Options{gguf.vocabulary_.unknown, /*fuse_unknown=*/true, false, num_tokens});
  for (TokenId id = 0; id < num_tokens; ++id) {
    const TokenType type = gguf.type_of(static_cast<size_t>(id));
    const std::string& name = gguf.parts_.names[static_cast<size_t>(id)];
    const bool takes_part = type == TokenType::kNormal || type == TokenType::kUserDefined;
    if (takes_part && names.find(name) == id) model->add_token(name, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    model->set_byte_token(static_cast<uint8_t>(byte), gguf.byte_tokens_[byte]);
  }
  gguf.parts_.model = std::move(model);
  return gguf.create();
}

Expected<std::unique_ptr<Tokenizer>> create_word_piece_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary, /*needs_scores=*/false));
  GgufParts gguf(std::move(vocabulary));
  gguf.spell_word_pieces();
  gguf.add_named_tokens(/*spaces_are_symbols=*/false);
  gguf.put_between(1);
  const bool lowercases = gguf.vocabulary_.lowercases.value_or(!gguf.has_capitals());
  const bool strips_accents = gguf.vocabulary_.strips_accents.value_or(lowercases);
  std::vector<NormalizerStep> steps;
  SLUICE_TRY_VOID(
      add_bert_steps({.lowercases = lowercases, .strips_accents = strips_accents}, steps));
  gguf.parts_.normalizer = Normalizer(std::move(steps));
  SLUICE_TRY_VOID(add_bert_stages(gguf.parts_.stages));
  auto model = std::make_unique<WordPiece>(WordPiece::Options{
      .prefix = std::string(kInnerPrefix), .unknown = gguf.vocabulary_.unknown});
  const TokenTable names = gguf.index_texts();
  for (size_t id = 0; id < gguf.parts_.names.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    const std::string& name = gguf.parts_.names[id];
    if (gguf.type_of(id) != TokenType::kUnused && names.find(name) == token) {
      model->add_token(name, token);
    }
  }
  model->build();
  gguf.parts_.model = std::move(model);
  return gguf.create();
}

Expected<std::unique_ptr<Tokenizer>> create_unigram_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary, /*needs_scores=*/true));
  SLUICE_TRY(Charsmap map, Charsmap::parse(vocabulary.precompiled_charsmap));
  GgufParts gguf(std::move(vocabulary));
  gguf.add_named_tokens(/*spaces_are_symbols=*/true);
  // XLM-R's mask takes the spaces before it, for which GGUF has no field.
  for (AddedToken& added : gguf.parts_.added) added.flags.strips_left = added.content == "<mask>";
  gguf.fill_sentencepiece_bytes();
  std::vector<NormalizerStep> steps;
  steps.emplace_back(CharsmapStep{std::move(map)});
  if (gguf.vocabulary_.remove_extra_whitespaces) {
    steps.emplace_back(StripStep{});
    SLUICE_TRY(Regex spaces, Regex::compile(kUnigramSpaces));
    steps.emplace_back(ReplaceStep{std::move(spaces), " "});
  }
  for (NormalizerStep& step : gguf.space_steps()) steps.push_back(std::move(step));
  gguf.parts_.normalizer = Normalizer(std::move(steps));
  // XLM-R's, the only model of pairs with such a vocabulary: </s></s>.
  gguf.put_between(2);
  double lowest = 0;
  for (size_t id = 0; id < gguf.parts_.names.size(); ++id) {
    if (gguf.type_of(id) == TokenType::kNormal) {
      lowest = std::min<double>(lowest, gguf.vocabulary_.scores[id]);
    }
  }
  auto model = std::make_unique<Unigram>(
      Unigram::Options{gguf.vocabulary_.unknown, lowest - kUnknownPenalty});
  const TokenTable names = index_names(gguf.parts_.names, gguf.is_normal());
  for (size_t id = 0; id < gguf.parts_.names.size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (gguf.type_of(id) != TokenType::kNormal || names.find(gguf.parts_.names[id]) != token) {
      continue;
    }
    model->add_token(gguf.parts_.names[id], token, gguf.vocabulary_.scores[id]);
  }
  model->build();
  for (int byte = 0; byte < 256; ++byte) {
    model->set_byte_token(static_cast<uint8_t>(byte), gguf.byte_tokens_[byte]);
  }
  gguf.parts_.model = std::move(model);
  return gguf.create();
}

}  // namespace sluice
