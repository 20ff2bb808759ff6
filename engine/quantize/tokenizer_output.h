// SPDX-License-Identifier: Apache-2.0
// Converts a checkpoint's tokenizer and chat template to the other layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize/gguf_metadata.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Puts a directory's tokenizer into the metadata of a GGUF file; warns if there is no
// tokenizer.json. Errors as in read_hf_vocabulary().
Expected<void> put_tokenizer(const Checkpoint& input, GgufMetadata& metadata);

struct TokenizerFiles {
  std::map<std::string, std::string> texts;  // by file name
  TokenId bos = kInvalidToken;
  TokenId padding = kInvalidToken;
  std::vector<TokenId> ends;
};

// Makes a directory's tokenizer files from a GGUF file; warns if it has no tokenizer. Errors as in
// tokenizer_json().
Expected<TokenizerFiles> tokenizer_files(const Checkpoint& input);

}  // namespace sluice
