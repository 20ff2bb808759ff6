// SPDX-License-Identifier: Apache-2.0
// A router's requests are as little to be trusted as any other message: whatever passes here is in
// range for the model, as what request_validator.h makes is.
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
