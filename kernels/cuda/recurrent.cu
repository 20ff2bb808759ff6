// SPDX-License-Identifier: Apache-2.0
// The operators of kernels/recurrent.h with the CPU's bits.
//
// A state is cut as the definition cuts it: a block has sixteen columns of a head of a request, in
// registers, and walks the request's rows in order. Thread (lane, four) has the rows lane, lane +
// 16, ... of four columns, which are the terms of one lane of the sums, so that a sum is a chain in
// a thread and four shuffles, and no thread waits for another warp. A row's inputs are read while
// the row in front of it is computed. A step of one row reads and writes the state once, in whole
// sectors.
#include "kernels/recurrent.h"

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/overlap.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/rows.h"
#include "kernels/state_walk.h"

namespace sluice::kernels::cuda {

namespace ptx = gpu::ptx;

namespace {

constexpr int kLanes = kStateLanes;
constexpr int kFour = 4;  // columns of a thread
constexpr int kStateThreads = kLanes * kStateLanes / kFour;
constexpr int kRowStep = kLanes * kStateLanes;  // floats from a thread's row of a state to its next
constexpr int kThreads = 128;                   // of the other kernels

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % kLanes; }

__device__ __forceinline__ int first_column_of() {
  return static_cast<int>(threadIdx.x) / kLanes * kFour;
}

__device__ __forceinline__ float softplus_of(float x) {
  const float magnitude = __int_as_float(__float_as_int(x) & INT32_MAX);
  const float tail = log_of(__fadd_rn(1.0F, exp_of(__fsub_rn(0.0F, magnitude))));
  return __fadd_rn(higher_of(0.0F, x), tail);
}

__device__ __forceinline__ Four fold_lanes(const Four& sums) {
  Four folded;
#pragma unroll
  for (int j = 0; j < kFour; ++j) folded.v[j] = sum_of_sixteen(sums.v[j]);
  return folded;
}

// Reads four columns of a row; rows need not be aligned.
__device__ __forceinline__ Four read_columns(const float* x) { return {{x[0], x[1], x[2], x[3]}}; }

// Four lanes write a column each.
__device__ __forceinline__ void write_columns(float* out, const Four& values) {
  const int lane = lane_of();
  if (lane < 2) out[lane] = lane == 0 ? values.v[0] : values.v[1];
  if (lane == 2 || lane == 3) out[lane] = lane == 2 ? values.v[2] : values.v[3];
}

// A thread's rows, at most kMost, of its columns of a state.
template <int kMost>
struct StatePart {
  Four rows[kMost];
  int32_t num_rows;

  // `state`: of the thread's first row; null: zeros.
  __device__ __forceinline__ void read(const float* state) {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      const bool has = state != nullptr && i < num_rows;
      rows[i] = has ? load_four(state + i * kRowStep, 0, kFour, true) : Four{};
    }
  }

  __device__ __forceinline__ void write(float* state) const {
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i < num_rows) store_four(state + i * kRowStep, 0, kFour, true, rows[i]);
    }
  }
};

// Reads the thread's elements lane, lane + 16, ... of a vector along the state's rows.
template <int kMost>
__device__ __forceinline__ void read_rows(const float* x, int32_t num_rows, float (&to)[kMost]) {
#pragma unroll
  for (int i = 0; i < kMost; ++i) to[i] = i < num_rows ? x[i * kLanes] : 0.0F;
}

