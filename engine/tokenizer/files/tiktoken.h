// SPDX-License-Identifier: Apache-2.0
// tiktoken.model, the vocabulary of Kimi and Moonlight, which have no tokenizer.json: a line for
// each token, its bytes in base64, a space and its id, which is also its rank: of all adjacent
// tokens those are joined first that make the token of the lowest rank. What else a tokenizer needs
// is in the class of those models and in tokenizer_config.json. Mistral's tekken.json (tekken.h) is
// such a vocabulary too, and is read where a text begins with '{'.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice {

// The files of such vocabularies, in the order in which a directory's are looked for.
inline constexpr const char* kRankedFiles[] = {"tiktoken.model", "tekken.json"};

// Returns the tokenizer.json that means the same but for merges, which are those of
// ranked_merges(). `config`: tokenizer_config.json, an object. kDataLoss: a file has another form,
// or a token comes twice; kUnsupported: tokenizer_class is another one than those models have.
Expected<nlohmann::json> read_tiktoken(std::string_view text, const nlohmann::json& config);

// Returns such a file with merges, in the order of ranked_merges(): where two that make one token
// overlap in a text, others may take another than the leftmost. `config`: the file's text; empty:
// there is none.
Expected<std::string> tiktoken_as_json(std::string_view text, std::string_view config);

}  // namespace sluice
