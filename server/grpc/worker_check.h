// SPDX-License-Identifier: Apache-2.0
// Checks a router's requests, which are trusted no more than other messages: a request that passes
// is in range for the model, like one from request_validator.h.
#pragma once

#include "engine/core/status.h"

namespace sluice {

struct Config;
struct ModelInfo;
struct ValidRequest;

// kInvalidArgument names the field and its rule.
Expected<void> check_request(const ValidRequest& request,
                             const ModelInfo& model,
                             const Config& config);

}  // namespace sluice