// Calls step(part, inputs, row) for a request's rows in order, with inputs = load(row), and reads
// and writes the states where the table says, `place` floats into a block.
template <int kMost, typename Load, typename Step>
__device__ __forceinline__ void walk_state(
    const StateTable& table, int64_t request, int64_t place, int32_t keys, Load load, Step step) {
  const StateWalk walk(table, request);
  if (walk.first() == walk.end()) return;
  float* const states = table.states + place + lane_of() * kStateLanes + first_column_of();
  const auto state_of = [&](int32_t block) { return states + block * table.block_floats; };
  StatePart<kMost> part;
  part.num_rows = keys / kLanes;
  part.read(walk.found() < 0 ? nullptr : state_of(walk.found()));
  for (int32_t position = walk.first(); position < walk.end();) {
    const StateRun run = walk.run_at(position);
    auto inputs = load(run.first_row);
    for (int32_t i = 0; i < run.num_rows; ++i) {
      const int32_t next = i + 1 < run.num_rows ? i + 1 : i;
      const auto ahead = load(run.first_row + next);
      step(part, inputs, run.first_row + i);
      inputs = ahead;
    }
    if (run.block >= 0) part.write(state_of(run.block));
    position += run.num_rows;
  }
}

// Which sixteen columns of which head of which request a block has.
struct StatePlace {
  int64_t request;
  int64_t head;
  int64_t column;

  __device__ __forceinline__ StatePlace(int32_t num_heads, int32_t width) {
    const int64_t pieces = width / kStateLanes;
    const int64_t of_request = num_heads * pieces;
    const int64_t index = blockIdx.x;
    request = index / of_request;
    head = index % of_request / pieces;
    column = index % pieces * kStateLanes;
  }
};

int64_t num_requests(const StateTable& table) {
  return static_cast<int64_t>(table.seq_lens.size());
}

// Calls f.operator()<kMost>() for heads of so many keys.
template <typename F>
void with_rows(int32_t keys, F f) {
  CHECK(keys % kLanes == 0 && keys <= kMaxStateKeys);
  if (keys <= 4 * kLanes) return f.template operator()<4>();
  if (keys <= 8 * kLanes) return f.template operator()<8>();
  f.template operator()<kMaxStateKeys / kLanes>();
}

gpu::LaunchShape state_shape(const StateTable& table,
                             int64_t num_heads,
                             int32_t width,
                             int32_t num_rows) {
  return {.blocks_x = num_requests(table) * num_heads * (width / kStateLanes),
          .threads = kStateThreads,
          .overlaps = overlaps(LaunchKind::kRows, num_rows)};
}

// --- Delta rule ----------------------------------------------------------------------------------

// Norms queries and keys, sixteen lanes a head; further blocks do betas and decays.
__global__ void __launch_bounds__(kThreads, 1)
    delta_rows_kernel(const __grid_constant__ DeltaRuleArgs args, int32_t norm_blocks) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  const auto y = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (y < norm_blocks) {
    const int32_t head = y * (kThreads / kLanes) + thread / kLanes;
    const bool is_key = head >= args.num_key_heads;
    const int32_t n = head < 2 * args.num_key_heads ? args.key_dim : 0;
    float* const first = is_key ? args.k - int64_t{args.num_key_heads} * args.key_dim : args.q;
    float* const x = first + row * args.qkv_stride + int64_t{head} * args.key_dim;
    float sum = 0;
#pragma unroll 8
    for (int32_t i = lane_of(); i < n; i += kLanes) sum = __fmaf_rn(x[i], x[i], sum);
    const float r = __fdiv_rn(1.0F, __fsqrt_rn(__fadd_rn(sum_of_sixteen(sum), args.eps)));
    const float scale = is_key ? 1.0F : args.scale;
#pragma unroll 8
    for (int32_t i = lane_of(); i < n; i += kLanes) x[i] = __fmul_rn(__fmul_rn(x[i], r), scale);
    return;
  }
  const int32_t i = (y - norm_blocks) * kThreads + thread;
  const auto heads = static_cast<int32_t>(args.key_heads.size());
  float* const b = args.b + row * args.gate_stride;
  float* const a = args.a + row * args.gate_stride;
  if (i < heads) b[i] = __fmul_rn(sigmoid_of(b[i]), args.beta_scale);
  const int32_t of_head = args.decays_channels ? args.key_dim : 1;
  if (i >= heads * of_head) return;
  const float step = softplus_of(__fadd_rn(a[i], args.dt_bias[i]));
  a[i] = exp_of(__fmul_rn(args.rate[i / of_head], step));
}

