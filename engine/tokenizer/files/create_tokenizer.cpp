// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tokenizer.h"

#include <utility>

#include "engine/tokenizer/files/gguf_tokenizer.h"

namespace sluice {

Expected<std::unique_ptr<Tokenizer>> create_tokenizer(Vocabulary vocabulary) {
  if (vocabulary.model == "gpt2") return create_byte_bpe_tokenizer(std::move(vocabulary));
  if (vocabulary.model == "llama") return create_sentencepiece_tokenizer(std::move(vocabulary));
  if (vocabulary.model == "gemma4") return create_char_bpe_tokenizer(std::move(vocabulary));
  if (vocabulary.model == "t5") return create_unigram_tokenizer(std::move(vocabulary));
  if (vocabulary.model == "bert") return create_word_piece_tokenizer(std::move(vocabulary));
  return make_error(ErrorCode::kUnsupported,
                    "tokenizer.ggml.model is \"" + vocabulary.model +
                        "\", which is not supported; supported: gpt2 (byte-level BPE), llama "
                        "(SentencePiece BPE), gemma4 (BPE with byte fallback), t5 (unigram), bert (WordPiece)");
}

}  // namespace sluice
