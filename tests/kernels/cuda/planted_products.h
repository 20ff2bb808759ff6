// SPDX-License-Identifier: Apache-2.0
// Small products by matrix instructions, each with bugs that can be switched on.
#pragma once

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
  kAtomStride,
  kRingOneShort,
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
  kRowNotAligned,
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

}  // namespace sluice::kernels::test
