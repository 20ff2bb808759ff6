// SPDX-License-Identifier: Apache-2.0
// Tokenizers in Hugging Face's file layout: tokenizer.json as the `tokenizers` package reads it,
// with what tokenizer_config.json, config.json and generation_config.json say about special tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// What lies beside tokenizer.json; a file that is not there is an empty string.
struct HfTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config;   // names of bos, eos and the like
  std::string config;             // eos_token_id and vocab_size, also inside text_config
  std::string generation_config;  // eos_token_id
};

// kDataLoss: a file is no JSON or contradicts itself; kUnsupported names the piece of
// tokenizer.json that is not known, and what is. What cannot be used of generation_config.json
// counts as not given, with a warning.
Expected<std::unique_ptr<Tokenizer>> create_hf_tokenizer(const HfTokenizerFiles& files);

struct HfText {
  std::unique_ptr<Tokenizer> tokenizer;
  // chat_template.jinja, else what tokenizer_config.json or chat_template.json holds ("default" of
  // several); empty: none.
  std::string chat_template;
};

// From the directory of a model. kNotFound: it has no tokenizer.json.
Expected<HfText> load_hf_text(const std::string& directory);

}  // namespace sluice
