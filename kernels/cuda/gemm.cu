// SPDX-License-Identifier: Apache-2.0
// Linear layers by wgmma. One thread copies chunks of 128 bytes of K into a ring of stages; two
// warpgroups of 64 outputs each multiply them with a tile of tokens, which is the N side, so that
// one decoded token costs a tile of 8. No GPU has run it yet.
#include "engine/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {
namespace {

using gpu::Swizzle;
using gpu::TensorMap;
namespace ptx = gpu::ptx;

constexpr int kChunkBytes = 128;  // of K, in a stage
constexpr int kStepBytes = 32;    // of K, in one wgmma
constexpr int kSteps = kChunkBytes / kStepBytes;
constexpr int kWarpgroups = 2;
constexpr int kOutputs = 64 * kWarpgroups;  // of a block
constexpr int kConsumers = 128 * kWarpgroups;
constexpr int kThreads = kConsumers + 32;  // and the warp of the copying thread
constexpr int kSegments = 8;
constexpr uint32_t kAtomBytes = 8 * kChunkBytes;  // of 8 rows with all of a chunk

template <int kTokens, int kStages>
struct Ring {
  alignas(1024) std::byte weight[kStages][kOutputs * kChunkBytes];
  alignas(1024) std::byte x[kStages][kTokens * kChunkBytes];
  ptx::Mbarrier full[kStages];
  ptx::Mbarrier empty[kStages];
};

// Where in the ring a thread is.
template <int kStages>
struct Cursor {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

struct Work {
  TensorMap weight;
  TensorMap x;
  int32_t chunks;  // of K
  int32_t n;
  int32_t num_rows;
  const float* bias;
  bool add;
  float* out;
  int64_t out_stride;
  void* workspace;  // of segments; null: a block takes all of K
  // INT8 alone.
  const float* weight_scale;
  const std::byte* heads;  // of the activations' blocks: the rows' scales
  int64_t block_bytes;
};

// What differs between the formats: copies of x, one step of K, and what becomes of a sum.
struct Bf16 {
  using Sum = float;
  static constexpr int32_t kElementBytes = 2;

  __device__ __forceinline__ static void load_x(
      void* to, const TensorMap* map, int32_t chunk, int32_t token, ptx::Mbarrier* full) {
    ptx::tma_load_2d(to, map, chunk * (kChunkBytes / 2), token, full);
  }

  // x is [tokens][128 bytes].
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kStepBytes);
    return ptx::matrix_descriptor(x + offset, Swizzle::k128, kAtomBytes);
  }

  template <int kWords>
  __device__ __forceinline__ static void multiply(float (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_bf16(d, a, b, accumulate);
  }

  __device__ __forceinline__ static float value(const Work&, float sum, int32_t, int32_t) {
    return sum;
  }
};

struct Int8 {
  using Sum = int32_t;
  static constexpr int32_t kElementBytes = 1;

  __device__ __forceinline__ static void load_x(
      void* to, const TensorMap* map, int32_t chunk, int32_t token, ptx::Mbarrier* full) {
    ptx::tma_load_4d(to, map, 0, 0, chunk * kSteps, token / kActivationRows, full);
  }

  // x is [blocks of 8 tokens][4 groups][8][32 bytes], as the records are in global memory.
  __device__ __forceinline__ static uint64_t x_descriptor(uint32_t x, int step) {
    const auto offset = static_cast<uint32_t>(step * kActivationRows * kStepBytes);
    return ptx::matrix_descriptor(x + offset, Swizzle::k32, kAtomBytes);
  }

  template <int kWords>
  __device__ __forceinline__ static void multiply(int32_t (&d)[kWords],
                                                  uint64_t a,
                                                  uint64_t b,
                                                  bool accumulate) {
    ptx::wgmma_s8(d, a, b, accumulate);
  }

  __device__ __forceinline__ static float value(const Work& work,
                                                int32_t sum,
                                                int32_t output,
                                                int32_t token) {
    const auto* const scales =
        reinterpret_cast<const float*>(work.heads + token / kActivationRows * work.block_bytes);
    const float scaled = __fmul_rn(__int2float_rn(sum), scales[token % kActivationRows]);
    return __fmul_rn(scaled, work.weight_scale[output]);
  }
};

template <int kTokens, int kStages>
__device__ __forceinline__ void initialize(Ring<kTokens, kStages>& ring) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbar_init(&ring.full[stage], 1);
      // An arrival of each warp, so that no warp waits for another before it arrives.
      ptx::mbar_init(&ring.empty[stage], kConsumers / 32);
    }
    ptx::fence_mbar_init();
  }
  __syncthreads();
}

