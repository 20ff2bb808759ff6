// SPDX-License-Identifier: Apache-2.0
// Linear layers by mma.sync, for every device that has no wgmma. All threads copy chunks of 128
// bytes of K into a ring of stages, some chunks ahead; each of 8 warps multiplies 16 outputs with a
// tile of tokens.
#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

constexpr int kThreads = kOutputs / 16 * 32;
constexpr int kPiece = 16;                        // bytes of a copy and of a row of ldmatrix
constexpr int kRowPieces = kChunkBytes / kPiece;  // pieces of a chunk's row
constexpr int kStepPieces = kStepBytes / kPiece;

template <int kTokens, int kStages>
struct Ring {
  alignas(1024) std::byte weight[kStages][kOutputs * kChunkBytes];
  alignas(1024) std::byte x[kStages][kTokens * kChunkBytes];
};

// Returns the offset of a piece in a chunk's row, permuted so that a piece of 8 rows is read
// without bank conflicts.
__device__ __forceinline__ int offset_of(int row, int piece) {
  return row * kChunkBytes + (piece ^ row % 8) * kPiece;
}

struct Work {
  Outputs outputs;
  Matrices matrices;
};

// The differences between formats: where a piece of x is, and one step of K.
struct MmaHalf : FloatSums {
  static constexpr int32_t kElementBytes = 2;

  __device__ __forceinline__ static const std::byte* x_at(const Matrices& matrices,
                                                          int32_t token,
                                                          int32_t column) {
    return matrices.x + token * matrices.x_stride + column;
  }
};

struct MmaBf16 : MmaHalf {
  __device__ __forceinline__ static void multiply(float* d,
                                                  const uint32_t (&a)[4],
                                                  uint32_t b0,
                                                  uint32_t b1) {
    ptx::mma_bf16(d, a, b0, b1);
  }
};

struct MmaF16 : MmaHalf {
  __device__ __forceinline__ static void multiply(float* d,
                                                  const uint32_t (&a)[4],
                                                  uint32_t b0,
                                                  uint32_t b1) {
    ptx::mma_f16(d, a, b0, b1);
  }
};

struct MmaInt8 : Int8Sums {
  static constexpr int32_t kElementBytes = 1;

  __device__ __forceinline__ static const std::byte* x_at(const Matrices& matrices,
                                                          int32_t token,
                                                          int32_t column) {
    const int32_t group = column / kQuantGroup;
    return matrices.x + token / kActivationRows * matrices.x_stride +
           group * activation_record_bytes(ActivationFormat::kInt8Token) +
           token % kActivationRows * kQuantGroup + column % kQuantGroup;
  }

  __device__ __forceinline__ static void multiply(int32_t* d,
                                                  const uint32_t (&a)[4],
                                                  uint32_t b0,
                                                  uint32_t b1) {
    ptx::mma_s8(d, a, b0, b1);
  }
};

// Returns how many bytes of a piece at `column` are inside of a row of `bytes`.
__device__ __forceinline__ int inside(int32_t column, int32_t bytes) {
  const int32_t left = bytes - column;
  return left <= 0 ? 0 : left < kPiece ? left : kPiece;
}

// Chunks of one tile on their way through the ring, by all threads: a chunk's copies are issued
// kStages - 1 chunks before its use.
template <typename Format, int kTokens, int kStages>
class Pipeline {
 public:
  using Stages = Ring<kTokens, kStages>;

  __device__ __forceinline__
  Pipeline(Stages& ring, const Work& work, const Tile& tile, const Walk& walk)
      : ring_(ring), work_(work), tile_(tile), walk_(walk) {
    __syncthreads();  // no thread reads the ring any more
    for (int stage = 0; stage < kStages - 1; ++stage) load(stage);
  }

  // Waits for the next chunk and returns its stage.
  __device__ __forceinline__ int advance() {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // all copies are there, and the stage before is free
    load(stage_ == 0 ? kStages - 1 : stage_ - 1);
    const int stage = stage_;
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
    return stage;
  }

