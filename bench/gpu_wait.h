// SPDX-License-Identifier: Apache-2.0
// A kernel of one thread that waits for the host, as one of NCCL's waits for a peer.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace sluice::bench {

// Ends when `word`, in pinned memory of the host, is not 0, or after some seconds.
void launch_wait(CUstream_st* stream, const uint32_t* word);

}  // namespace sluice::bench
