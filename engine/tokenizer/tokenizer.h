// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back. Immutable after loading, so any thread may use an instance.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

// GGUF's token types (tokenizer.ggml.token_type).
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// How a vocabulary's texts become tokens.
enum class TokenizerKind : uint8_t {
  kByteBpe,    // merges over the characters that stand for bytes
  kScoredBpe,  // SentencePiece's: of all adjacent pairs the one whose token has the best score
  kCharBpe,    // merges over characters
  kUnigram,
  kWordPiece,
};

// The vocabulary as a model file states it; engine/weights fills it, create_tokenizer checks it.
struct Vocabulary {
  std::string file;                    // source file, for warnings
  std::string model;                   // tokenizer.ggml.model: "gpt2", "llama", ...
  std::string pre;                     // tokenizer.ggml.pre: "smollm", "llama-bpe", ...
  std::vector<std::string> tokens;     // by id, in the file's spelling (byte-level BPE: mapped)
  std::vector<TokenType> token_types;  // by id; empty: all normal
  std::vector<float> scores;           // by id; for SentencePiece models
  // SentencePiece's compiled normalization rules (a double-array trie and its strings), or empty.
  std::string precompiled_charsmap;
  std::vector<std::string> merges;  // "left right", by rank
  TokenId bos = kInvalidToken;
  TokenId eos = kInvalidToken;
  TokenId eot = kInvalidToken;  // end of turn, if it differs from eos
  TokenId eom = kInvalidToken;  // end of a message that calls tools, if it differs from both
  TokenId unknown = kInvalidToken;
  TokenId padding = kInvalidToken;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  bool remove_extra_whitespaces = false;  // for unigram models: runs of spaces become one
  // For WordPiece; none: what its tokens show, and as letters are made lower case.
  std::optional<bool> lowercases = {};
  std::optional<bool> strips_accents = {};
};

// Returns the kind that `model` and `pre` name; empty: one that is not supported.
std::optional<TokenizerKind> tokenizer_kind(const Vocabulary& vocabulary);

// Whether strings such as "<|im_end|>" become their token or stay text. Prompts of completions are
// parsed; contents of chat messages stay text, see encode_marked().
enum class SpecialText : uint8_t { kText, kParse };

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// A special token by its use, as in transformers' special_tokens_map.
struct NamedToken {
  std::string name;  // "pad_token"
  std::string text;  // "<pad>"
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` (any bytes; a run of invalid UTF-8 is a separate piece). No BOS is
  // added. User-defined tokens are found in both modes, control tokens only by kParse: leftmost
  // first, then longest. A byte without a token is left out. kInvalidArgument names an expression
  // of the tokenizer's files that takes far too long with this text (see Regex::Scanner): what is
  // appended then counts for nothing.
  virtual Expected<void> encode(std::string_view text,
                                SpecialText special,
                                std::vector<TokenId>& out) const = 0;

  // Encodes like kParse, but finds control tokens only where they are entirely outside
  // `literal_ranges` (ascending, disjoint): user text inside a rendered template. The text is
  // tokenized as a whole, so ids at the borders are those of the whole string. Fails like encode().
  virtual Expected<void> encode_marked(std::string_view text,
                                       std::span<const TextRange> literal_ranges,
                                       std::vector<TokenId>& out) const = 0;

  // Returns the bytes of a token, possibly a part of a character. Control tokens give their name;
  // ids out of range give an empty view.
  [[nodiscard]] virtual std::string_view token_bytes(TokenId id) const = 0;
  // Whether skip_special_tokens hides the token.
  [[nodiscard]] virtual bool is_special(TokenId id) const = 0;
  // Returns the id of a token by its exact name ("<|im_end|>"), or kInvalidToken.
  [[nodiscard]] virtual TokenId find_token(std::string_view name) const = 0;

  [[nodiscard]] virtual int32_t vocab_size() const = 0;
  [[nodiscard]] virtual TokenId bos() const = 0;   // kInvalidToken: none
  [[nodiscard]] virtual bool add_bos() const = 0;  // completions start with it

  // Tokens before a text to which special tokens are added; suffix_tokens() returns those after it.
  [[nodiscard]] virtual std::vector<TokenId> prefix_tokens() const {
    return add_bos() && bos() != kInvalidToken ? std::vector<TokenId>{bos()}
                                               : std::vector<TokenId>();
  }

  [[nodiscard]] virtual std::vector<TokenId> suffix_tokens() const { return {}; }

  // Tokens between the two texts of a pair, which prefix_tokens() begin and suffix_tokens() end.
  [[nodiscard]] virtual std::vector<TokenId> between_tokens() const { return suffix_tokens(); }

  // True: the first token of a text loses its leading space (SentencePiece).
  [[nodiscard]] virtual bool strips_first_space() const { return false; }

  // Tokens that end a generation (eos, eot, eom and similar ones), ascending.
  [[nodiscard]] virtual const std::vector<TokenId>& end_tokens() const = 0;

  // Replaces the end tokens of config.json and generation_config.json by `ids`; the tokenizer's own
  // (eos, eot, eom, those known by name) stay. Called on the loading thread, before other threads
  // see the tokenizer. kInvalidArgument: an id is outside the vocabulary.
  virtual Expected<void> replace_more_ends(std::vector<TokenId> ids) = 0;

  // Names for chat templates: "bos_token", "eos_token", "unk_token", "pad_token" and others that
  // the tokenizer's files define.
  [[nodiscard]] virtual const std::vector<NamedToken>& named_tokens() const = 0;

  // Returns a token as its file spells it ("\u0120w", "<0x41>"), like transformers'
  // convert_ids_to_tokens. Ids out of range give an empty view.
  [[nodiscard]] virtual std::string_view token_name(TokenId id) const = 0;
};

// kUnsupported names the model or pre-tokenizer found and those supported; kDataLoss: the
// vocabulary contradicts itself (an id out of range). Several tokens may share a text; a warning
// says which one encoding yields. Merges that can never apply are left out, and a byte-level
// vocabulary without `pre` is split as "default" says, with a warning each.
[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> create_tokenizer(Vocabulary vocabulary);

}  // namespace sluice
