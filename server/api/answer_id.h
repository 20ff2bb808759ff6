// SPDX-License-Identifier: Apache-2.0
// Names of answers: a prefix that tells the kind, and 128 random bits in hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

#include "server/api/parameters.h"

namespace sluice {

// Any thread.
std::string random_id(std::string_view prefix);

// "chatcmpl-" or "cmpl-" before the digits.
std::string answer_id(Endpoint endpoint);

}  // namespace sluice
