// SPDX-License-Identifier: Apache-2.0
// How many files and sockets the process may have open.
#pragma once

#include <cstdint>

namespace sluice {

// Raises the soft limit of open descriptors, which is often 1024, to the hard one, as any process
// may; each connection is one. Returns the limit that holds then.
int64_t raise_descriptor_limit();

}  // namespace sluice
