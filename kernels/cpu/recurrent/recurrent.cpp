// SPDX-License-Identifier: Apache-2.0
#include "kernels/recurrent.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "engine/core/status.h"
#include "kernels/cpu/cpu_operators.h"
#include "kernels/cpu/recurrent/recurrent_block.h"
#include "kernels/cpu/rows/row_operators.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/state_walk.h"

namespace sluice::kernels::cpu {
namespace {

constexpr int32_t kLanes = kStateLanes;

const RecurrentTable& table_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kScalarRecurrent;
    case Isa::kAvx2:
      return kAvx2Recurrent;
    case Isa::kAvx512:
    case Isa::kAmx:
      return kAvx512Recurrent;
  }
  SLUICE_UNREACHABLE("instruction set without a table");
}

float* state_of(const StateTable& table, int32_t block) {
  DCHECK(block >= 0);
  return table.states + block * table.block_floats;
}

// Calls read(state) with what a request's first row finds, null for zeros; then, for runs of rows,
// run(first_row, num_rows), and write(state) after those that are the last ones of a block.
template <typename Read, typename Run, typename Write>
void walk(const StateTable& table,
          int64_t request,
          const Read& read,
          const Run& run,
          const Write& write) {
  const StateWalk rows(table, request);
  if (rows.first() == rows.end()) return;
  read(rows.found() < 0 ? nullptr : state_of(table, rows.found()));
  for (int32_t position = rows.first(); position < rows.end();) {
    const StateRun some = rows.run_at(position);
    run(some.first_row, some.num_rows);
    if (some.block >= 0) write(state_of(table, some.block));
    position += some.num_rows;
  }
}

// Copies a request's replayed rows from where the last step kept them, then keeps its drafts.
void replay(const ReplayRowsArgs& args, int64_t request) {
  const StateWalk rows(args.kept, request);
  const auto for_parts = [&](float* kept, const StateRun& run, const auto& copy) {
    for (int32_t i = 0; i < run.num_rows; ++i) {
      float* const at = args.rows + (run.first_row + i) * args.row_stride;
      for (const auto& [first, width] : args.columns) {
        copy(at + first, kept, width);
        kept += width;
      }
    }
  };
  if (const StateRun replayed = rows.replayed(); replayed.num_rows > 0) {
    for_parts(state_of(args.kept, rows.found()), replayed, [](float* row, float* kept, int32_t n) {
      std::copy_n(kept, n, row);
    });
  }
  if (const StateRun drafts = rows.drafts(); drafts.num_rows > 0) {
    for_parts(state_of(args.kept, rows.left()), drafts, [](float* row, float* kept, int32_t n) {
      std::copy_n(row, n, kept);
    });
  }
}

int64_t num_requests(const StateTable& table) {
  return static_cast<int64_t>(table.seq_lens.size());
}

// Copies `count` pieces of 16 floats; zeros instead of null.
void take_columns(const float* from, int32_t count, float* to) {
  if (from == nullptr) return std::fill(to, to + count * kLanes, 0.0F);
  std::memcpy(to, from, static_cast<size_t>(count) * kLanes * sizeof(float));
}

void put_columns(const float* from, int32_t count, float* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * kLanes * sizeof(float));
}

void convolve(const RecurrentTable& simd, const ShortConvArgs& args, int64_t request, int64_t c) {
  alignas(64) float window[kMaxConvTaps * kLanes];
  const auto at = [c](const float* x) { return x == nullptr ? nullptr : x + c; };
  const int32_t before = args.taps - 1;
  const int64_t place = c * before;
  walk(
      args.state,
      request,
      [&](const float* state) {
        take_columns(state == nullptr ? nullptr : state + place, before, window);
      },
      [&](int64_t row, int32_t num_rows) {
        const auto of_row = [&](const float* x) {
          return x == nullptr ? nullptr : x + row * args.x_stride + c;
        };
        simd.conv_block({.x = of_row(args.x),
                         .gate_in = of_row(args.gate_in),
                         .gate_out = of_row(args.gate_out),
                         .x_stride = args.x_stride,
                         .out = args.out + row * args.out_stride + c,
                         .out_stride = args.out_stride,
                         .num_rows = num_rows,
                         .taps = args.taps,
                         .weight = args.weight + c,
                         .bias = at(args.bias),
                         .n = args.n,
                         .silu = args.silu,
                         .window = window});
      },
      [&](float* state) { put_columns(window, before, state + place); });
}

