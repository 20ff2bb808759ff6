// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tokenizer.h"

#include <utility>

#include "engine/tokenizer/bpe_tokenizer.h"

namespace sluice {

Expected<std::unique_ptr<Tokenizer>> create_tokenizer(Vocabulary vocabulary) {
  if (vocabulary.model == "gpt2") return create_bpe_tokenizer(std::move(vocabulary));
  return make_error(ErrorCode::kUnsupported,
                    "tokenizer.ggml.model is \"" + vocabulary.model +
                        "\", which is not supported; supported: gpt2 (byte-level BPE)");
}

}  // namespace sluice
