// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <algorithm>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/cpu/rows/math64.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/rope_scaling.h"

namespace sluice::kernels {

RopeTable::RopeTable(const RopeParams& params, int32_t num_positions)
    : num_pairs_(params.rotary_dim / 2),
      num_positions_(num_positions),
      style_(params.style),
      attention_factor_(static_cast<double>(params.attention_factor)),
      query_scale_(params.query_scale) {
  CHECK(params.rotary_dim % 2 == 0);
  CHECK(params.freq_factors.empty() ||
        params.freq_factors.size() >= static_cast<size_t>(num_pairs_));
  const double log2_base = cpu::log2_f64(static_cast<double>(params.freq_base));
  step_.resize(static_cast<size_t>(num_pairs_));
  for (int32_t i = 0; i < num_pairs_; ++i) {
    const double exponent = static_cast<double>(2 * i) / params.rotary_dim;
    double freq = cpu::exp2_f64(-exponent * log2_base) * static_cast<double>(params.freq_scale);
    if (!params.freq_factors.empty()) {
      const float factor = params.freq_factors[static_cast<size_t>(i)];
      freq = factor == kUnturnedFactor ? 0 : freq / static_cast<double>(factor);
    }
    step_[static_cast<size_t>(i)] = freq;
  }
  const size_t size = static_cast<size_t>(num_positions) * static_cast<size_t>(num_pairs_);
  cos_ = std::make_unique_for_overwrite<float[]>(size);
  sin_ = std::make_unique_for_overwrite<float[]>(size);
  if (query_scale_.beta != 0) {
    query_scales_ = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(num_positions));
  }
}

Expected<void> RopeTable::place_on(DeviceMemory& memory) {
  CHECK_EQ(num_ready_, 0);
  if (memory.is_host()) return {};
  SLUICE_TRY(device_rows_, DeviceBuffer::allocate(memory, bytes(), "rotary positions"));
  return {};
}

const float* RopeTable::device_sin() const {
  if (device_rows_.data() == nullptr) return nullptr;
  return device_cos() + int64_t{num_positions_} * num_pairs_;
}

const float* RopeTable::device_query_scales() const {
  if (device_rows_.data() == nullptr || query_scales_ == nullptr) return nullptr;
  return device_cos() + 2 * int64_t{num_positions_} * num_pairs_;
}

// Copies `count` floats of a part of the rows, which begins at `rows` and, on the device, `offset`
// floats on.
void RopeTable::upload(const float* first, const float* rows, int64_t offset, int64_t count) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  device_rows_.memory().upload(device_rows_.data() + (offset + (first - rows)) * kFloat,
                               reinterpret_cast<const std::byte*>(first),
                               count * kFloat);
}

void RopeTable::prepare(int32_t end) {
  constexpr int32_t kPiece = 64;  // positions; a decode does not compute rows in each step
  constexpr double kLn2 = 0.693147180559945309417;
  CHECK_LE(end, num_positions_);
  if (end <= num_ready_) return;
  end = static_cast<int32_t>(std::min<int64_t>(align_up(end, kPiece), num_positions_));
  const int32_t first = num_ready_;
  auto at = static_cast<size_t>(num_ready_) * static_cast<size_t>(num_pairs_);
  for (; num_ready_ < end; ++num_ready_) {
    for (const double step : step_) {
      const cpu::SinCos value = cpu::sincos_f64(static_cast<double>(num_ready_) * step);
      cos_[at] = static_cast<float>(value.cos * attention_factor_);
      sin_[at] = static_cast<float>(value.sin * attention_factor_);
      ++at;
    }
    if (query_scales_ == nullptr) continue;
    const int64_t times = (int64_t{num_ready_} + query_scale_.shift) / query_scale_.context;
    const double log = cpu::log2_f64(static_cast<double>(1 + times)) * kLn2;
    query_scales_[static_cast<size_t>(num_ready_)] =
        static_cast<float>(1 + query_scale_.beta * log);
  }
  if (device_rows_.data() == nullptr) return;
  const int64_t count = int64_t{end - first} * num_pairs_;
  const int64_t part = int64_t{num_positions_} * num_pairs_;
  upload(cos_row(first), cos_row(0), 0, count);
  upload(sin_row(first), sin_row(0), part, count);
  if (query_scales_ == nullptr) return;
  upload(query_scales_.get() + first, query_scales_.get(), 2 * part, end - first);
}