// Sixteen columns, from `column` on, of value head `head`.
void run_delta(const RecurrentTable& simd,
               const DeltaRuleArgs& args,
               int64_t request,
               int64_t head,
               int64_t column) {
  alignas(64) float columns[kMaxStateKeys * kLanes];
  const int64_t key = int64_t{args.key_heads[static_cast<size_t>(head)]} * args.key_dim;
  const int64_t value = head * args.value_dim + column;
  const int64_t place = (head * args.value_dim + column) * args.key_dim;
  const int64_t decay = args.decays_channels ? head * args.key_dim : head;
  walk(
      args.state,
      request,
      [&](const float* state) {
        const float* const from = state == nullptr ? nullptr : state + place;
        take_columns(from, args.key_dim, columns);
      },
      [&](int64_t row, int32_t num_rows) {
        simd.delta_block({.q = args.q + row * args.qkv_stride + key,
                          .k = args.k + row * args.qkv_stride + key,
                          .v = args.v + row * args.qkv_stride + value,
                          .qkv_stride = args.qkv_stride,
                          .beta = args.b + row * args.gate_stride + head,
                          .decay = args.a + row * args.gate_stride + decay,
                          .decays_channels = args.decays_channels,
                          .gate_stride = args.gate_stride,
                          .out = args.out + row * args.out_stride + value,
                          .out_stride = args.out_stride,
                          .num_rows = num_rows,
                          .key_dim = args.key_dim,
                          .state = columns});
      },
      [&](float* state) { put_columns(columns, args.key_dim, state + place); });
}

// Sixteen columns, from `column` on, of head `head`.
void run_mamba(const RecurrentTable& simd,
               const Mamba2Args& args,
               int64_t request,
               int64_t head,
               int64_t column) {
  alignas(64) float columns[kMaxStateKeys * kLanes];
  const int64_t of_group = head / (args.num_heads / args.num_groups) * args.state_dim;
  const int64_t value = head * args.head_dim + column;
  const int64_t place = (head * args.head_dim + column) * args.state_dim;
  walk(
      args.state,
      request,
      [&](const float* state) {
        const float* const from = state == nullptr ? nullptr : state + place;
        take_columns(from, args.state_dim, columns);
      },
      [&](int64_t row, int32_t num_rows) {
        simd.mamba_block({.x = args.x + row * args.row_stride + value,
                          .b = args.b + row * args.row_stride + of_group,
                          .c = args.c + row * args.row_stride + of_group,
                          .row_stride = args.row_stride,
                          .step = args.dt + row * args.step_stride + head,
                          .decay = args.decay + row * args.step_stride + head,
                          .step_stride = args.step_stride,
                          .skip = args.skip[head],
                          .out = args.out + row * args.out_stride + value,
                          .out_stride = args.out_stride,
                          .num_rows = num_rows,
                          .state_dim = args.state_dim,
                          .state = columns});
      },
      [&](float* state) { put_columns(columns, args.state_dim, state + place); });
}

}  // namespace

void replay_rows(const ExecContext& ctx, const ReplayRowsArgs& args) {
  ctx.pool->parallel_for(num_requests(args.kept),
                         [&](int64_t request, int32_t) { replay(args, request); });
}

void short_conv(const ExecContext& ctx, const ShortConvArgs& args) {
  DCHECK(args.n % kLanes == 0 && args.taps >= 2 && args.taps <= kMaxConvTaps);
  const RecurrentTable& simd = table_of(ctx.isa);
  const int64_t pieces = args.n / kLanes;
  ctx.pool->parallel_for_chunked(
      num_requests(args.state) * pieces, {.chunk = 4}, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin; i < end; ++i) {
          convolve(simd, args, i / pieces, i % pieces * kLanes);
        }
      });
}

void delta_rule(const ExecContext& ctx, const DeltaRuleArgs& args) {
  DCHECK(args.key_dim % kLanes == 0 && args.key_dim <= kMaxStateKeys);
  DCHECK(args.value_dim % kLanes == 0);
  const RecurrentTable& simd = table_of(ctx.isa);
  const auto num_value_heads = static_cast<int32_t>(args.key_heads.size());
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int32_t) {
    simd.delta_row({.q = args.q + row * args.qkv_stride,
                    .k = args.k + row * args.qkv_stride,
                    .b = args.b + row * args.gate_stride,
                    .a = args.a + row * args.gate_stride,
                    .rate = args.rate,
                    .dt_bias = args.dt_bias,
                    .decays_channels = args.decays_channels,
                    .num_key_heads = args.num_key_heads,
                    .num_value_heads = num_value_heads,
                    .key_dim = args.key_dim,
                    .scale = args.scale,
                    .beta_scale = args.beta_scale,
                    .eps = args.eps});
  });
  const int64_t pieces = args.value_dim / kLanes;
  const int64_t of_request = num_value_heads * pieces;
  ctx.pool->parallel_for(num_requests(args.state) * of_request, [&](int64_t i, int32_t) {
    const int64_t rest = i % of_request;
    run_delta(simd, args, i / of_request, rest / pieces, rest % pieces * kLanes);
  });
}

