// SPDX-License-Identifier: Apache-2.0
// The files of tokenizers from before tokenizer.json: vocab.txt of BERT, a token on each line, and
// vocab.json with merges.txt of RoBERTa, and tokenizer.model of SentencePiece
// (sentencepiece_files.h). What else such a tokenizer needs is in transformers' classes
// (BertTokenizer, DistilBertTokenizer, MPNetTokenizer, RobertaTokenizer, LlamaTokenizer and those
// like it) and in tokenizer_config.json.
#pragma once

#include <string>

#include "engine/core/status.h"

namespace sluice {

// The contents of the files; a missing one is an empty string.
struct VocabularyFiles {
  std::string words = {};               // vocab.txt
  std::string tokens = {};              // vocab.json
  std::string merges = {};              // merges.txt
  std::string tokenizer_config = {};    // the class and its options
  std::string config = {};              // model_type, where nothing names the class
  std::string special_tokens_map = {};  // names that count before those of tokenizer_config
  std::string added_tokens = {};        // ids by text
  std::string pieces = {};              // tokenizer.model
};

// Returns the tokenizer.json that means the same; empty: the class has others, or its files are
// missing. kDataLoss: a file has another form, or lacks a token that begins or ends texts.
Expected<std::string> vocabulary_as_json(const VocabularyFiles& files);

}  // namespace sluice
