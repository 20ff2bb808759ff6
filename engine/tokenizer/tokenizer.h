// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back. Immutable once a model is loaded, so any thread may use one instance.
#pragma once

#include <cstdint>
#include <memory>
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

// The vocabulary as a model file states it; engine/weights fills it, create_tokenizer checks it.
struct Vocabulary {
  std::string file;                    // that it is from, for warnings
  std::string model;                   // tokenizer.ggml.model: "gpt2", "llama", ...
  std::string pre;                     // tokenizer.ggml.pre: "smollm", "llama-bpe", ...
  std::vector<std::string> tokens;     // by id, in the file's spelling (byte-level BPE: mapped)
  std::vector<TokenType> token_types;  // by id; empty: all normal
  std::vector<float> scores;           // by id; SentencePiece models
  // SentencePiece's compiled normalization rules (a double-array trie and its strings); empty:
  // none.
  std::string precompiled_charsmap;
  std::vector<std::string> merges;  // "left right", by rank
  TokenId bos = kInvalidToken;
  TokenId eos = kInvalidToken;
  TokenId eot = kInvalidToken;  // end of turn, when it differs from eos
  TokenId unknown = kInvalidToken;
  TokenId padding = kInvalidToken;
  bool add_bos = false;
  bool add_eos = false;
  bool add_space_prefix = false;
  bool remove_extra_whitespaces = false;  // unigram models: runs of spaces become one
};

// Whether strings such as "<|im_end|>" become their token or stay text. Prompts of completions are
// parsed; contents of chat messages stay text, see encode_marked.
enum class SpecialText : uint8_t { kText, kParse };

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

// A special token by its use, as transformers' special_tokens_map has it.
struct NamedToken {
  std::string name;  // "pad_token"
  std::string text;  // "<pad>"
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` (any bytes; a run of bytes that are no UTF-8 is a piece of its own).
  // No BOS is added. User-defined tokens are found in both modes, control tokens only by kParse:
  // leftmost first, then longest. A byte for which the vocabulary has no token is left out.
  virtual void encode(std::string_view text,
                      SpecialText special,
                      std::vector<TokenId>& out) const = 0;

  // As kParse, but control tokens are found only where they lie entirely outside `literal_ranges`
  // (ascending, disjoint): what users wrote inside a rendered template. The text is tokenized as
  // one, so ids at the borders are those of the whole string.
  virtual void encode_marked(std::string_view text,
                             std::span<const TextRange> literal_ranges,
                             std::vector<TokenId>& out) const = 0;

  // The bytes a token stands for, possibly part of a character. Control tokens give their name.
  // Ids out of range give an empty view.
  [[nodiscard]] virtual std::string_view token_bytes(TokenId id) const = 0;
  // Hidden from text by skip_special_tokens.
  [[nodiscard]] virtual bool is_special(TokenId id) const = 0;
  // Id of a token by its exact name ("<|im_end|>"), or kInvalidToken.
  [[nodiscard]] virtual TokenId find_token(std::string_view name) const = 0;

  [[nodiscard]] virtual int32_t vocab_size() const = 0;
  [[nodiscard]] virtual TokenId bos() const = 0;   // kInvalidToken: none
  [[nodiscard]] virtual bool add_bos() const = 0;  // completions start with it

  // What stands before and behind a text to which special tokens are added.
  [[nodiscard]] virtual std::vector<TokenId> prefix_tokens() const {
    return add_bos() && bos() != kInvalidToken ? std::vector<TokenId>{bos()}
                                               : std::vector<TokenId>();
  }

  [[nodiscard]] virtual std::vector<TokenId> suffix_tokens() const { return {}; }

  // The first token of a text stands for its bytes less a leading space (SentencePiece).
  [[nodiscard]] virtual bool strips_first_space() const { return false; }

  // Tokens that end a generation (eos, eot and their like), ascending.
  [[nodiscard]] virtual const std::vector<TokenId>& end_tokens() const = 0;

  // Puts `ids` in the place of the end tokens that config.json and generation_config.json gave; the
  // tokenizer's own (eos, eot, those known by name) stay. Called by the thread that loads a model,
  // before others see the tokenizer. kInvalidArgument: an id is outside the vocabulary.
  virtual Expected<void> replace_more_ends(std::vector<TokenId> ids) = 0;

  // For chat templates: "bos_token", "eos_token", "unk_token", "pad_token" and whatever else the
  // tokenizer's files name, those that there are.
  [[nodiscard]] virtual const std::vector<NamedToken>& named_tokens() const = 0;

  // A token as its file spells it ("\u0120w", "<0x41>"), which is what transformers'
  // convert_ids_to_tokens gives. Ids out of range give an empty view.
  [[nodiscard]] virtual std::string_view token_name(TokenId id) const = 0;
};

// kUnsupported names the model or pre-tokenizer found and those supported; kDataLoss: the
// vocabulary contradicts itself (an id out of range). Several tokens may have one text, or none: a
// warning says which of them encoding yields. Merges that can never apply are left out, and a
// byte-level vocabulary without `pre` is split as "default" says, with a warning each.
[[nodiscard]] Expected<std::unique_ptr<Tokenizer>> create_tokenizer(Vocabulary vocabulary);

}  // namespace sluice
