// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/bpe_tokenizer.h"

#include <limits>
#include <utility>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/byte_level.h"
#include "engine/tokenizer/end_tokens.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/special_tokens.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/utf8.h"
#include "engine/tokenizer/word_cache.h"

namespace sluice {
namespace {

tl::unexpected<Error> bad_vocabulary(std::string message) {
  return make_error(ErrorCode::kDataLoss, "tokenizer vocabulary: " + std::move(message));
}

std::string name_and_id(const Vocabulary& vocabulary, TokenId id) {
  return "\"" + vocabulary.tokens[id] + "\" (id " + std::to_string(id) + ")";
}

bool is_control(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

class BpeTokenizer final : public Tokenizer {
 public:
  BpeTokenizer(Vocabulary vocabulary, std::unique_ptr<Pretokenizer> pretokenizer)
      : vocabulary_(std::move(vocabulary)),
        pretokenizer_(std::move(pretokenizer)),
        names_(vocabulary_.tokens.size()),
        words_(pretokenizer_->whole_words_first() ? vocabulary_.tokens.size() : 0),
        merges_(vocabulary_.merges.size()) {}

  // Fills the tables; call once, before anything else.
  Expected<void> build() {
    SLUICE_TRY_VOID(add_tokens());
    for (int byte = 0; byte < 256; ++byte) {
      const TokenId token = names_.find(spell_byte(static_cast<uint8_t>(byte)));
      if (token == kInvalidToken || type_of(token) != TokenType::kNormal) continue;
      merges_.set_byte_token(static_cast<uint8_t>(byte), token);
    }
    SLUICE_TRY_VOID(add_merges());
    end_tokens_ = find_end_tokens(vocabulary_, *this);
    return {};
  }

  void encode(std::string_view text,
              SpecialText special,
              std::vector<TokenId>& out) const override {
    const TextRange whole{0, text.size()};
    if (special == SpecialText::kText) {
      encode_marked(text, {&whole, 1}, out);
    } else {
      encode_marked(text, {}, out);
    }
  }

  void encode_marked(std::string_view text,
                     std::span<const TextRange> literal_ranges,
                     std::vector<TokenId>& out) const override;

  [[nodiscard]] std::string_view token_bytes(TokenId id) const override {
    return is_token(id) ? bytes_[id] : std::string_view();
  }

  [[nodiscard]] bool is_special(TokenId id) const override {
    return is_token(id) && is_control(type_of(id));
  }

  [[nodiscard]] TokenId find_token(std::string_view name) const override {
    return names_.find(name);
  }

  [[nodiscard]] int32_t vocab_size() const override {
    return static_cast<int32_t>(vocabulary_.tokens.size());
  }

  [[nodiscard]] TokenId bos() const override { return vocabulary_.bos; }

  [[nodiscard]] bool add_bos() const override { return vocabulary_.add_bos; }

  [[nodiscard]] const std::vector<TokenId>& end_tokens() const override { return end_tokens_; }

  [[nodiscard]] std::string_view bos_text() const override { return name_of(vocabulary_.bos); }

  [[nodiscard]] std::string_view eos_text() const override { return name_of(vocabulary_.eos); }

 private:
  // One call of encode.
  struct Job {
    explicit Job(size_t text_bytes, std::vector<TokenId>& tokens)
        : cache(text_bytes), out(tokens) {}

    WordCache cache;
    Pretokenizer::Scratch pieces;
    BpeMerges::Scratch merging;
    std::vector<TokenId>& out;
  };

  Expected<void> add_tokens();
  Expected<void> add_merges();
  void encode_plain(std::string_view text, Job& job) const;
  void encode_valid(std::string_view text, Job& job) const;
  void encode_word(std::string_view word, Job& job) const;

  [[nodiscard]] bool is_token(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < vocabulary_.tokens.size();
  }

  [[nodiscard]] TokenType type_of(TokenId id) const {
    return vocabulary_.token_types.empty() ? TokenType::kNormal : vocabulary_.token_types[id];
  }

  [[nodiscard]] std::string_view name_of(TokenId id) const {
    return is_token(id) ? std::string_view(vocabulary_.tokens[id]) : std::string_view();
  }

  Vocabulary vocabulary_;
  std::unique_ptr<Pretokenizer> pretokenizer_;
  TokenTable names_;  // by the file's spelling
  TokenTable words_;  // by bytes, where whole words go first
  BpeMerges merges_;
  SpecialTokens special_tokens_;
  std::string byte_storage_;             // bytes_ of normal tokens
  std::vector<std::string_view> bytes_;  // by id
  std::vector<TokenId> end_tokens_;
};

Expected<void> BpeTokenizer::add_tokens() {
  const auto count = static_cast<TokenId>(vocabulary_.tokens.size());
  std::vector<std::pair<size_t, size_t>> ranges(count);  // of byte_storage_
  for (TokenId id = 0; id < count; ++id) {
    const std::string& name = vocabulary_.tokens[id];
    if (!names_.insert(name, id)) {
      return bad_vocabulary("token " + name_and_id(vocabulary_, id) + " is there twice");
    }
    const TokenType type = type_of(id);
    if ((is_control(type) || type == TokenType::kUserDefined) && !name.empty()) {
      if (name.size() > SpecialTokens::kMaxNameBytes) {
        return bad_vocabulary("special token " + std::to_string(id) + " has " +
                              std::to_string(name.size()) + " bytes, at most " +
                              std::to_string(SpecialTokens::kMaxNameBytes) + " are allowed");
      }
      special_tokens_.add(name, id, is_control(type));
    }
    // Special tokens and what is not spelled in the byte alphabet stand for their own name.
    std::optional<std::string> bytes;
    if (type == TokenType::kNormal) bytes = unspell_bytes(name);
    ranges[id].first = byte_storage_.size();
    byte_storage_ += bytes ? *bytes : name;
    ranges[id].second = byte_storage_.size();
  }
  bytes_.resize(count);
  for (TokenId id = 0; id < count; ++id) {
    const auto [begin, end] = ranges[id];
    bytes_[id] = std::string_view(byte_storage_).substr(begin, end - begin);
    if (pretokenizer_->whole_words_first() && type_of(id) == TokenType::kNormal) {
      words_.insert(bytes_[id], id);
    }
  }
  return {};
}

Expected<void> BpeTokenizer::add_merges() {
  std::string joined;
  for (size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
    const std::string_view merge = vocabulary_.merges[rank];
    const auto bad_merge = [&](const char* what) {
      return bad_vocabulary("merge " + std::to_string(rank) + " \"" + std::string(merge) + "\" " +
                            what);
    };
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return bad_merge("is not two tokens with a space between them");
    }
    const TokenId left = names_.find(merge.substr(0, space));
    const TokenId right = names_.find(merge.substr(space + 1));
    joined.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const TokenId merged = names_.find(joined);
    if (left == kInvalidToken || right == kInvalidToken || merged == kInvalidToken) {
      return bad_merge("names a token that the vocabulary lacks");
    }
    if (!merges_.add(left, right, static_cast<uint32_t>(rank), merged)) {
      return bad_merge("is there twice");
    }
  }
  return {};
}

void BpeTokenizer::encode_marked(std::string_view text,
                                 std::span<const TextRange> literal_ranges,
                                 std::vector<TokenId>& out) const {
  Job job(text.size(), out);
  size_t plain_begin = 0;
  size_t range_idx = 0;
  for (size_t position = special_tokens_.next_candidate(text, 0); position < text.size();
       position = special_tokens_.next_candidate(text, position)) {
    while (range_idx < literal_ranges.size() &&
           (literal_ranges[range_idx].end <= position ||
            literal_ranges[range_idx].begin >= literal_ranges[range_idx].end)) {
      ++range_idx;
    }
    // A control token has to end before the next literal range; inside one it has no room at all.
    const size_t control_end =
        range_idx == literal_ranges.size() ? text.size() : literal_ranges[range_idx].begin;
    const SpecialTokens::Match match = special_tokens_.match_at(text, position, control_end);
    if (match.token == kInvalidToken) {
      ++position;
      continue;
    }
    encode_plain(text.substr(plain_begin, match.begin - plain_begin), job);
    out.push_back(match.token);
    position = plain_begin = match.end;
  }
  encode_plain(text.substr(plain_begin), job);
}

void BpeTokenizer::encode_plain(std::string_view text, Job& job) const {
  for (size_t position = 0; position < text.size();) {
    const size_t invalid = find_invalid_utf8(text, position);
    encode_valid(text.substr(position, invalid - position), job);
    // A run of bytes that are no characters is one piece.
    position = invalid;
    while (position < text.size()) {
      const Utf8Part part = next_utf8_part(text, position);
      if (part.kind == Utf8Kind::kCharacter) break;
      position += part.length;
    }
    encode_word(text.substr(invalid, position - invalid), job);
  }
}

void BpeTokenizer::encode_valid(std::string_view text, Job& job) const {
  pretokenizer_->split(text, job.pieces);
  size_t begin = 0;
  for (const size_t end : job.pieces.ends) {
    encode_word(text.substr(begin, end - begin), job);
    begin = end;
  }
}

void BpeTokenizer::encode_word(std::string_view word, Job& job) const {
  size_t slot = 0;
  if (word.empty() || job.cache.append_known(word, job.out, slot)) return;
  const size_t first = job.out.size();
  const TokenId whole = pretokenizer_->whole_words_first() ? words_.find(word) : kInvalidToken;
  if (whole != kInvalidToken) {
    job.out.push_back(whole);
  } else {
    merges_.encode_word(word, job.merging, job.out);
  }
  job.cache.remember(slot, word, first, job.out.size() - first);
}

Expected<void> check_vocabulary(const Vocabulary& vocabulary) {
  const size_t count = vocabulary.tokens.size();
  if (count == 0) return bad_vocabulary("it has no tokens");
  if (count > std::numeric_limits<TokenId>::max() ||
      vocabulary.merges.size() >= std::numeric_limits<uint32_t>::max()) {
    return bad_vocabulary("it has more tokens or merges than ids can count");
  }
  if (!vocabulary.token_types.empty() && vocabulary.token_types.size() != count) {
    return bad_vocabulary("it has " + std::to_string(count) + " tokens and " +
                          std::to_string(vocabulary.token_types.size()) + " token types");
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

}  // namespace

Expected<std::unique_ptr<Tokenizer>> create_bpe_tokenizer(Vocabulary vocabulary) {
  SLUICE_TRY_VOID(check_vocabulary(vocabulary));
  SLUICE_TRY(auto pretokenizer, Pretokenizer::create(vocabulary.pre));
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(vocabulary), std::move(pretokenizer));
  SLUICE_TRY_VOID(tokenizer->build());
  return tokenizer;
}

}  // namespace sluice