int64_t RopeTable::bytes(const RopeParams& params, int64_t num_positions) {
  const int64_t per_position = params.rotary_dim / 2 * 2 + (params.query_scale.beta != 0 ? 1 : 0);
  return num_positions * per_position * static_cast<int64_t>(sizeof(float));
}

namespace cpu {
namespace {

// Rotates q and k, and norms and scales what is left.
void turn_row(const SimdTable& simd, const RopeWriteKvArgs& args, int64_t token) {
  const int32_t head_dim = args.kv.head_dim;
  const int32_t position = args.positions[static_cast<size_t>(token)];
  float* const q = args.q + token * args.q_stride;
  float* const k = args.k + token * args.k_stride;
  if (args.table != nullptr) {
    RopeRow row{.x = q,
                .cos = args.table->cos_row(position),
                .sin = args.table->sin_row(position),
                .num_heads = args.num_heads,
                .head_dim = head_dim,
                .num_pairs = args.table->num_pairs(),
                .halves = args.table->style() == RopeStyle::kHalves};
    simd.rope_row(row);
    row.x = k;
    row.num_heads = args.kv.num_kv_heads;
    simd.rope_row(row);
  }
  if (args.q_norm != nullptr) {
    RowNorm norm{
        .weight = args.q_norm, .bias = nullptr, .eps = args.norm_eps, .subtracts_mean = false};
    for (int64_t i = 0; i < args.num_heads; ++i) {
      simd.norm_in_place(q + i * head_dim, norm, head_dim);
    }
    norm.weight = args.k_norm;
    for (int64_t i = 0; i < args.kv.num_kv_heads; ++i) {
      simd.norm_in_place(k + i * head_dim, norm, head_dim);
    }
  }
  if (args.table == nullptr || args.table->query_scales() == nullptr) return;
  const ScaleRowsArgs scale = {.x = q,
                               .x_stride = 0,
                               .num_rows = 1,
                               .n = args.num_heads * head_dim,
                               .scale = args.table->query_scales()[position]};
  simd.scale_row(scale, q);
}

}  // namespace

void run_rows(const SimdTable& simd, const RopeWriteKvArgs& args, int64_t begin, int64_t end) {
  const KvLayerView& kv = args.kv;
  const auto element = static_cast<int64_t>(dtype_bytes(kv.dtype));
  const int64_t k_dim = cached_head_dim(kv.head_dim);
  const int64_t v_dim = cached_head_dim(kv.value_width());
  const int64_t k_bytes = kv_head_bytes(kv.dtype, kv.head_dim, kv.block_size);
  const int64_t v_bytes = kv_head_bytes(kv.dtype, kv.value_width(), kv.block_size);
  DCHECK(args.positions.size() == args.slot_mapping.size());
  DCHECK(args.table == nullptr || 2 * args.table->num_pairs() <= kv.head_dim);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = args.slot_mapping[static_cast<size_t>(token)];
    if (slot < 0) continue;
    turn_row(simd, args, token);
    const int64_t first_head = slot / kv.block_size * kv.num_kv_heads;
    const int64_t offset = slot % kv.block_size;
    std::byte* const k_block = kv.k + first_head * k_bytes;
    std::byte* const v_block = kv.v + first_head * v_bytes;
    const auto scale_of = [&](std::byte* block, int64_t dim) {
      const int64_t at = dim * kv.block_size + offset * int64_t{sizeof(float)};
      return has_kv_scales(kv.dtype) ? reinterpret_cast<float*>(block + at) : nullptr;
    };
    simd.kv_row({.k = args.k + token * args.k_stride,
                 .v = args.v + token * args.v_stride,
                 .k_slot = k_block + offset * element,
                 .v_slot = v_block + offset * v_dim * element,
                 .k_scale = scale_of(k_block, k_dim),
                 .v_scale = scale_of(v_block, v_dim),
                 .k_head_bytes = k_bytes,
                 .v_head_bytes = v_bytes,
                 .dtype = kv.dtype,
                 .num_kv_heads = kv.num_kv_heads,
                 .width = kv.head_dim,
                 .value_width = kv.value_width(),
                 .block_size = kv.block_size});
  }
}

void rope_write_kv(const ExecContext& ctx, const RopeWriteKvArgs& args) {
  constexpr int64_t kTokensPerClaim = 4;
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for_chunked(
      static_cast<int64_t>(args.positions.size()),
      {.chunk = kTokensPerClaim},
      [&](int64_t begin, int64_t end, int32_t) { run_rows(simd, args, begin, end); });
}

}  // namespace cpu
}  // namespace sluice::kernels