// Chunks [begin, end) of K, by one thread.
template <typename Format, int kTokens, int kStages>
__device__ __forceinline__ void produce(Ring<kTokens, kStages>& ring,
                                        const Work& work,
                                        int32_t first_output,
                                        int32_t first_token,
                                        int32_t begin,
                                        int32_t end) {
  Cursor<kStages> at;
  for (int32_t chunk = begin; chunk < end; ++chunk, at.advance()) {
    ptx::mbar_wait(&ring.empty[at.stage], at.parity ^ 1);
    ptx::Mbarrier* const full = &ring.full[at.stage];
    ptx::mbar_arrive_expect_tx(full, (kOutputs + kTokens) * kChunkBytes);
    ptx::tma_load_2d(ring.weight[at.stage],
                     &work.weight,
                     chunk * (kChunkBytes / Format::kElementBytes),
                     first_output,
                     full);
    Format::load_x(ring.x[at.stage], &work.x, chunk, first_token, full);
  }
}

// d = the chain over `count` chunks from where the ring is; 0 for none.
template <typename Format, int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_chunks(Ring<kTokens, kStages>& ring,
                                                Cursor<kStages>& at,
                                                int32_t count,
                                                typename Format::Sum (&d)[kWords]) {
  if (count == 0) {
    for (int i = 0; i < kWords; ++i) d[i] = 0;
    return;
  }
  const auto warpgroup_rows = static_cast<uint32_t>(threadIdx.x / 128 * 64 * kChunkBytes);
  for (int32_t chunk = 0; chunk < count; ++chunk, at.advance()) {
    ptx::mbar_wait(&ring.full[at.stage], at.parity);
    const uint32_t weight = ptx::shared_address(ring.weight[at.stage]) + warpgroup_rows;
    const uint32_t x = ptx::shared_address(ring.x[at.stage]);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto offset = static_cast<uint32_t>(step * kStepBytes);
      const uint64_t a = ptx::matrix_descriptor(weight + offset, Swizzle::k128, kAtomBytes);
      Format::multiply(d, a, Format::x_descriptor(x, step), chunk > 0 || step > 0);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) ptx::mbar_arrive(&ring.empty[at.stage]);
  }
}

// d += level, as level + d.
template <int kWords>
__device__ __forceinline__ void fold(const float (&level)[kWords], float (&d)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) d[i] = __fadd_rn(level[i], d[i]);
}

template <int kWords>
__device__ __forceinline__ void keep(const float (&d)[kWords], float (&level)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) level[i] = d[i];
}

// The segments fold like a binary counter: at most three partial sums wait.
template <int kTokens, int kStages, int kWords>
__device__ __forceinline__ void multiply_segments(Ring<kTokens, kStages>& ring,
                                                  int32_t chunks,
                                                  float (&d)[kWords]) {
  Cursor<kStages> at;
  float one[kWords];
  float two[kWords];
  float four[kWords];
#pragma unroll
  for (int segment = 0; segment < kSegments; ++segment) {
    const int32_t begin = segment * chunks / kSegments;
    const int32_t end = (segment + 1) * chunks / kSegments;
    multiply_chunks<Bf16>(ring, at, end - begin, d);
    if (segment % 2 == 0) {
      keep(d, one);
      continue;
    }
    fold(one, d);
    if (segment % 4 == 1) {
      keep(d, two);
      continue;
    }
    fold(two, d);
    if (segment == 3) {
      keep(d, four);
    } else {
      fold(four, d);
    }
  }
}

// From a sum over all of K to the output.
template <typename Format>
__device__ __forceinline__ void finish(const Work& work,
                                       typename Format::Sum sum,
                                       int32_t output,
                                       int32_t token) {
  float y = Format::value(work, sum, output, token);
  if (work.bias != nullptr) y = __fadd_rn(y, work.bias[output]);
  float* const out = work.out + token * work.out_stride + output;
  *out = work.add ? __fadd_rn(*out, y) : y;
}

