// SPDX-License-Identifier: Apache-2.0
// A small attention kernel with bugs that can be switched on.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

// 64 rows of a warpgroup over tiles of paged keys by wgmma, with rows and weights in registers. K,
// transposed, and V come by TMA, block by block, through rings of two stages, and a tile's products
// with K run beside those of the tile before with V.
enum class PromptBug : uint8_t {
  kNone,
  kNoFullWait,
  kWrongParity,
  kExpectOneBlockLess,
  kReleaseBeforeWait,
  kReleaseOnce,
  kScoresBeforeWait,
  kPackBeforeWait,
  kNoWgmmaFence,
  kNoProxyFence,
  kNoBarrierAfterClear,
  kUnclearedTail,
  kUnmaskedTail,
  kKeySwizzle,
  kMapSwizzle,
  kBlocksOverlap,
  kStepsOfEightKeys,
  kBlockOfTheFirstKey,
  kNoRescale,
};

struct PromptShape {
  static constexpr int kRows = 64;
  static constexpr int kDim = 64;
  static constexpr int kTile = 64;
  static constexpr int kSlots = 16;  // keys of a block
  static constexpr int kTiles = 5;   // tiles, which go round 2 stages twice
  static constexpr int kBlocks = kTile * kTiles / kSlots;
  // The first row's position; the others follow. The last block but one is cut, and no row sees the
  // last one.
  static constexpr int kPosition = 233;
};

// out[row][d] of bf16 q [kRows][kDim], k [kBlocks][kDim][kSlots] and v [kBlocks][kSlots][kDim],
// 16-byte aligned; table [kBlocks].
std::vector<float> run_prompt(PromptBug bug,
                              const uint16_t* q,
                              const uint16_t* k,
                              const uint16_t* v,
                              const std::vector<int32_t>& table);

}  // namespace sluice::kernels::test