 private:
  // Issues a group of copies, empty past the last chunk, so that groups count chunks.
  __device__ __forceinline__ void load(int stage) {
    if (walk_.left.begin < walk_.left.end) {
      copy_weight(stage);
      copy_x(stage);
      take_chunk<Format>(work_.outputs, walk_);
    }
    ptx::cp_async_commit();
  }

  // Returns the byte from which on a chunk is zeros: whole or half chunks are multiplied, whatever
  // groups they hold.
  [[nodiscard]] __device__ __forceinline__ int32_t end_byte() const {
    const int32_t end = walk_.left.end * kQuantGroup;
    return (end < work_.matrices.k ? end : work_.matrices.k) * Format::kElementBytes;
  }

  [[nodiscard]] __device__ __forceinline__ int32_t first_byte() const {
    return walk_.left.begin * (kQuantGroup * Format::kElementBytes);
  }

  __device__ __forceinline__ void copy_weight(int stage) {
    const Matrices& from = work_.matrices;
    const int32_t row_bytes = end_byte();
    for (auto i = static_cast<int>(threadIdx.x); i < kOutputs * kRowPieces; i += kThreads) {
      const int row = i / kRowPieces;
      const int32_t column = first_byte() + i % kRowPieces * kPiece;
      const bool exists = tile_.output + row < work_.outputs.n;
      const int bytes = exists ? inside(column, row_bytes) : 0;
      const std::byte* const at =
          bytes == 0
              ? from.weight
              : of_expert(from.weight, work_.outputs.expert_stride, tile_.expert) +
                    (tile_.output + row) * from.weight_stride + column;
      ptx::cp_async_16(&ring_.weight[stage][offset_of(row, i % kRowPieces)], at, bytes);
    }
  }

  __device__ __forceinline__ void copy_x(int stage) {
    const Matrices& from = work_.matrices;
    const int32_t row_bytes = end_byte();
    for (auto i = static_cast<int>(threadIdx.x); i < kTokens * kRowPieces; i += kThreads) {
      const int row = i / kRowPieces;
      const int32_t column = first_byte() + i % kRowPieces * kPiece;
      const bool exists = tile_.token + row < tile_.token_end;
      const int bytes = exists ? inside(column, row_bytes) : 0;
      const std::byte* const at =
          bytes == 0 ? from.x : Format::x_at(from, tile_.token + row, column);
      ptx::cp_async_16(&ring_.x[stage][offset_of(row, i % kRowPieces)], at, bytes);
    }
  }

  Stages& ring_;
  const Work& work_;
  const Tile& tile_;
  Walk walk_;
  int stage_ = 0;  // the next chunk's
};

// d += the products of `kCount` steps of the chunk in a stage. Two steps of K at a time, since
// ldmatrix loads four pieces of 8 tokens; groups of 8 tokens that do not exist are left out.
template <typename Format, int kCount, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_stage(const Ring<kTokens, kStages>& ring,
                                               int stage,
                                               int32_t tokens,
                                               typename Format::Sum (&d)[kWords]) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int matrix = thread % 32 / 8;  // the matrix whose row this lane points to
  const int row = thread % 8;
  const int weight_row = thread / 32 * 16 + matrix % 2 * 8 + row;
#pragma unroll
  for (int step = 0; step < kCount; step += 2) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = (step + i) * kStepPieces + matrix / 2;
      ptx::ldmatrix_x4(a[i], &ring.weight[stage][offset_of(weight_row, piece)]);
    }
#pragma unroll
    for (int group = 0; group < kTokens / 8; ++group) {
      if (group * 8 >= tokens) break;
      uint32_t b[4];
      const int piece = step * kStepPieces + matrix;
      ptx::ldmatrix_x4(b, &ring.x[stage][offset_of(group * 8 + row, piece)]);
      Format::multiply(&d[4 * group], a[0], b[0], b[1]);
      Format::multiply(&d[4 * group], a[1], b[2], b[3]);
    }
  }
}