// f(output, token, sum) for this thread's accumulators that are inside of the matrix.
template <typename Sum, int kWords, typename F>
__device__ __forceinline__ void for_outputs(
    const Work& work, const Sum (&d)[kWords], int32_t first_output, int32_t first_token, F f) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row = first_output + thread / 32 * 16 + thread % 32 / 4;
  const int32_t column = first_token + thread % 4 * 2;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int32_t output = row + i % 4 / 2 * 8;
    const int32_t token = column + i / 4 * 8 + i % 2;
    if (output < work.n && token < work.num_rows) f(output, token, d[i]);
  }
}

template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1) linear_kernel(const __grid_constant__ Work work) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const auto first_output = static_cast<int32_t>(blockIdx.x) * kOutputs;
  const auto first_token = static_cast<int32_t>(blockIdx.y) * kTokens;
  initialize(ring);
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      produce<Format>(ring, work, first_output, first_token, 0, work.chunks);
    }
    return;
  }
  typename Format::Sum d[kTokens / 2];
  if constexpr (Format::kElementBytes == 1) {  // exact, so in one piece
    Cursor<kStages> at;
    multiply_chunks<Format>(ring, at, work.chunks, d);
  } else {
    multiply_segments(ring, work.chunks, d);
  }
  for_outputs(work, d, first_output, first_token, [&](int32_t output, int32_t token, auto sum) {
    finish<Format>(work, sum, output, token);
  });
}

// One segment of K a block, into the workspace [segment][token][output].
template <typename Format, int kTokens, int kStages>
__global__ void __launch_bounds__(kThreads, 1) segment_kernel(const __grid_constant__ Work work) {
  using Stages = Ring<kTokens, kStages>;
  GPU_DYN_SHARED(Stages, ring);
  const auto first_output = static_cast<int32_t>(blockIdx.x) * kOutputs;
  const auto segment = static_cast<int32_t>(blockIdx.y);
  const int32_t begin = segment * work.chunks / kSegments;
  const int32_t end = (segment + 1) * work.chunks / kSegments;
  initialize(ring);
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) produce<Format>(ring, work, first_output, 0, begin, end);
    return;
  }
  using Sum = typename Format::Sum;
  Sum d[kTokens / 2];
  Cursor<kStages> at;
  multiply_chunks<Format>(ring, at, end - begin, d);
  auto* const partial =
      static_cast<Sum*>(work.workspace) + int64_t{segment} * work.num_rows * work.n;
  for_outputs(work, d, first_output, 0, [&](int32_t output, int32_t token, Sum sum) {
    partial[int64_t{token} * work.n + output] = sum;
  });
}

__device__ __forceinline__ float sum_of(float a, float b) { return __fadd_rn(a, b); }

__device__ __forceinline__ int32_t sum_of(int32_t a, int32_t b) { return a + b; }

constexpr int kFoldThreads = 128;

// Blocks: outputs along x, tokens along y.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1) fold_kernel(const __grid_constant__ Work work) {
  const auto output = static_cast<int32_t>(blockIdx.x * kFoldThreads + threadIdx.x);
  const auto token = static_cast<int32_t>(blockIdx.y);
  if (output >= work.n) return;
  using Sum = typename Format::Sum;
  const Sum* const partial =
      static_cast<const Sum*>(work.workspace) + int64_t{token} * work.n + output;
  Sum s[kSegments];
  for (int i = 0; i < kSegments; ++i) s[i] = partial[int64_t{i} * work.num_rows * work.n];
  for (int width = 1; width < kSegments; width *= 2) {
    for (int i = 0; i < kSegments; i += 2 * width) s[i] = sum_of(s[i], s[i + width]);
  }
  finish<Format>(work, s[0], output, token);
}

constexpr int kFewTokens = 8;
constexpr int kFewStages = 6;
constexpr int kManyTokens = 64;
constexpr int kManyStages = 4;