void mamba2(const ExecContext& ctx, const Mamba2Args& args) {
  DCHECK(args.state_dim % kLanes == 0 && args.state_dim <= kMaxStateKeys);
  DCHECK(args.head_dim % kLanes == 0 && args.num_heads % args.num_groups == 0);
  const RecurrentTable& simd = table_of(ctx.isa);
  ctx.pool->parallel_for(args.num_rows, [&](int64_t row, int32_t) {
    simd.mamba_row({.dt = args.dt + row * args.step_stride,
                    .decay = args.decay + row * args.step_stride,
                    .rate = args.rate,
                    .dt_bias = args.dt_bias,
                    .min_step = args.min_step,
                    .max_step = args.max_step,
                    .num_heads = args.num_heads});
  });
  const int64_t pieces = args.head_dim / kLanes;
  const int64_t of_request = args.num_heads * pieces;
  ctx.pool->parallel_for(num_requests(args.state) * of_request, [&](int64_t i, int32_t) {
    const int64_t rest = i % of_request;
    run_mamba(simd, args, i / of_request, rest / pieces, rest % pieces * kLanes);
  });
}

void run_rows(const SimdTable& simd, const GatedSquaresArgs& args, int64_t begin, int64_t end) {
  const int32_t width = args.num_heads * args.n;
  DCHECK(args.x_stride >= align_up(width, kQuantGroup));
  DCHECK(args.first + args.num_heads <= args.whole);
  for (int64_t row = begin; row < end; ++row) {
    float* const x = args.x + row * args.x_stride;
    float* const sums = args.sums + row * args.whole;
    const Activations in_place = {
        .format = ActivationFormat::kFloat, .num_rows = 1, .k = width, .data = x};
    const float* const gate = args.gate + row * args.gate_stride;
    const GateMulArgs silu = {.gate = gate, .up = x, .stride = 0, .out = in_place};
    simd.gate_mul_row(silu, gate, x, quantized_row(in_place, 0));
    std::fill_n(sums, args.whole, 0.0F);
    for (int32_t head = 0; head < args.num_heads; ++head) {
      sums[args.first + head] = simd.sum_of_squares(x + int64_t{head} * args.n, args.n);
    }
  }
}

void gated_squares(const ExecContext& ctx, const GatedSquaresArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

namespace {

// The factor of a row's heads in one group.
float norm_of_group(const GroupNormArgs& args, int64_t row, int32_t group) {
  const int32_t heads = args.whole / args.num_groups;
  float sum = 0;
  for (int32_t head = group * heads; head < (group + 1) * heads; ++head) {
    uint32_t largest = 0;
    for (int32_t part = 0; part < args.num_parts; ++part) {
      largest =
          std::max(largest, std::bit_cast<uint32_t>(args.parts[part][row * args.whole + head]));
    }
    sum += std::bit_cast<float>(largest);
  }
  return 1.0F / std::sqrt(sum / static_cast<float>(heads * args.n) + args.eps);
}

}  // namespace

void run_rows(const SimdTable& simd, const GroupNormArgs& args, int64_t begin, int64_t end) {
  const int32_t heads = args.whole / args.num_groups;
  for (int64_t row = begin; row < end; ++row) {
    for (int32_t head = 0; head < args.num_heads;) {
      const int32_t group = (args.first + head) / heads;
      const int32_t next = std::min(args.num_heads, (group + 1) * heads - args.first);
      const int64_t column = int64_t{head} * args.n;
      simd.scale_by_weights(args.x + row * args.x_stride + column,
                            args.weight + column,
                            norm_of_group(args, row, group),
                            (next - head) * args.n);
      head = next;
    }
  }
}

void group_norm(const ExecContext& ctx, const GroupNormArgs& args) {
  const SimdTable& simd = simd_table(ctx.isa);
  ctx.pool->parallel_for(args.num_rows,
                         [&](int64_t row, int32_t) { run_rows(simd, args, row, row + 1); });
}

}  // namespace sluice::kernels::cpu
