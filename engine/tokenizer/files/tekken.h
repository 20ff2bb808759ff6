// SPDX-License-Identifier: Apache-2.0
// tekken.json of Mistral's models: tokens by rank as bytes in base64, whose ids follow those of the
// special tokens, and the expression that splits texts. As in tiktoken.model, of all adjacent
// tokens those are joined first that make the token of the lowest rank.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// Returns the tokenizer.json that means the same but for merges, which are those of
// ranked_merges(). A vocabulary counts up to default_vocab_size; a file of version 7 or before may
// leave its special tokens out, and the ids it does not name are <SPECIAL_20> and so on. Texts
// begin with <s>. kDataLoss: the file has another form; kUnsupported: its special tokens are
// missing.
Expected<nlohmann::json> read_tekken(std::string_view text);

// Returns the file's version, "v13", without reading what follows it; empty: it states none.
// kDataLoss: the file is not JSON.
Expected<std::string> tekken_version(std::string_view text);

}  // namespace sluice
