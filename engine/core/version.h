// SPDX-License-Identifier: Apache-2.0
// Identity of this binary.
#pragma once

#include <string>
#include <string_view>

namespace sluice {

std::string_view version();  // "0.1.0"

// The linker's hash of this executable's contents, in hex; part of the determinism key.
std::string build_id();

}  // namespace sluice
