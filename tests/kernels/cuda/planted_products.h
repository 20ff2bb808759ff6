// SPDX-License-Identifier: Apache-2.0
// Small products by matrix instructions, each with bugs that can be switched on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {

// A tile of 64 outputs times 8 tokens over K by wgmma, copied by TMA into a ring.
enum class PipelineBug : uint8_t {
  kNone,
  kNoFullWait,
  kNoEmptyWait,
  kWrongParity,
  kExpectTooFew,
  kExpectTooMany,
  kNoBarrierAfterInit,
  kNoFenceAfterInit,
  kNotInitialized,
  kArriveBeforeWgmmaWait,
  kEveryLaneArrives,
  kNoWgmmaFence,
  kReadBeforeWgmmaWait,
  kNoCommit,
  kDescriptorSwizzle,
  kMapSwizzle,
  kAtomStride,
  kRingOneShort,
  kSegmentOffByOne,
  kUnmaskedTokens,
  kCopyNobodyWaitsFor,
};

// Returns out[token][output] of bf16 x [tokens][k], w [64][k]; out has room for `room` tokens.
std::vector<float> run_pipeline(PipelineBug bug,
                                const std::vector<uint16_t>& x,
                                const std::vector<uint16_t>& w,
                                int32_t tokens,
                                int32_t k,
                                int32_t room);

// PipelineBug's product for k = 64 with tiles that the threads write themselves.
enum class StoreBug : uint8_t {
  kNone,
  kNoProxyFence,
  kFenceByTheReader,
  kNoBarrier,
  kWrongSwizzle,
  kReuseBeforeWait,
  kPartOfAWarpgroup,
};

std::vector<float> run_stores(StoreBug bug,
                              const std::vector<uint16_t>& x,
                              const std::vector<uint16_t>& w);

// A tile of outputs times tokens over K by mma.sync, copied by cp.async into a ring.
enum class CopiesBug : uint8_t {
  kNone,
  kNoWait,
  kWaitTooWeak,
  kNoBarrier,
  kNoCommit,
  kNoEmptyGroups,
  kReuseBeforeBarrier,
  kReadWithoutSwizzle,
  kRowNotAligned,
  kNoZeroFill,
  kHalvesSwapped,
  kPartOfAWarp,
};

struct CopiesShape {
  static constexpr int kThreads = 64;
  static constexpr int kOutputs = 32;
  static constexpr int kTokens = 8;
  static constexpr int kK = 426;  // the last chunk is not full, nor its last 16 bytes
  static constexpr int kChunks = 7;
  static constexpr int kStride = 448;  // elements in both matrices
};

// out[token][output] of bf16 x [kTokens][kStride] and w [kOutputs][kStride], 16-byte aligned.
std::vector<float> run_copies(CopiesBug bug, const uint16_t* x, const uint16_t* w);

// Weights of 4 bits in groups of 32 with a scale and a minimum each, times int8 tokens, as in
// kernels/cuda/gemm_blocks.cu: a warp has a segment of K, a block an expert's rows.
enum class BlocksBug : uint8_t {
  kNone,
  kNoBarrierBeforeFold,
  kNoBarrierBeforeReuse,
  kSegmentOneShort,
  kSegmentOverlaps,
  kSegmentsShareAPlace,
  kFoldInOrder,
  kHighCodesFirst,
  kChunkOfTheNeighbour,
  kSumsTransposed,
  kScaleOfTheFirstHalf,
  kTokenScaleOfTheLane,
  kScaleOfTheSegment,
  kNoMinimum,
  kUnmaskedTokens,
  kUnmaskedOutputs,
  kOneTileOnly,
  kExpertOfTheBlock,
  kOneExpertMore,
  kBiasOfTheFirstExpert,
  kPartOfAWarp,
};

struct BlocksShape {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int32_t kGroups = 10;  // segments of 2 and of 3
  static constexpr int32_t kTile = 16;    // outputs
  static constexpr int32_t kOutputs = 13;
  static constexpr int32_t kTokens = 8;  // tokens of a group, whose activations lie together
  static constexpr int32_t kExperts = 3;
  static constexpr std::array<int32_t, kExperts> kFirst = {0, 16, 16};  // rows
  static constexpr std::array<int32_t, kExperts> kCount = {11, 0, 3};
  static constexpr int32_t kRows = 24;
};

struct BlocksInput {
  using Shape = BlocksShape;

  // codes[expert][group][register][output]: byte b of register r has k = 4 r + b in its low 4 bits
  // and k = 16 + 4 r + b in its high ones.
  uint32_t codes[Shape::kExperts][Shape::kGroups][4][Shape::kTile];
  float scale[Shape::kExperts][Shape::kGroups][Shape::kTile];
  float minimum[Shape::kExperts][Shape::kGroups][Shape::kTile];
  float bias[Shape::kExperts][Shape::kTile];
  int8_t x[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens][32];
  float x_scale[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens];
  float x_sum[Shape::kRows / Shape::kTokens][Shape::kGroups][Shape::kTokens];  // times the scale
  int32_t chosen[Shape::kExperts];
  int32_t num_chosen;
};

// Returns out[row][kTile]; outputs that are never written are -1.
std::vector<float> run_blocks(BlocksBug bug, const BlocksInput& input);

}  // namespace sluice::kernels::test
