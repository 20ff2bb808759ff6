// SPDX-License-Identifier: Apache-2.0
// Tokenizers in Hugging Face's file layout: tokenizer.json as the `tokenizers` package reads it, or
// a vocabulary of ranks as the `tiktoken` package does (tiktoken.h), with the special tokens of
// tokenizer_config.json, config.json and generation_config.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// The contents of tokenizer.json and the files beside it; a missing file is an empty string.
struct HfTokenizerFiles {
  std::string tokenizer_json = {};
  std::string ranks = {};              // one of kRankedFiles, read without a tokenizer.json
  std::string tokenizer_config = {};   // names of bos, eos and similar tokens
  std::string config = {};             // eos_token_id and vocab_size, also of a text model inside
  std::string generation_config = {};  // eos_token_id
};

// kDataLoss: a file is not JSON or contradicts itself; kUnsupported names the unknown piece of
// tokenizer.json and the known ones. Unusable values of generation_config.json count as absent,
// with a warning.
Expected<std::unique_ptr<Tokenizer>> create_hf_tokenizer(const HfTokenizerFiles& files);

struct HfText {
  std::unique_ptr<Tokenizer> tokenizer;
  // The template of chat_template.jinja, else tokenizer_config.json or chat_template.json; several
  // of them, and those of additional_chat_templates/, are joined (named_templates.h). Without any,
  // that for the version of a tekken.json (mistral_templates.h). Empty: none.
  std::string chat_template;
};

// Returns the template that a directory's own files hold; empty: none.
Expected<std::string> load_own_template(const std::string& directory);

// Returns a directory's tokenizer.json, or, without one and without any of kRankedFiles, what its
// older files mean (vocabulary_files.h); empty: it has none that are read. kDataLoss: as there.
Expected<std::string> load_tokenizer_json(const std::string& directory);

// Loads a model's directory. kNotFound: it has no such file.
Expected<HfText> load_hf_text(const std::string& directory);

}  // namespace sluice