// What a thread reads of a row.
template <int kMost, bool kChannels>
struct DeltaInputs {
  float q[kMost];
  float k[kMost];
  float decay[kChannels ? kMost : 1];
  Four v;
  float beta;
};

template <int kMost, bool kChannels>
__global__ void __launch_bounds__(kStateThreads, 1)
    delta_rule_kernel(const __grid_constant__ DeltaRuleArgs args) {
  using Inputs = DeltaInputs<kMost, kChannels>;
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const StatePlace at(static_cast<int32_t>(args.key_heads.size()), args.value_dim);
  const int64_t value = at.head * args.value_dim + at.column + first_column_of();
  const int64_t key = int64_t{args.key_heads.data()[at.head]} * args.key_dim + lane_of();
  const int64_t decay = kChannels ? at.head * args.key_dim + lane_of() : at.head;
  const int32_t num_rows = args.key_dim / kLanes;
  const auto load = [&](int64_t row) {
    Inputs in;
    read_rows(args.k + row * args.qkv_stride + key, num_rows, in.k);
    read_rows(args.a + row * args.gate_stride + decay, kChannels ? num_rows : 1, in.decay);
    in.v = read_columns(args.v + row * args.qkv_stride + value);
    in.beta = args.b[row * args.gate_stride + at.head];
    read_rows(args.q + row * args.qkv_stride + key, num_rows, in.q);
    return in;
  };
  const auto step = [&](StatePart<kMost>& state, const Inputs& in, int64_t row) {
    Four m = {};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= state.num_rows) continue;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        float& s = state.rows[i].v[j];
        s = __fmul_rn(in.decay[kChannels ? i : 0], s);
        m.v[j] = __fmaf_rn(in.k[i], s, m.v[j]);
      }
    }
    m = fold_lanes(m);
    Four d;
#pragma unroll
    for (int j = 0; j < kFour; ++j) d.v[j] = __fmul_rn(in.beta, __fsub_rn(in.v.v[j], m.v[j]));
    Four o = {};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= state.num_rows) continue;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        float& s = state.rows[i].v[j];
        s = __fmaf_rn(in.k[i], d.v[j], s);
        o.v[j] = __fmaf_rn(in.q[i], s, o.v[j]);
      }
    }
    write_columns(args.out + row * args.out_stride + value, fold_lanes(o));
  };
  const int64_t place = (at.head * args.value_dim + at.column) * args.key_dim;
  walk_state<kMost>(args.state, at.request, place, args.key_dim, load, step);
}

// --- Mamba-2 -------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads, 1)
    mamba_rows_kernel(const __grid_constant__ Mamba2Args args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  const auto head = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  if (head >= args.num_heads) return;
  float& dt = args.dt[row * args.step_stride + head];
  const float soft = softplus_of(__fadd_rn(dt, args.dt_bias[head]));
  const float step = lower_of(args.max_step, higher_of(args.min_step, soft));
  dt = step;
  args.decay[row * args.step_stride + head] = exp_of(__fmul_rn(args.rate[head], step));
}

template <int kMost>
struct MambaInputs {
  float b[kMost];
  float c[kMost];
  Four x;
  float step;
  float decay;
};

