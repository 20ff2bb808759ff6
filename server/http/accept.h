// SPDX-License-Identifier: Apache-2.0
// What a client would rather be answered with, by its Accept header (RFC 9110, 12.5.1). Any thread.
#pragma once

#include <string_view>

namespace sluice {

// How much the client wants the type, which is in lower case, in this version: 0 to 1; 0 where the
// header does not name it. Without a version it wants any. Ranges such as text/* name nothing, and
// what cannot be read counts as left out.
double accepted_weight(std::string_view accept, std::string_view type, std::string_view version);

}  // namespace sluice
