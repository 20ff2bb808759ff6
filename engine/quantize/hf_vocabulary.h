// SPDX-License-Identifier: Apache-2.0
// Converts a directory's tokenizer to GGUF's tables.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// `tokenizer` is the tokenizer of `tokenizer_json`, `num_rows` the rows of the model's embedding.
// Converts BPE of bytes whose splits GGUF has a name for, and BPE of characters whose merges follow
// from scores. The result's tokenizer must give the same ids for texts of many scripts and for
// every token's text. kUnsupported names what GGUF cannot express.
Expected<Vocabulary> read_hf_vocabulary(const std::string& tokenizer_json,
                                        const Tokenizer& tokenizer,
                                        int64_t num_rows,
                                        const std::string& file);

}  // namespace sluice
