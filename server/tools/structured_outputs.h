// SPDX-License-Identifier: Apache-2.0
// The constraints of a request on its answer: `response_format` of OpenAI's API and vLLM's
// `structured_outputs`, at most one of them. The engine compiles it and reports what it refuses.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/grammar_spec.h"
#include "engine/core/status.h"

namespace sluice {

// Returns kind kNone if the request asks for nothing. An Error names the field and the fault of its
// form: sizes, types, two constraints at once.
Expected<GrammarSpec> read_structured_outputs(const nlohmann::ordered_json& body);

}  // namespace sluice