template <typename Format>
void start(Stream stream, const Work& work) {
  const int64_t tiles = ceil_div(work.n, kOutputs);
  if (work.num_rows > kFewTokens) {
    return gpu::launch(stream,
                       {.blocks_x = tiles,
                        .blocks_y = ceil_div(work.num_rows, kManyTokens),
                        .threads = kThreads,
                        .shared_bytes = sizeof(Ring<kManyTokens, kManyStages>)},
                       linear_kernel<Format, kManyTokens, kManyStages>,
                       work);
  }
  const bool split = work.workspace != nullptr;
  const gpu::LaunchShape shape{.blocks_x = tiles,
                               .blocks_y = split ? kSegments : 1,
                               .threads = kThreads,
                               .shared_bytes = sizeof(Ring<kFewTokens, kFewStages>)};
  if (!split)
    return gpu::launch(stream, shape, linear_kernel<Format, kFewTokens, kFewStages>, work);
  gpu::launch(stream, shape, segment_kernel<Format, kFewTokens, kFewStages>, work);
  gpu::launch(stream,
              {.blocks_x = ceil_div(work.n, kFoldThreads),
               .blocks_y = work.num_rows,
               .threads = kFoldThreads},
              fold_kernel<Format>,
              work);
}

constexpr int tile_tokens(int32_t num_rows) {
  return num_rows <= kFewTokens ? kFewTokens : kManyTokens;
}

TensorMap matrix_map(const void* data,
                     int32_t element_bytes,
                     int32_t columns,
                     int32_t rows,
                     int64_t stride,
                     int box) {
  return gpu::make_tensor_map({.data = data,
                               .element_bytes = element_bytes,
                               .rank = 2,
                               .sizes = {columns, rows},
                               .strides = {0, stride * element_bytes},
                               .box = {kChunkBytes / element_bytes, box},
                               .swizzle = Swizzle::k128});
}

}  // namespace

int64_t linear_workspace_bytes(int32_t num_rows, int32_t n) {
  if (num_rows > kFewTokens) return 0;
  return int64_t{kSegments} * num_rows * n * int64_t{sizeof(float)};
}

void launch_linear_bf16(Stream stream, const LinearBf16Args& args) {
  if (args.num_rows == 0) return;
  const int tokens = tile_tokens(args.num_rows);
  Work work{};
  work.weight = matrix_map(args.weight, 2, args.k, args.n, args.weight_stride, kOutputs);
  work.x = matrix_map(args.x, 2, args.k, args.num_rows, args.x_stride, tokens);
  work.chunks = static_cast<int32_t>(ceil_div(args.k, kChunkBytes / 2));
  work.n = args.n;
  work.num_rows = args.num_rows;
  work.bias = args.bias;
  work.add = args.epilogue == Epilogue::kAdd;
  work.out = args.out;
  work.out_stride = args.out_stride;
  work.workspace = args.workspace;
  start<Bf16>(stream, work);
}

void launch_linear_int8(Stream stream, const LinearInt8Args& args) {
  CHECK(args.x.format == ActivationFormat::kInt8Token);
  if (args.x.num_rows == 0) return;
  const int tokens = tile_tokens(args.x.num_rows);
  const int64_t groups = ceil_div(args.x.k, kQuantGroup);
  const int64_t record = activation_record_bytes(ActivationFormat::kInt8Token);
  const int64_t block = kTokenHeadBytes + groups * record;
  auto* const data = static_cast<const std::byte*>(args.x.data);
  Work work{};
  work.weight = matrix_map(args.weight, 1, args.x.k, args.n, args.weight_stride, kOutputs);
  work.x = gpu::make_tensor_map(
      {.data = data + kTokenHeadBytes,
       .element_bytes = 1,
       .rank = 4,
       .sizes = {kQuantGroup, kActivationRows, groups, ceil_div(args.x.num_rows, kActivationRows)},
       .strides = {0, kQuantGroup, record, block},
       .box = {kQuantGroup, kActivationRows, kSteps, tokens / kActivationRows},
       .swizzle = Swizzle::k32});
  work.chunks = static_cast<int32_t>(ceil_div(args.x.k, kChunkBytes));
  work.n = args.n;
  work.num_rows = args.x.num_rows;
  work.bias = args.bias;
  work.add = args.epilogue == Epilogue::kAdd;
  work.out = args.out;
  work.out_stride = args.out_stride;
  work.weight_scale = args.weight_scale;
  work.heads = data;
  work.block_bytes = block;
  work.workspace = args.workspace;
  start<Int8>(stream, work);
}

}  // namespace sluice::kernels::cuda