template <int kMost>
__global__ void __launch_bounds__(kStateThreads, 1)
    mamba2_kernel(const __grid_constant__ Mamba2Args args) {
  using Inputs = MambaInputs<kMost>;
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const StatePlace at(args.num_heads, args.head_dim);
  const int64_t value = at.head * args.head_dim + at.column + first_column_of();
  const int64_t of_group = at.head / (args.num_heads / args.num_groups) * args.state_dim;
  const int32_t num_rows = args.state_dim / kLanes;
  const float skip = args.skip[at.head];
  const auto load = [&](int64_t row) {
    Inputs in;
    const int64_t first = row * args.row_stride + of_group + lane_of();
    read_rows(args.b + first, num_rows, in.b);
    in.x = read_columns(args.x + row * args.row_stride + value);
    in.step = args.dt[row * args.step_stride + at.head];
    in.decay = args.decay[row * args.step_stride + at.head];
    read_rows(args.c + first, num_rows, in.c);
    return in;
  };
  const auto step = [&](StatePart<kMost>& state, const Inputs& in, int64_t row) {
    Four u;
#pragma unroll
    for (int j = 0; j < kFour; ++j) u.v[j] = __fmul_rn(in.step, in.x.v[j]);
    Four y = {};
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= state.num_rows) continue;
#pragma unroll
      for (int j = 0; j < kFour; ++j) {
        float& s = state.rows[i].v[j];
        s = __fmaf_rn(in.b[i], u.v[j], __fmul_rn(in.decay, s));
        y.v[j] = __fmaf_rn(in.c[i], s, y.v[j]);
      }
    }
    y = fold_lanes(y);
#pragma unroll
    for (int j = 0; j < kFour; ++j) y.v[j] = __fmaf_rn(skip, in.x.v[j], y.v[j]);
    write_columns(args.out + row * args.out_stride + value, y);
  };
  const int64_t place = (at.head * args.head_dim + at.column) * args.state_dim;
  walk_state<kMost>(args.state, at.request, place, args.state_dim, load, step);
}

// --- Short convolution ---------------------------------------------------------------------------

constexpr int kConvBatch = 8;  // rows that a thread reads at once

// A channel's window and weights, the newest last; with fewer taps than kMost the first ones are
// not used.
template <int kMost>
struct ConvChannel {
  float window[kMost];
  float weight[kMost];
  float bias;
  int32_t first;

  __device__ __forceinline__ float next(float in) {
    window[kMost - 1] = in;
    float y = bias;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= first) y = __fmaf_rn(weight[i], window[i], y);
    }
#pragma unroll
    for (int i = 0; i + 1 < kMost; ++i) window[i] = window[i + 1];
    return y;
  }
};

// Rows of one request that lie side by side.
template <int kMost>
__device__ __forceinline__ void convolve(const ShortConvArgs& args,
                                         int64_t row,
                                         int32_t num_rows,
                                         int32_t c,
                                         ConvChannel<kMost>& channel) {
  for (int32_t begin = 0; begin < num_rows; begin += kConvBatch) {
    const int64_t first = (row + begin) * args.x_stride + c;
    float in[kConvBatch];
    float gate[kConvBatch];
#pragma unroll
    for (int i = 0; i < kConvBatch; ++i) {
      if (begin + i >= num_rows) continue;
      const int64_t at = first + i * args.x_stride;
      in[i] = args.x[at];
      if (args.gate_in != nullptr) in[i] = __fmul_rn(args.gate_in[at], in[i]);
      gate[i] = args.gate_out == nullptr ? 0.0F : args.gate_out[at];
    }
#pragma unroll
    for (int i = 0; i < kConvBatch; ++i) {
      if (begin + i >= num_rows) continue;
      float y = channel.next(in[i]);
      if (args.silu) y = silu_of(y);
      if (args.gate_out != nullptr) y = __fmul_rn(gate[i], y);
      args.out[(row + begin + i) * args.out_stride + c] = y;
    }
  }
}

// A thread a channel of a request.
template <int kMost>
__global__ void __launch_bounds__(kThreads, 1)
    short_conv_kernel(const __grid_constant__ ShortConvArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const auto c = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  if (c >= args.n) return;
  const StateWalk walk(args.state, blockIdx.x);
  if (walk.first() == walk.end()) return;
  ConvChannel<kMost> channel;
  channel.first = kMost - args.taps;
  channel.bias = args.bias == nullptr ? 0.0F : args.bias[c];
  float* const states =
      args.state.states + int64_t{c / kLanes} * (args.taps - 1) * kLanes + c % kLanes;
  const int32_t found = walk.found();
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    channel.window[i] = 0;
    channel.weight[i] = 0;
    const int32_t tap = i - channel.first;
    if (tap < 0) continue;
    channel.weight[i] = args.weight[int64_t{tap} * args.n + c];
    // The window as next() leaves it: the newest is yet to come.
    if (found >= 0 && i + 1 < kMost) {
      channel.window[i] = states[found * args.state.block_floats + tap * kLanes];
    }
  }
  for (int32_t position = walk.first(); position < walk.end();) {
    const StateRun run = walk.run_at(position);
    convolve(args, run.first_row, run.num_rows, c, channel);
    position += run.num_rows;
    if (run.block < 0) continue;
#pragma unroll
    for (int i = 0; i + 1 < kMost; ++i) {
      const int32_t tap = i - channel.first;
      if (tap < 0) continue;
      states[run.block * args.state.block_floats + tap * kLanes] = channel.window[i];
    }
  }
}

