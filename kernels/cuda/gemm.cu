// SPDX-License-Identifier: Apache-2.0
// Linear layers on tensor cores: what the callers say, as launches of the kernels for this device.
// No GPU has run it yet.
#include "kernels/gemm.h"

#include "engine/core/status.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"

namespace sluice::kernels::cuda {
namespace {

constexpr int kFoldThreads = 128;

// The segments in the workspace, as outputs. Blocks: outputs along x, tokens along y.
template <typename Format>
__global__ void __launch_bounds__(kFoldThreads, 1)
    fold_kernel(const __grid_constant__ Outputs outputs) {
  const auto output = static_cast<int32_t>(blockIdx.x * kFoldThreads + threadIdx.x);
  const auto token = static_cast<int32_t>(blockIdx.y);
  if (output >= outputs.n) return;
  using Sum = typename Format::Sum;
  const Sum* const partial =
      static_cast<const Sum*>(outputs.workspace) + int64_t{token} * outputs.n + output;
  Sum s[kSegments];
  for (int i = 0; i < kSegments; ++i) s[i] = partial[int64_t{i} * outputs.num_rows * outputs.n];
  finish<Format>(outputs, fold_segments(s, kSegments), 0, output, token);
}

// The one place that asks which device this is. wgmma is Hopper's alone.
void start(Stream stream, const Matrices& matrices, const Outputs& outputs) {
  if (outputs.num_rows == 0) return;
  constexpr int kHopper = 90;
  const auto multiply = gpu::compute_capability() == kHopper ? launch_wgmma : launch_mma;
  multiply(stream, matrices, outputs);
  if (outputs.workspace == nullptr) return;
  const gpu::LaunchShape shape{.blocks_x = ceil_div(outputs.n, kFoldThreads),
                               .blocks_y = outputs.num_rows,
                               .threads = kFoldThreads};
  const bool int8 = matrices.format == MatrixFormat::kInt8;
  gpu::launch(stream, shape, int8 ? fold_kernel<Int8Sums> : fold_kernel<FloatSums>, outputs);
}

// All of one matrix, or of the experts'.
void start(Stream stream, const LinearHalfArgs& args, const ExpertMatrices* experts) {
  CHECK(args.format == WeightFormat::kBF16 || args.format == WeightFormat::kF16);
  const bool f16 = args.format == WeightFormat::kF16;
  const Matrices matrices{.format = f16 ? MatrixFormat::kF16 : MatrixFormat::kBf16,
                          .k = args.k,
                          .weight = reinterpret_cast<const std::byte*>(args.weight),
                          .weight_stride = args.weight_stride * 2,
                          .x = reinterpret_cast<const std::byte*>(args.x),
                          .x_stride = args.x_stride * 2,
                          .x_rows = args.num_rows};
  Outputs outputs{};
  outputs.chunks = static_cast<int32_t>(ceil_div(args.k, kChunkBytes / 2));
  outputs.n = args.n;
  outputs.num_rows = args.num_rows;
  outputs.bias = args.bias;
  outputs.add = args.epilogue == Epilogue::kAdd;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  if (experts != nullptr) {
    outputs.experts = experts->rows;
    outputs.expert_stride = experts->stride;
  } else if (args.num_rows <= kFewTokens) {
    outputs.workspace = args.workspace;
  }
  start(stream, matrices, outputs);
}

void start(Stream stream, const LinearInt8Args& args, const ExpertMatrices* experts) {
  CHECK(args.x.format == ActivationFormat::kInt8Token);
  const int64_t record = activation_record_bytes(ActivationFormat::kInt8Token);
  const int64_t block = kTokenHeadBytes + ceil_div(args.x.k, kQuantGroup) * record;
  const auto* const data = static_cast<const std::byte*>(args.x.data);
  const Matrices matrices{.format = MatrixFormat::kInt8,
                          .k = args.x.k,
                          .weight = reinterpret_cast<const std::byte*>(args.weight),
                          .weight_stride = args.weight_stride,
                          .x = data + kTokenHeadBytes,
                          .x_stride = block,
                          .x_rows = args.x.num_rows};
  Outputs outputs{};
  outputs.chunks = static_cast<int32_t>(ceil_div(args.x.k, kChunkBytes));
  outputs.n = args.n;
  outputs.num_rows = args.x.num_rows;
  outputs.bias = args.bias;
  outputs.add = args.epilogue == Epilogue::kAdd;
  outputs.out = args.out;
  outputs.out_stride = args.out_stride;
  outputs.weight_scale = args.weight_scale;
  outputs.heads = data;
  outputs.block_bytes = block;
  if (experts != nullptr) {
    outputs.experts = experts->rows;
    outputs.expert_stride = experts->stride;
  } else if (args.x.num_rows <= kFewTokens) {
    outputs.workspace = args.workspace;
  }
  start(stream, matrices, outputs);
}

}  // namespace

int64_t linear_workspace_bytes(int32_t num_rows, int32_t n) {
  if (num_rows > kFewTokens) return 0;
  return int64_t{kSegments} * num_rows * n * int64_t{sizeof(float)};
}

void launch_linear_half(Stream stream, const LinearHalfArgs& args) { start(stream, args, nullptr); }

void launch_linear_int8(Stream stream, const LinearInt8Args& args) { start(stream, args, nullptr); }

void launch_experts_half(Stream stream, const LinearHalfArgs& args, const ExpertMatrices& experts) {
  start(stream, args, &experts);
}

void launch_experts_int8(Stream stream, const LinearInt8Args& args, const ExpertMatrices& experts) {
  start(stream, args, &experts);
}

}  // namespace sluice::kernels::cuda
