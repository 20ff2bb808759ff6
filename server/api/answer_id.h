// SPDX-License-Identifier: Apache-2.0
// Names of answers to completions.
#pragma once

#include <string>

#include "server/api/parameters.h"

namespace sluice {

// Returns a new id that begins with "chatcmpl-" or "cmpl-". Any thread.
std::string answer_id(Endpoint endpoint);

}  // namespace sluice
