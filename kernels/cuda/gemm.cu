// SPDX-License-Identifier: Apache-2.0
// Linear layers on tensor cores: turns callers' arguments into launches of this device's kernels.
#include "kernels/gemm.h"

#include <algorithm>
#include <array>

#include "engine/core/status.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/gemm_block.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {
namespace {

namespace ptx = gpu::ptx;

// Returns the most rows whose segments may go to several blocks.
int32_t most_split_rows() { return ptx::device_has_wgmma() ? kSplitTokens : kFewTokens; }

// Returns the bytes with which gemm_wide.cu puts INT8 activations in rows.
int64_t packed_x_bytes(int32_t num_rows, int32_t int8_k) {
  if (!ptx::device_has_wgmma() || num_rows <= kManyTokens) return 0;
  return num_rows * align_up(int8_k, kQuantGroup);
}

void start_mma(Stream stream, const Matrices& matrices, const Outputs& outputs) {
  launch_mma(stream, matrices, outputs);
  if (outputs.workspace == nullptr) return;
  Parts segments{.parts = {}, .count = outputs.segments.count};
  const int64_t bytes = int64_t{outputs.num_rows} * outputs.n * int64_t{sizeof(float)};
  for (int i = 0; i < segments.count; ++i) {
    segments.parts[i] = static_cast<const std::byte*>(outputs.workspace) + i * bytes;
  }
  launch_fold(stream, matrices.format, outputs, segments);
}

void start(Stream stream, std::span<const Layer> layers) {
  if (layers.empty() || layers[0].outputs.num_rows == 0) return;
  if (ptx::device_has_wgmma()) return launch_wgmma(stream, layers);
  for (const Layer& layer : layers) start_mma(stream, layer.matrices, layer.outputs);
}

// `experts`: null, or the experts whose matrices follow that of args.
template <typename Args>
Outputs outputs_in_rows(const Args& args, int32_t num_rows, const ExpertMatrices* experts) {
  CHECK(args.segments.are_all() || (args.bias == nullptr && args.epilogue == Epilogue::kStore));
  return outputs_of(args, num_rows, args.n, args.k, experts);
}

Layer layer_of(const LinearHalfArgs& args, const ExpertMatrices* experts) {
  CHECK(args.format == ActivationFormat::kBF16 || args.format == ActivationFormat::kF16);
  return {matrices_of(args), outputs_in_rows(args, args.num_rows, experts)};
}

Layer layer_of(const LinearInt8Args& args, const ExpertMatrices* experts) {
  CHECK(args.x.format == ActivationFormat::kInt8Token);
  CHECK_EQ(args.segments.num_columns(args.k), args.x.k);
  const int64_t block = token_block_bytes(args.x.k);
  const auto* const data = static_cast<const std::byte*>(args.x.data);
  const Matrices matrices{.format = args.x.format,
                          .k = args.x.k,
                          .weight = reinterpret_cast<const std::byte*>(
                              args.weight + args.segments.first_column(args.k)),
                          .weight_stride = args.weight_stride,
                          .x = data + kTokenHeadBytes,
                          .x_stride = block,
                          .x_rows = args.x.num_rows};
  Outputs outputs = outputs_in_rows(args, args.x.num_rows, experts);
  outputs.weight_scale = args.weight_scale;
  outputs.heads = data;
  outputs.block_bytes = block;
  return {matrices, outputs};
}

Layer layer_of(const LinearFp8Args& args, const ExpertMatrices* experts) {
  CHECK(is_e4m3(args.x.format));
  CHECK_EQ(args.segments.num_columns(args.k), args.x.k);
  const bool blocks = args.x.format == ActivationFormat::kE4M3Group;
  CHECK(!blocks || args.x.k == 0 || args.segments.first_column(args.k) % kE4M3GroupColumns == 0);
  const int64_t head = e4m3_head_bytes(args.x.format, args.x.k);
  const int64_t block = e4m3_block_bytes(args.x.format, args.x.k);
  const auto* const data = static_cast<const std::byte*>(args.x.data);
  const Matrices matrices{.format = args.x.format,
                          .k = args.x.k,
                          .weight = reinterpret_cast<const std::byte*>(
                              args.weight + args.segments.first_column(args.k)),
                          .weight_stride = args.weight_stride,
                          .x = data + head,
                          .x_stride = block,
                          .x_rows = args.x.num_rows};
  Outputs outputs = outputs_in_rows(args, args.x.num_rows, experts);
  outputs.weight_scale = args.weight_scale;
  outputs.weight_scale_stride = blocks ? args.weight_scale_stride : 1;
  outputs.heads = data;
  outputs.block_bytes = block;
  return {matrices, outputs};
}

// `int8_k`: columns of x where it is INT8, else 0.
template <typename Args>
void start_together(Stream stream, std::span<const Args> all, int32_t int8_k) {
  CHECK_LE(all.size(), kMostTogether);
  std::array<Layer, kMostTogether> layers;
  int32_t n = 0;  // outputs of all layers
  for (size_t i = 0; i < all.size(); ++i) {
    layers[i] = layer_of(all[i], nullptr);
    const Outputs& outputs = layers[i].outputs;
    CHECK(layers[i].matrices.x == layers[0].matrices.x && outputs.k == layers[0].outputs.k);
    CHECK(outputs.num_rows == layers[0].outputs.num_rows);
    n += outputs.n;
  }
  const std::span<Layer> used(layers.data(), all.size());
  if (all.empty() || linear_workspace_bytes(used[0].outputs.num_rows, n, int8_k) == 0) {
    return start(stream, used);
  }
  // The layers' parts of the workspace follow one another; INT8 activations in rows take it all.
  auto* const arrivals = static_cast<uint32_t*>(all[0].workspace);
  auto* room = static_cast<std::byte*>(all[0].workspace);
  if (room != nullptr) room += kArrivalBytes;
  for (Layer& layer : used) {
    layer.outputs.arrivals = arrivals;
    layer.outputs.workspace = room;
    if (room != nullptr) room += sums_bytes(layer.outputs.num_rows, layer.outputs.n);
  }
  start(stream, used);
}

}  // namespace

