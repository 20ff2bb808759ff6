// SPDX-License-Identifier: Apache-2.0
// What a request says its answer must be: `response_format` of OpenAI's API and vLLM's
// `structured_outputs`, one of them at most. The engine compiles it and says what it refuses.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"

namespace sluice {

// Of kind kNone where the request asks for nothing. An Error names the field and what is wrong with
// its form: sizes, types, two constraints at once.
Expected<GrammarSpec> read_structured_outputs(const nlohmann::ordered_json& body);

}  // namespace sluice
