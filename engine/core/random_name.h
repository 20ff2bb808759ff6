// SPDX-License-Identifier: Apache-2.0
// Names of temporary files and the like that no other process has. A process id is no such name:
// those of processes in two containers that share a folder may be equal.
#pragma once

#include <string>

namespace sluice {

// Returns 32 hexadecimal digits, other ones at each call. Any thread.
std::string random_name();

}  // namespace sluice