const std::byte* first_of_k(const PackedWeight& weight) {
  if (has_rows(weight.format)) return weight.data - row_bytes(weight.format, weight.first_column);
  const PackedLayout& layout = layout_of(weight.format);
  const int64_t columns = int64_t{layout.groups_per_block} * kQuantGroup;
  return weight.data - weight.first_column / columns * layout.block_bytes();
}

int64_t linear_workspace_bytes(int32_t num_rows, int32_t n, int32_t int8_k) {
  const int64_t sums = sums_bytes(num_rows, n);
  const bool splits = num_rows <= most_split_rows() && sums <= kMostSumsBytes;
  const int64_t bytes = std::max(splits ? sums : 0, packed_x_bytes(num_rows, int8_k));
  return bytes > 0 ? kArrivalBytes + bytes : 0;
}

int64_t workspace_bytes(int32_t num_rows, const LargestMatrices& largest) {
  const int64_t n = int64_t{kMostTogether} * largest.outputs;  // the most of a launch
  const int64_t sums = sums_bytes(std::min(num_rows, most_split_rows()), n);
  const int64_t packed = packed_x_bytes(num_rows, largest.int8_columns);
  return kArrivalBytes + std::max(std::min(sums, kMostSumsBytes), packed);
}

void launch_linear_half(Stream stream, std::span<const LinearHalfArgs> layers) {
  start_together(stream, layers, 0);
}

bool launch_linear_gated(Stream stream,
                         std::span<const LinearHalfArgs> gate_and_up,
                         const GateMulArgs& gate) {
  CHECK_EQ(gate_and_up.size(), 2U);
  CHECK(gate_and_up[0].x == gate_and_up[1].x && gate_and_up[0].format == gate_and_up[1].format);
  if (!ptx::device_has_wgmma() || gate.out.format != gate_and_up[0].format) return false;
  const std::array<Layer, 2> layers = {layer_of(gate_and_up[0], nullptr),
                                       layer_of(gate_and_up[1], nullptr)};
  return launch_gated(stream, layers, gate);
}

void launch_linear_int8(Stream stream, std::span<const LinearInt8Args> layers) {
  start_together(stream, layers, layers.empty() ? 0 : layers[0].x.k);
}

bool device_has_fp8() { return ptx::device_has_wgmma(); }

void launch_linear_fp8(Stream stream, std::span<const LinearFp8Args> layers) {
  CHECK(ptx::device_has_wgmma());
  start_together(stream, layers, 0);
}

void launch_experts_half(Stream stream, const LinearHalfArgs& args, const ExpertMatrices& experts) {
  const Layer layer = layer_of(args, &experts);
  start(stream, {&layer, 1});
}

void launch_experts_int8(Stream stream, const LinearInt8Args& args, const ExpertMatrices& experts) {
  const Layer layer = layer_of(args, &experts);
  start(stream, {&layer, 1});
}

void launch_experts_fp8(Stream stream, const LinearFp8Args& args, const ExpertMatrices& experts) {
  CHECK(ptx::device_has_wgmma());
  const Layer layer = layer_of(args, &experts);
  start(stream, {&layer, 1});
}

}  // namespace sluice::kernels::cuda
