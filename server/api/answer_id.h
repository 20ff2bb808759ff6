// SPDX-License-Identifier: Apache-2.0
// Names of answers: a prefix that tells the kind, and 128 random bits in hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

#include "server/api/parameters.h"

namespace sluice {

// Returns the prefix and new random digits. Any thread.
std::string random_id(std::string_view prefix);

// Returns an id that begins with "chatcmpl-" or "cmpl-".
std::string answer_id(Endpoint endpoint);

}  // namespace sluice
