// SPDX-License-Identifier: Apache-2.0
// A kernel that reads `bytes` (a multiple of 16) and does nothing with them; `out` holds 4 bytes.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace sluice::bench {

void launch_read(CUstream_st* stream, const void* data, int64_t bytes, int32_t blocks, void* out);

}  // namespace sluice::bench
