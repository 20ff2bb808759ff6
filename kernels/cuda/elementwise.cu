// SPDX-License-Identifier: Apache-2.0
// The operators of kernels/elementwise.h and the quantization of kernels/gemm.h.
#include <algorithm>
#include <type_traits>

#include "engine/core/status.h"
#include "kernels/cuda/gates.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/narrow.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/weights.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

// The most threads of a block that writes rows with one scale (write_part), or other rows.
template <typename Codes>
inline constexpr int kWriters = std::is_void_v<Codes> ? kRowThreads : kTokenThreads;

// Calls f.operator()<Codes>() for a format's rows.
template <typename F>
void with_codes(ActivationFormat format, F f) {
  if (format == ActivationFormat::kInt8Token) return f.template operator()<Int8Codes>();
  if (format == ActivationFormat::kE4M3Token) return f.template operator()<E4M3Codes>();
  f.template operator()<void>();
}

template <GateFunction kFunction, typename Codes>
__global__ void __launch_bounds__(kWriters<Codes>, 1)
    gate_mul_kernel(const __grid_constant__ GateMulArgs args, int32_t piece) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int32_t* const rows = args.rows.data();
  const int64_t row = rows == nullptr ? int64_t{blockIdx.x} : int64_t{rows[blockIdx.x]};
  const float* const gate = args.gate + row * args.stride;
  const float* const up = (args.up == nullptr ? args.gate : args.up) + row * args.stride;
  const bool wide = is_wide(gate) && is_wide(up);
  write_part<Codes>(args.out, row, piece, [&](int32_t i) {
    return gated<kFunction>(
        load_four(gate, i, args.out.k, wide), load_four(up, i, args.out.k, wide), args);
  });
}

struct QuantizeWork {
  QuantizeArgs args;
  const int32_t* magnitudes[kSegments];
  int32_t num_magnitudes;
  int32_t piece;
};

template <typename Codes>
__global__ void __launch_bounds__(kWriters<Codes>, 1)
    quantize_kernel(const __grid_constant__ QuantizeWork work) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const QuantizeArgs& args = work.args;
  const int32_t* const rows = args.rows.data();
  const int64_t index = blockIdx.x;
  const int64_t from = rows == nullptr ? index : index / args.repeat;
  const int64_t to = rows == nullptr ? index : int64_t{rows[index]};
  const float* const x = args.x + from * args.x_stride;
  int32_t largest = kOwnLargest;
  for (int32_t i = 0; i < work.num_magnitudes; ++i) {
    const int32_t magnitude = work.magnitudes[i][index];
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool wide = is_wide(x);
  write_part<Codes>(
      args.out,
      to,
      work.piece,
      [&](int32_t i) { return load_four(x, i, args.out.k, wide); },
      largest);
}

__global__ void __launch_bounds__(kRowThreads, 1)
    add_rows_kernel(const __grid_constant__ AddRowsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  float* const x = args.x + blockIdx.x * args.x_stride;
  const float* const y = args.y + blockIdx.x * args.y_stride;
  for_elements(args.n, [&](int32_t i) { x[i] = __fmaf_rn(y[i], args.scale, x[i]); });
}

__global__ void __launch_bounds__(kRowThreads, 1)
    scale_rows_kernel(const __grid_constant__ ScaleRowsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  float* const x = args.x + blockIdx.x * args.x_stride;
  const float inverse = __fdiv_rn(1.0F, args.soft_cap);
  for_elements(args.n, [&](int32_t i) {
    float value = __fmul_rn(x[i], args.scale);
    if (args.soft_cap != 0) value = __fmul_rn(args.soft_cap, tanh_of(__fmul_rn(value, inverse)));
    x[i] = args.limit == 0 ? value : higher_of(-args.limit, lower_of(args.limit, value));
  });
}

__global__ void __launch_bounds__(kRowThreads, 1)
    gather_rows_kernel(const __grid_constant__ GatherRowsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const float* const x = args.row(args.indices.data()[blockIdx.x]);
  float* const out = args.out + blockIdx.x * args.out_stride;
  for_elements(args.n, [&](int32_t i) { out[i] = x[i]; });
}

// select_columns.
__global__ void __launch_bounds__(kRowThreads, 1)
    select_columns_kernel(const __grid_constant__ SelectColumnsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const float* const x = args.x + blockIdx.x * args.x_stride;
  float* const out = args.out + blockIdx.x * args.out_stride;
  const int32_t* const columns = args.columns.data();
  for_elements(static_cast<int32_t>(args.columns.size()), [&](int32_t i) {
    const int32_t column = columns[i];
    out[i] = column < 0 ? args.absent : x[column];
  });
}

struct EmbeddingWork {
  const std::byte* table;  // rows, or tiles where the format has blocks (quant/repack.h)
  int64_t stride;          // bytes of a row or a tile
  int64_t scales_offset;   // in rows of codes, which have `row_scales` each
  int64_t row_scales;
  int32_t k;
  const TokenId* token_ids;
  float* out;
  int64_t out_stride;
};

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kRowThreads, 1)
    embedding_kernel(const __grid_constant__ EmbeddingWork work) {
  ptx::start_next_launch();
  const TokenId token = work.token_ids[blockIdx.x];
  const std::byte* const row = work.table + token * work.stride;
  const auto* const scales =
      reinterpret_cast<const float*>(work.table + work.scales_offset) + token * work.row_scales;
  float* const out = work.out + blockIdx.x * work.out_stride;
  for_elements(work.k, [&](int32_t i) {
    float scale = 0;
    constexpr int32_t kColumns = kLayoutOf<kFormat>.columns_per_scale();
    if constexpr (kColumns != 0) {
      scale = scales[i / kColumns];
    } else if constexpr (!kLayoutOf<kFormat>.is_float()) {
      scale = scales[0];
    }
    out[i] = weight_at<kFormat>(row, i, scale);
  });
}

