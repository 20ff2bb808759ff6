// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu.h"
#include "tests/kernels/cuda/planted.h"

namespace sluice::kernels::test {
namespace {

using Shape = PartsShape;

constexpr int kSegments = 8;
constexpr int kOwn = kSegments / Shape::kRanks;  // segments of a rank
constexpr int kGroup = 32;
constexpr int kGroups = (Shape::kK + kGroup - 1) / kGroup;
static_assert(kOwn == 2);

// Returns the first group of a segment, or the end for the one after the last.
template <PartsBug kBug>
__device__ __forceinline__ int border(int rank, int segment) {
  const int first = (rank * kOwn) * kGroups / kSegments;
  const int end = (rank + 1) * kOwn * kGroups / kSegments;
  if (kBug == PartsBug::kEqualSegments) return first + segment * (end - first) / kOwn;
  const int at = (rank * kOwn + segment) * kGroups / kSegments;
  const bool is_first = segment == 0 && rank > 0;
  return kBug == PartsBug::kShareOneGroupLate && is_first ? at + 1 : at;
}

// Computes the value of a rank's subtree: a block per rank, a thread per output.
template <PartsBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    share_kernel(const float* x, const float* w, float* parts) {
  const auto output = static_cast<int>(threadIdx.x);
  const auto rank = static_cast<int>(blockIdx.x);
  const int end = kBug == PartsBug::kUnmaskedOutputs ? Shape::kThreads : Shape::kOutputs;
  if (output >= end) return;
  const int to = kBug == PartsBug::kPartOfTheNeighbour ? rank / 2 * 2 : rank;
  for (int row = 0; row < Shape::kRows; ++row) {
    float s[kOwn] = {};
    for (int segment = 0; segment < kOwn; ++segment) {
      // A chain over all segments has one sum.
      float& sum = s[kBug == PartsBug::kNoFold ? 0 : segment];
      const int last = border<kBug>(rank, segment + 1) * kGroup;
      for (int k = border<kBug>(rank, segment) * kGroup; k < last && k < Shape::kK; ++k) {
        sum = __fmaf_rn(w[output % Shape::kOutputs * Shape::kK + k], x[row * Shape::kK + k], sum);
      }
    }
    parts[(to * Shape::kRows + row) * Shape::kOutputs + output] = __fadd_rn(s[0], s[1]);
  }
}

// Computes the upper levels of the fold: a block per row, a thread per output.
template <PartsBug kBug>
__global__ void __launch_bounds__(Shape::kThreads, 1) join_kernel(const float* parts, float* out) {
  const auto output = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int>(blockIdx.x);
  if (output >= Shape::kOutputs) return;
  float p[Shape::kRanks];
  for (int i = 0; i < Shape::kRanks; ++i) {
    int rank = kBug == PartsBug::kWrongOrder ? (i + 1) % Shape::kRanks : i;
    if (kBug == PartsBug::kOneTwice && i == Shape::kRanks - 1) --rank;
    p[i] = parts[(rank * Shape::kRows + row) * Shape::kOutputs + output];
  }
  const float low = __fadd_rn(p[0], p[1]);
  const bool chain = kBug == PartsBug::kJoinedInAChain;
  out[row * Shape::kOutputs + output] =
      chain ? __fadd_rn(__fadd_rn(low, p[2]), p[3]) : __fadd_rn(low, __fadd_rn(p[2], p[3]));
}

template <PartsBug kBug>
void start(const std::vector<float>& x,
           const std::vector<float>& w,
           std::vector<float>& parts,
           std::vector<float>& out) {
  gpu::launch(nullptr,
              {.blocks_x = Shape::kRanks, .threads = Shape::kThreads},
              share_kernel<kBug>,
              x.data(),
              w.data(),
              parts.data());
  gpu::launch(nullptr,
              {.blocks_x = Shape::kRows, .threads = Shape::kThreads},
              join_kernel<kBug>,
              parts.data(),
              out.data());
}

}  // namespace

std::vector<float> run_parts(PartsBug bug,
                             const std::vector<float>& x,
                             const std::vector<float>& w) {
  constexpr size_t kOut = size_t{Shape::kRows} * Shape::kOutputs;
  // There is one row more, which a bug writes to.
  std::vector<float> parts(Shape::kRanks * kOut + Shape::kOutputs, -1.0F);
  std::vector<float> out(kOut, -1.0F);
  with_bug<PartsBug::kOneTwice>(bug, [&]<PartsBug kBug>() { start<kBug>(x, w, parts, out); });
  return out;
}

}  // namespace sluice::kernels::test
