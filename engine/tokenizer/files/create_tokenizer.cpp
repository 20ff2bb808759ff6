// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/tokenizer/files/gguf_tokenizer.h"

namespace sluice {
namespace {

struct Row {
  std::string_view model;
  TokenizerKind kind;
  Expected<std::unique_ptr<Tokenizer>> (*create)(Vocabulary vocabulary);
};

constexpr Row kRows[] = {
    {"gpt2", TokenizerKind::kByteBpe, create_byte_bpe_tokenizer},
    {"llama", TokenizerKind::kScoredBpe, create_sentencepiece_tokenizer},
    {"gemma4", TokenizerKind::kCharBpe, create_char_bpe_tokenizer},
    {"t5", TokenizerKind::kUnigram, create_unigram_tokenizer},
    {"bert", TokenizerKind::kWordPiece, create_word_piece_tokenizer},
};

}  // namespace

std::optional<TokenizerKind> tokenizer_kind(const Vocabulary& vocabulary) {
  const auto* const row = std::ranges::find(kRows, vocabulary.model, &Row::model);
  if (row == std::end(kRows)) return std::nullopt;
  // Some files of Gemma 4 name another kind of BPE, among them Ollama's.
  const bool is_bpe =
      row->kind == TokenizerKind::kByteBpe || row->kind == TokenizerKind::kScoredBpe;
  const bool is_gemma4 = vocabulary.pre == "gemma4" || vocabulary.pre == "gemma-4";
  return is_bpe && is_gemma4 ? TokenizerKind::kCharBpe : row->kind;
}

Expected<std::unique_ptr<Tokenizer>> create_tokenizer(Vocabulary vocabulary) {
  if (const std::optional<TokenizerKind> kind = tokenizer_kind(vocabulary)) {
    return std::ranges::find(kRows, *kind, &Row::kind)->create(std::move(vocabulary));
  }
  return make_error(ErrorCode::kUnsupported,
                    "tokenizer.ggml.model is \"" + vocabulary.model +
                        "\", which is not supported; supported: gpt2 (byte-level BPE), llama "
                        "(SentencePiece BPE), gemma4 (BPE with byte fallback), t5 (unigram), bert (WordPiece)");
}

}  // namespace sluice
