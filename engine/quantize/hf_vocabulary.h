// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a directory as GGUF's tables.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

// From a tokenizer.json, whose tokenizer is `tokenizer`, for a model whose embedding has so many
// rows: BPE of bytes whose splits GGUF has a name for, and BPE of characters whose merges follow
// from scores. The tokenizer of the result gives the same ids for texts of many scripts and the
// text of every token, or it is refused. kUnsupported: names what GGUF cannot say.
Expected<Vocabulary> read_hf_vocabulary(const std::string& tokenizer_json,
                                        const Tokenizer& tokenizer,
                                        int64_t num_rows,
                                        const std::string& file);

}  // namespace sluice