template <WeightFormat kFormat>
__global__ void __launch_bounds__(kRowThreads, 1)
    embedding_blocks_kernel(const __grid_constant__ EmbeddingWork work) {
  ptx::start_next_launch();
  const TokenId token = work.token_ids[blockIdx.x];
  const std::byte* const tile = work.table + token / kRowTile * work.stride;
  float* const out = work.out + blockIdx.x * work.out_stride;
  for_elements(work.k,
               [&](int32_t i) { out[i] = tile_weight_at<kFormat>(tile, token % kRowTile, i); });
}

}  // namespace

void launch_quantize_activations(Stream stream, const QuantizeArgs& args) {
  const bool all = args.rows.data() == nullptr;
  const int64_t count = all ? args.out.num_rows : static_cast<int64_t>(args.rows.size());
  CHECK(args.magnitudes.empty() || has_row_scales(args.out.format));
  CHECK_LE(args.magnitudes.size(), size_t{kSegments});
  QuantizeWork work{.args = args,
                    .magnitudes = {},
                    .num_magnitudes = static_cast<int32_t>(args.magnitudes.size()),
                    .piece = 0};
  std::ranges::copy(args.magnitudes, work.magnitudes);
  work.args.magnitudes = {};
  const RowBlocks blocks = blocks_of(args.out, count);
  work.piece = blocks.piece;
  with_codes(args.out.format, [&]<typename Codes>() {
    gpu::launch(stream, shape_of(args.out, count, blocks), quantize_kernel<Codes>, work);
  });
}

void launch_gate_mul(Stream stream, const GateMulArgs& args) {
  const bool all = args.rows.data() == nullptr;
  const int64_t count = all ? args.out.num_rows : static_cast<int64_t>(args.rows.size());
  const RowBlocks blocks = blocks_of(args.out, count);
  const gpu::LaunchShape shape = shape_of(args.out, count, blocks);
  const auto start = [&]<GateFunction kFunction>() {
    with_codes(args.out.format, [&]<typename Codes>() {
      gpu::launch(stream, shape, gate_mul_kernel<kFunction, Codes>, args, blocks.piece);
    });
  };
  switch (args.function) {
    case GateFunction::kSilu:
      return start.template operator()<GateFunction::kSilu>();
    case GateFunction::kGeluTanh:
      return start.template operator()<GateFunction::kGeluTanh>();
    case GateFunction::kClampedSwiglu:
      return start.template operator()<GateFunction::kClampedSwiglu>();
    case GateFunction::kSigmoid:
      return start.template operator()<GateFunction::kSigmoid>();
    case GateFunction::kSquaredRelu:
      return start.template operator()<GateFunction::kSquaredRelu>();
    case GateFunction::kGelu:
      return start.template operator()<GateFunction::kGelu>();
    case GateFunction::kGeluErf:
      return start.template operator()<GateFunction::kGeluErf>();
    case GateFunction::kGeluTanhAlone:
      return start.template operator()<GateFunction::kGeluTanhAlone>();
    case GateFunction::kRelu:
      return start.template operator()<GateFunction::kRelu>();
    case GateFunction::kXielu:
      return start.template operator()<GateFunction::kXielu>();
  }
}

void launch_add_rows(Stream stream, const AddRowsArgs& args) {
  gpu::launch(stream, piecewise(args.num_rows, args.n), add_rows_kernel, args);
}

void launch_scale_rows(Stream stream, const ScaleRowsArgs& args) {
  gpu::launch(stream, piecewise(args.num_rows, args.n), scale_rows_kernel, args);
}

void launch_gather_rows(Stream stream, const GatherRowsArgs& args) {
  const auto rows = static_cast<int64_t>(args.indices.size());
  gpu::launch(stream, piecewise(rows, args.n), gather_rows_kernel, args);
}

void launch_select_columns(Stream stream, const SelectColumnsArgs& args) {
  const auto n = static_cast<int32_t>(args.columns.size());
  gpu::launch(stream, piecewise(args.num_rows, n), select_columns_kernel, args);
}

void launch_embedding(Stream stream, const EmbeddingArgs& args) {
  const PackedWeight& table = *args.table;
  const bool rows = has_rows(table.format);
  const EmbeddingWork work{.table = table.data,
                           .stride = rows ? matrix_row_stride(table.format, table.k)
                                          : packed_tile_bytes(table.format, table.k),
                           .scales_offset = matrix_scales_offset(table.format, table.n, table.k),
                           .row_scales = matrix_row_scales(table.format, table.k),
                           .k = table.k,
                           .token_ids = args.token_ids.data(),
                           .out = args.out,
                           .out_stride = args.out_stride};
  gpu::LaunchShape shape = piecewise(static_cast<int64_t>(args.token_ids.size()), table.k);
  shape.overlaps = overlaps(LaunchKind::kEmbedding, shape.blocks_x);
  with_format(table.format, [&]<WeightFormat kFormat>() {
    if constexpr (kLayoutOf<kFormat>.has_rows()) {
      gpu::launch(stream, shape, embedding_kernel<kFormat>, work);
    } else {
      gpu::launch(stream, shape, embedding_blocks_kernel<kFormat>, work);
    }
  });
}

}  // namespace sluice::kernels::cuda
