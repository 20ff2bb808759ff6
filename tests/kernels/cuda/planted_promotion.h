// SPDX-License-Identifier: Apache-2.0
// The FP8 layers of kernels/cuda/gemm_ring.h in small, with bugs that can be switched on: runs of
// at most four groups, each its own chain, are promoted with the scales of their 128 columns.
#pragma once

#include <cstdint>
#include <vector>

namespace sluice::kernels::test {

struct PromotionShape {
  static constexpr int kOutputs = 64;
  static constexpr int kTokens = 8;
  static constexpr int kSegments = 8;
  static constexpr int kK = 1584;     // the last group is not full
  static constexpr int kGroups = 50;  // groups of 32; segments end inside of blocks of 128
  static constexpr int kRow = 1664;   // bytes
  static constexpr int kBlocks = 13;  // blocks of 128

  static constexpr int first_group(int segment) { return segment * kGroups / kSegments; }
};

enum class PromotionBug : uint8_t {
  kNone,
  kNoPromotion,
  kChainGoesOn,
  kLongChain,
  kRunPastItsBlock,
  kScaleOfTheNextBlock,
  kScaleOfTheNextOutput,
  kXScaleOfTheNextBlock,
  kXScaleOfTheNextToken,
  kBlockOfTheSegment,
  kProductThenSum,
  kWrongSegment,
  kFoldInAChain,
  kAddBeforeWait,
  kReleaseBeforeWait,
  kEndWithoutWait,
  kStoreBeforeWait,
};

// Codes of e4m3 in rows of kRow bytes, scales [kOutputs][kBlocks] and [kBlocks][kTokens].
struct PromotionData {
  std::vector<uint8_t> x;
  std::vector<uint8_t> w;
  std::vector<float> w_scales;
  std::vector<float> x_scales;
};

// Returns out[token][output].
std::vector<float> run_promotion(PromotionBug bug, const PromotionData& data);

}  // namespace sluice::kernels::test