// --- Drafts --------------------------------------------------------------------------------------

// A thread a column of a request: it reads what the last step kept there before it keeps a draft's.
__global__ void __launch_bounds__(kThreads, 1)
    replay_rows_kernel(const __grid_constant__ ReplayRowsArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const StateWalk walk(args.kept, blockIdx.x);
  const int32_t width = args.columns[0].count + args.columns[1].count;
  const auto i = static_cast<int32_t>(blockIdx.y * kThreads + threadIdx.x);
  if (i >= width || walk.first() == walk.end()) return;
  const int32_t behind = i - args.columns[0].count;
  const int32_t column = behind < 0 ? args.columns[0].first + i : args.columns[1].first + behind;
  float* const kept = args.kept.states + i;
  const StateRun replayed = walk.replayed();
  for (int32_t r = 0; r < replayed.num_rows; ++r) {
    args.rows[(replayed.first_row + r) * args.row_stride + column] =
        kept[walk.found() * args.kept.block_floats + int64_t{r} * width];
  }
  const StateRun drafts = walk.drafts();
  for (int32_t r = 0; r < drafts.num_rows; ++r) {
    kept[walk.left() * args.kept.block_floats + int64_t{r} * width] =
        args.rows[(drafts.first_row + r) * args.row_stride + column];
  }
}

// --- Gated norms ---------------------------------------------------------------------------------

// Sixteen lanes a head of all ranks'; each value belongs to the lane that multiplies it.
__global__ void __launch_bounds__(kThreads, 1)
    gated_squares_kernel(const __grid_constant__ GatedSquaresArgs args) {
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t column = static_cast<int32_t>(blockIdx.y) * (kThreads / kLanes) + thread / kLanes;
  const int32_t head = column - args.first;
  const int32_t n = head >= 0 && head < args.num_heads ? args.n : 0;
  float* const x = args.x + row * args.x_stride + int64_t{head} * args.n;
  const float* const gate = args.gate + row * args.gate_stride + int64_t{head} * args.n;
  float sum = 0;
#pragma unroll 4
  for (int32_t i = lane_of(); i < n; i += kLanes) {
    const float value = __fmul_rn(silu_of(gate[i]), x[i]);
    x[i] = value;
    sum = __fmaf_rn(value, value, sum);
  }
  sum = sum_of_sixteen(sum);
  if (lane_of() == 0 && column < args.whole) args.sums[row * args.whole + column] = sum;
}

// A block a group of a row, of which it has this rank's heads.
__global__ void __launch_bounds__(kThreads, 1)
    group_norm_kernel(const __grid_constant__ GroupNormArgs args) {
  GPU_SHARED(float, factor, 1);
  ptx::start_next_launch();
  ptx::wait_for_launches();
  const int64_t row = blockIdx.x;
  const int32_t heads = args.whole / args.num_groups;
  const int32_t first = (args.first / heads + static_cast<int32_t>(blockIdx.y)) * heads;
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int32_t head = first; head < first + heads; ++head) {
      uint32_t largest = 0;
      for (int32_t part = 0; part < args.num_parts; ++part) {
        const auto bits =
            static_cast<uint32_t>(__float_as_int(args.parts[part][row * args.whole + head]));
        largest = bits > largest ? bits : largest;
      }
      sum = __fadd_rn(sum, __int_as_float(static_cast<int32_t>(largest)));
    }
    factor[0] = inverse_root(sum, heads * args.n, args.eps);
  }
  __syncthreads();
  const float r = factor[0];
  float* const x = args.x + row * args.x_stride;
  const int32_t begin = first > args.first ? first - args.first : 0;
  const int32_t behind = first + heads - args.first;
  const int32_t end = behind < args.num_heads ? behind : args.num_heads;