// d = the chain over the next `groups`; 0 for none.
template <typename Format, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_chunks(Pipeline<Format, kTokens, kStages>& pipeline,
                                                const Ring<kTokens, kStages>& ring,
                                                const Tile& tile,
                                                int32_t groups,
                                                typename Format::Sum (&d)[kWords]) {
  constexpr int32_t kGroups = kChunkGroups<Format>;
  const int32_t tokens = tile.token_end - tile.token;
#pragma unroll
  for (int i = 0; i < kWords; ++i) d[i] = 0;
  for (; groups > 0; groups -= kGroups) {
    const int stage = pipeline.advance();
    if (groups > kGroups / 2) {
      multiply_stage<Format, kSteps>(ring, stage, tokens, d);
    } else {
      multiply_stage<Format, kSteps / 2>(ring, stage, tokens, d);
    }
  }
}

template <typename Format, bool kExperts, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    linear_mma_kernel(const __grid_constant__ Work work) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const Outputs& outputs = work.outputs;
  for_tiles<kTokens, kExperts>(outputs, [&](const Tile& tile) {
    Pipeline<Format, kTokens, kStages> pipeline(ring, work, tile, walk_all<Format>(outputs));
    typename Format::Sum d[kTokens / 2];
    multiply_all(outputs, d, [&](const Groups& groups, auto& part) {
      multiply_chunks(pipeline, ring, tile, groups.end - groups.begin, part);
    });
    store_tile<Format>(outputs, tile, d);
  });
}

// Computes one segment of K a block, into the workspace.
template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    segment_mma_kernel(const __grid_constant__ Work work) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const Outputs& outputs = work.outputs;
  const auto segment = static_cast<int32_t>(blockIdx.y);
  const Walk walk = walk_segment(outputs, segment);
  const Tile tile{0, static_cast<int32_t>(blockIdx.x) * kOutputs, 0, outputs.num_rows};
  Pipeline<Format, kTokens, kStages> pipeline(ring, work, tile, walk);
  typename Format::Sum d[kTokens / 2];
  multiply_chunks(pipeline, ring, tile, walk.left.end - walk.left.begin, d);
  store_segment(outputs, tile, segment, d);
}

// The stages fit the 99 KB of a block on the smallest of these devices.
constexpr int kFewStages = 5;
constexpr int kManyStages = 4;

// Blocks along x are outputs; along y segments, experts or tiles of tokens.
template <typename Format>
void start(Stream stream, const Work& work) {
  const Outputs& outputs = work.outputs;
  const bool few = takes_few_tokens(outputs);
  gpu::LaunchShape shape{.blocks_x = ceil_div(outputs.n, kOutputs),
                         .blocks_y = ceil_div(outputs.num_rows, few ? kFewTokens : kManyTokens),
                         .threads = kThreads,
                         .shared_bytes = few ? int64_t{sizeof(Ring<kFewTokens, kFewStages>)}
                                             : int64_t{sizeof(Ring<kManyTokens, kManyStages>)}};
  auto kernel = few ? linear_mma_kernel<Format, false, kFewTokens, kFewStages>
                    : linear_mma_kernel<Format, false, kManyTokens, kManyStages>;
  if (has_experts(outputs)) {
    shape.blocks_y = max_chosen(outputs);
    kernel = few ? linear_mma_kernel<Format, true, kFewTokens, kFewStages>
                 : linear_mma_kernel<Format, true, kManyTokens, kManyStages>;
  } else if (outputs.workspace != nullptr) {
    shape.blocks_y = outputs.segments.count;
    kernel = segment_mma_kernel<Format, kFewTokens, kFewStages>;
  }
  gpu::launch(stream, shape, kernel, work);
}

}  // namespace

void launch_mma(Stream stream, const Matrices& matrices, const Outputs& outputs) {
  const Work work{.outputs = outputs, .matrices = matrices};
  switch (matrices.format) {
    case ActivationFormat::kInt8Token:
      return start<MmaInt8>(stream, work);
    case ActivationFormat::kF16:
      return start<MmaF16>(stream, work);
    case ActivationFormat::kBF16:
      return start<MmaBf16>(stream, work);
    default:
      SLUICE_UNREACHABLE("rows that no mma.sync takes");
  }
}

}  // namespace sluice::kernels::cuda
