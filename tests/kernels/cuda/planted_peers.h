// SPDX-License-Identifier: Apache-2.0
// The exchange of kernels/cuda/peer_rows.cu in small, between two ranks, with bugs that can be
// switched on.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/peer_rows.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

enum class PeersBug : uint8_t {
  kNone,
  kNoRelease,
  kNoBarrierBeforeTelling,
  kNoBarrierBehindTheWait,
  kNoWait,
  kOneHalf,
  kCountOfTheLaunch,
  kOneBlockMore,
};

struct PeersShape {
  static constexpr int kThreads = 64;
  static constexpr int kWords = 100;  // two blocks' pieces, of which the second is not full
};

// Runs exchange `number` of one rank, from 1 on; returns rank 0's value - rank 1's, [kWords].
std::vector<float> run_peers(PeersBug bug,
                             const PeerWindows& windows,
                             uint32_t number,
                             const std::vector<float>& own);

}  // namespace sluice::kernels::test
