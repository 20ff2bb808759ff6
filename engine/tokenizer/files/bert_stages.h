// SPDX-License-Identifier: Apache-2.0
// Prepares text for WordPiece as BERT does: the BertNormalizer and BertPreTokenizer of tokenizers,
// which a GGUF file's "bert" means as well. Called while loading.
#pragma once

#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/pipeline/normalizer.h"
#include "engine/tokenizer/pipeline/pretokenizer.h"

namespace sluice {

struct BertText {
  bool cleans = true;         // control characters are removed, white space becomes spaces
  bool pads_chinese = true;   // an ideograph is a word
  bool lowercases = true;
  bool strips_accents = true;
};

Expected<void> add_bert_steps(const BertText& text, std::vector<NormalizerStep>& steps);
// Cuts at white space, which is dropped, and at punctuation, which is kept.
Expected<void> add_bert_stages(std::vector<PretokenizerStage>& stages);

}  // namespace sluice
