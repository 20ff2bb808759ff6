// SPDX-License-Identifier: Apache-2.0
// Vocabularies as text, written by tests/golden/tokenizer/reference.py: a line "key value" for each
// field that is set, "tokens N" and N lines "name type" or "name type score", "merges N" and N
// lines "left right". In names, bytes up to 0x20 and '%' are %XX.
#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace sluice::testing {

// kNotFound or kDataLoss, naming the file.
Expected<Vocabulary> read_vocabulary_file(const std::string& path);

}  // namespace sluice::testing