#pragma unroll 4
  for (int32_t i = begin * args.n + static_cast<int32_t>(threadIdx.x); i < end * args.n;
       i += kThreads) {
    x[i] = __fmul_rn(__fmul_rn(x[i], r), args.weight[i]);
  }
}

gpu::LaunchShape row_shape(int64_t rows, int64_t blocks) {
  return {.blocks_x = rows,
          .blocks_y = blocks,
          .threads = kThreads,
          .overlaps = overlaps(LaunchKind::kRows, rows)};
}

}  // namespace

void launch_replay_rows(Stream stream, const ReplayRowsArgs& args) {
  const int64_t width = int64_t{args.columns[0].count} + args.columns[1].count;
  gpu::launch(stream,
              row_shape(num_requests(args.kept), ceil_div(width, kThreads)),
              replay_rows_kernel,
              args);
}

void launch_short_conv(Stream stream, const ShortConvArgs& args) {
  CHECK(args.n % kLanes == 0 && args.taps >= 2 && args.taps <= kMaxConvTaps);
  constexpr int kUsual = 4;
  gpu::launch(stream,
              row_shape(num_requests(args.state), ceil_div(args.n, kThreads)),
              args.taps <= kUsual ? short_conv_kernel<kUsual> : short_conv_kernel<kMaxConvTaps>,
              args);
}

void launch_delta_rule(Stream stream, const DeltaRuleArgs& args) {
  CHECK_EQ(args.value_dim % kStateLanes, 0);
  const auto heads = static_cast<int64_t>(args.key_heads.size());
  const int64_t gates = heads * (args.decays_channels ? args.key_dim : 1);
  const auto norm_blocks =
      static_cast<int32_t>(ceil_div(2 * args.num_key_heads, kThreads / kLanes));
  gpu::launch(stream,
              row_shape(args.num_rows, norm_blocks + ceil_div(gates, kThreads)),
              delta_rows_kernel,
              args,
              norm_blocks);
  with_rows(args.key_dim, [&]<int kMost>() {
    gpu::launch(
        stream,
        state_shape(args.state, heads, args.value_dim, args.num_rows),
        args.decays_channels ? delta_rule_kernel<kMost, true> : delta_rule_kernel<kMost, false>,
        args);
  });
}

void launch_mamba2(Stream stream, const Mamba2Args& args) {
  CHECK(args.head_dim % kStateLanes == 0 && args.num_heads % args.num_groups == 0);
  gpu::launch(stream,
              row_shape(args.num_rows, ceil_div(args.num_heads, kThreads)),
              mamba_rows_kernel,
              args);
  with_rows(args.state_dim, [&]<int kMost>() {
    gpu::launch(stream,
                state_shape(args.state, args.num_heads, args.head_dim, args.num_rows),
                mamba2_kernel<kMost>,
                args);
  });
}

void launch_gated_squares(Stream stream, const GatedSquaresArgs& args) {
  gpu::launch(stream,
              row_shape(args.num_rows, ceil_div(args.whole, kThreads / kLanes)),
              gated_squares_kernel,
              args);
}

void launch_group_norm(Stream stream, const GroupNormArgs& args) {
  const int32_t heads = args.whole / args.num_groups;
  const int32_t groups = (args.first + args.num_heads - 1) / heads - args.first / heads + 1;
  gpu::launch(stream, row_shape(args.num_rows, groups), group_norm_kernel, args);
}

}  // namespace sluice::kernels::cuda
