// SPDX-License-Identifier: Apache-2.0
// Random names: a prefix that tells the kind, and 128 random bits in hexadecimal digits.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

// Returns the prefix and new random digits. Any thread.
std::string random_id(std::string_view prefix);

}  // namespace sluice
