// SPDX-License-Identifier: Apache-2.0
// Attention against the machine's limits:
//   attention [--isa I] [--threads N] [--only TEXT]
//
// Prefill: one request's whole prompt, causal; GFLOP/s of the visible scores and sums, and shares
// of the float and bfloat16 peaks. Decode: one token of one request over a long context, with
// caches used in turn that exceed 96 MB; GB/s of keys and values read and share of the read
// bandwidth. The cache is bfloat16. Probes and kernel alternate; shares are medians of the ratios
// within a round.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/attention_program.h"
#include "bench/probes.h"
#include "engine/core/aligned_buffer.h"
#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kBlockSize = 16;

struct Shape {
  const char* name;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t new_tokens;
  int32_t context;
};

constexpr Shape kShapes[] = {{"135M prefill", 9, 3, 64, 512, 512},
                             {"135M prefill", 9, 3, 64, 4096, 4096},
                             {"135M decode", 9, 3, 64, 1, 2048},
                             {"135M decode", 9, 3, 64, 1, 8192},
                             {"1B prefill", 32, 8, 64, 512, 512},
                             {"1B prefill", 32, 8, 64, 4096, 4096},
                             {"1B decode", 32, 8, 64, 1, 8192}};

// Of the peaks, by round.
struct Shares {
  std::vector<double> of_floats;
  std::vector<double> of_bf16;
  std::vector<double> of_reads;
};

// `bytes`: of keys and values.
void print_shape(
    const Shape& shape, double seconds, double flops, double bytes, const Shares& shares) {
  std::printf("%-14s %5d %8d %11.1f %9.1f %6.1f%% %6.1f%% %8.1f %6.1f%%\n",
              shape.name,
              shape.new_tokens,
              shape.context,
              seconds * 1e6,
              flops / seconds * 1e-9,
              100 * median(shares.of_floats),
              100 * median(shares.of_bf16),
              bytes / seconds * 1e-9,
              100 * median(shares.of_reads));
  std::fflush(stdout);
}

// Returns the seconds of one call, from as many as take 20 ms.
template <typename Call>
double seconds_of(const Call& call) {
  int64_t calls = 0;
  const auto start = Clock::now();
  double elapsed = 0;
  do {
    call();
    ++calls;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < 0.02);
  return elapsed / static_cast<double>(calls);
}

void run_shape(const kernels::ExecContext& ctx, const Shape& shape) {
  const int32_t num_blocks = shape.context / kBlockSize;
  const int64_t cache_bytes = shape.kv_heads * num_blocks *
                              kernels::kv_head_bytes(DType::kBF16, shape.head_dim, kBlockSize);
  const int64_t copies = std::max<int64_t>(1, (int64_t{48} << 20) / cache_bytes);
  const AlignedBuffer k = random_cache(cache_bytes * copies);
  const AlignedBuffer v = random_cache(cache_bytes * copies);
  const int64_t width = int64_t{shape.heads} * shape.head_dim;
  std::vector<float> q(static_cast<size_t>(shape.new_tokens * width), 0.25F);
  std::vector<float> out(q.size());
  std::vector<int32_t> table(static_cast<size_t>(num_blocks));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::minstd_rand(2));
  auto workspace = AlignedBuffer::allocate(
      kernels::attention_workspace_bytes({.num_tokens = shape.new_tokens,
                                          .num_reqs = 1,
                                          .seq_len = shape.context,
                                          .num_heads = shape.heads,
                                          .num_kv_heads = shape.kv_heads,
                                          .head_dim = shape.head_dim,
                                          .num_threads = ctx.pool->num_threads()}),
      "workspace");
  if (!workspace) std::exit(1);
  const int32_t query_start_loc[] = {0, shape.new_tokens};
  const int32_t seq_lens[] = {shape.context};
  const double keys = shape.new_tokens * (shape.context - (shape.new_tokens - 1) / 2.0);
  const double flops = 4.0 * keys * static_cast<double>(width);

  std::vector<double> times;
  Shares shares;
  int64_t next = 0;
  for (int round = 0; round < 7; ++round) {
    const double float_peak = probe_float_gflops(ctx);
    const double bf16_peak = probe_bf16_gflops(ctx);
    const double read_peak = probe_read_gbps(ctx);
    times.push_back(seconds_of([&] {
      const int64_t at = next++ % copies * cache_bytes;
      kernels::attention(ctx,
                         {.q = q.data(),
                          .q_stride = width,
                          .num_heads = shape.heads,
                          .kv = {.k = k.data() + at,
                                 .v = v.data() + at,
                                 .dtype = DType::kBF16,
                                 .num_blocks = num_blocks,
                                 .block_size = kBlockSize,
                                 .num_kv_heads = shape.kv_heads,
                                 .head_dim = shape.head_dim},
                          .query_start_loc = query_start_loc,
                          .seq_lens = seq_lens,
                          .block_table = table.data(),
                          .block_table_stride = num_blocks,
                          .scale = 0.125F,
                          .out = out.data(),
                          .out_stride = width,
                          .workspace = workspace->span()});
    }));
    const double gflops = flops / times.back() * 1e-9;
    shares.of_floats.push_back(gflops / float_peak);
    shares.of_bf16.push_back(bf16_peak > 0 ? gflops / bf16_peak : 0);
    shares.of_reads.push_back(2 * static_cast<double>(cache_bytes) / times.back() * 1e-9 /
                              read_peak);
  }
  print_shape(shape, median(times), flops, 2 * static_cast<double>(cache_bytes), shares);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  constexpr const char* kHeader =
      "shape            new  context          us   GFLOP/s   float    bf16     GB/s    read";
  return run_shapes(argc, argv, kHeader, kShapes, run_shape);
}
