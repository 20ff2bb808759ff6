// SPDX-License-Identifier: Apache-2.0
// The tokenizer and the chat template of a checkpoint in the other layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Of a directory, as keys of a GGUF file; where there is no tokenizer.json, a warning says so.
// Errors as read_hf_vocabulary's.
Expected<void> put_tokenizer(const Checkpoint& input, GgufMetadata& metadata);

struct TokenizerFiles {
  std::map<std::string, std::string> texts;  // by the file's name
  TokenId bos = kInvalidToken;
  TokenId padding = kInvalidToken;
  std::vector<TokenId> ends;
};

// Of a GGUF file, for a directory; where it has no tokenizer, a warning says so. Errors as
// tokenizer_json's.
Expected<TokenizerFiles> tokenizer_files(const Checkpoint& input);

}  // namespace sluice
