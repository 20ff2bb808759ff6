// SPDX-License-Identifier: Apache-2.0
// Tells of Mistral's directories whose tokenizer.json splits text by another expression than the
// models were trained with. transformers up to 4.57 wrote such files.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace sluice {

// Logs one warning if the model type of `config`, a config.json, is one of Mistral's, written by
// such a version or one that is not stated, and the first stage of `tokenizer`, a tokenizer.json,
// splits by another expression than Tekken's. The file counts as it is, as in transformers without
// fix_mistral_regex.
void warn_of_mistral_pattern(const nlohmann::json& tokenizer, const nlohmann::json& config);

}  // namespace sluice
