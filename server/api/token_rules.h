// SPDX-License-Identifier: Apache-2.0
// Request parameters about single tokens: stop_token_ids, logit_bias, allowed_token_ids, bad_words.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "server/prompt/validation_context.h"

namespace sluice {

Expected<void> read_token_rules(const ValidationContext& context,
                                const nlohmann::ordered_json& body,
                                SamplingParams& sampling);

}  // namespace sluice
