// SPDX-License-Identifier: Apache-2.0
// Weights of 4 bits with a scale and a zero point per group of 32 times rows of BF16, as in
// kernels/cuda/gemm_blocks_half.cu, with bugs that can be switched on. A warp has a segment of K
// and a ring of its own into which it copies groups ahead; its sums replace the ring.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

enum class CodesBug : uint8_t {
  kNone,
  kNoWait,
  kWaitTooWeak,
  kNoSyncAfterWait,
  kCopyBeforeSync,
  kStageOfTheNext,
  kHighCodesFirst,
  kChunkOfTheNeighbour,
  kOddCodesFirst,
  kTokensInOrder,
  kScaleOfTheNeighbourGroup,
  kScaleOfTheFirstHalf,
  kZeroMinusOne,
  kZeroOfTheNeighbourGroup,
  kNoZero,
  kNoPromotion,
  kPromotedByTwos,
  kPromotedByHalves,
  kSegmentOneShort,
  kNoBarrierBeforeFold,
};

struct CodesShape {
  static constexpr int kWarps = 2;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kStages = 3;
  static constexpr int32_t kGroups = 17;  // segments of 8 and of 9 go round the ring twice
  static constexpr int32_t kTile = 16;    // outputs
  static constexpr int32_t kTokens = 8;
  static constexpr int32_t kRows = 6;  // tokens with values; others are zeros
  static constexpr int32_t kK = kGroups * 32;

  static constexpr int32_t first_group(int32_t segment) { return segment * kGroups / kWarps; }
};

// A group in packed form: byte j of register r has k = 4 r + j in its low and k = 16 + 4 r + j in
// its high bits.
struct CodesGroup {
  uint32_t codes[4][CodesShape::kTile];
  float scale[CodesShape::kTile];
  uint8_t zero[CodesShape::kTile];
};

// Returns out[token][output] for groups and bf16 x [kRows][kK], both 16-byte aligned.
std::vector<float> run_codes(CodesBug bug, const CodesGroup* groups, const uint16_t* x);

}  // namespace sluice::kernels::test
