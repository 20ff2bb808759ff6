// SPDX-License-Identifier: Apache-2.0
// Latent attention against the machine's limits, in the shapes of GLM-4.7-Flash (20 heads),
// DeepSeek-V3 (128) and GLM-5 (64, which choose 2048 keys), latents of 512 and 64 rotated elements,
// bfloat16:
//   latent_attention [--isa I] [--threads N] [--only TEXT]
//
// GB/s of latents read, share of the read bandwidth; GFLOP/s of scores and mixes, share of the peak
// of floats. Probes and kernel alternate; shares are medians of the ratios within a round.
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
#include "kernels/cpu/thread_pool.h"
#include "kernels/latent_attention.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kLatent = 512;
constexpr int32_t kRope = 64;
constexpr int32_t kWidth = kLatent + kRope;

struct Shape {
  const char* name;
  int32_t heads;
  int32_t streams;
  int32_t new_tokens;  // of each
  int32_t context;
  int32_t chosen = 0;  // keys of each token, anywhere; 0: all
};

constexpr Shape kShapes[] = {{"flash decode", 20, 1, 1, 4096},
                             {"flash decode", 20, 8, 1, 4096},
                             {"flash decode", 20, 32, 1, 4096},
                             {"flash decode", 20, 1, 1, 16384},
                             {"flash decode", 20, 8, 1, 16384},
                             {"flash decode", 20, 32, 1, 16384},
                             {"flash prefill", 20, 1, 256, 4096},
                             {"v3 decode", 128, 1, 1, 4096},
                             {"sparse decode", 64, 1, 1, 16384, 2048},
                             {"sparse decode", 64, 1, 1, 131072, 2048},
                             {"sparse prefill", 64, 1, 64, 16384, 2048}};

// A call's operands; every stream has blocks of its own.
class Call {
 public:
  explicit Call(const kernels::ExecContext& ctx, const Shape& shape)
      : ctx_(ctx),
        shape_(shape),
        tokens_(shape.streams * shape.new_tokens),
        num_blocks_(shape.streams * (shape.context / kBlockSize)),
        latent_(random_cache(bytes_of(kLatent))),
        rope_(random_cache(bytes_of(kRope))),
        q_(static_cast<size_t>(int64_t{tokens_} * shape.heads * kWidth), 0.02F),
        out_(static_cast<size_t>(int64_t{tokens_} * shape.heads * kLatent)),
        table_(static_cast<size_t>(num_blocks_)),
        lens_(static_cast<size_t>(shape.streams), shape.context) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::minstd_rand(2));
    for (int32_t i = 0; i <= shape.streams; ++i) starts_.push_back(i * shape.new_tokens);
    choose();
    auto workspace = AlignedBuffer::allocate(
        kernels::latent_workspace_bytes({.num_tokens = tokens_,
                                         .num_reqs = shape.streams,
                                         .seq_len = shape.context,
                                         .num_heads = shape.heads,
                                         .num_kv_heads = 1,
                                         .head_dim = kLatent,
                                         .num_threads = ctx.pool->num_threads()},
                                        kRope),
        "workspace");
    if (!workspace) std::exit(1);
    workspace_ = std::move(*workspace);
  }

  // Bytes of the cache that a kernel has to read.
  [[nodiscard]] double cache_bytes() const {
    const double all = static_cast<double>(bytes_of(kLatent) + bytes_of(kRope));
    const int64_t chosen = int64_t{tokens_} * shape_.chosen;
    const int64_t cached = int64_t{shape_.streams} * shape_.context;
    return shape_.chosen > 0 && chosen < cached ? all * static_cast<double>(chosen) / cached : all;
  }

  [[nodiscard]] double flops() const {
    const double keys =
        tokens_ *
        (shape_.chosen > 0 ? shape_.chosen : shape_.context - (shape_.new_tokens - 1) / 2.0);
    return 2.0 * keys * shape_.heads * (kWidth + kLatent);
  }

  void run() {
    kernels::latent_attention(ctx_,
                              {.query = {q_.data(), kWidth, int64_t{tokens_} * kWidth},
                               .num_heads = shape_.heads,
                               .cache = {.latent = latent_.data(),
                                         .rope = rope_.data(),
                                         .dtype = DType::kBF16,
                                         .num_blocks = num_blocks_,
                                         .block_size = kBlockSize,
                                         .latent_dim = kLatent,
                                         .rope_dim = kRope},
                               .query_start_loc = starts_,
                               .seq_lens = lens_,
                               .block_table = table_.data(),
                               .block_table_stride = shape_.context / kBlockSize,
                               .scale = 0.0625F,
                               .chosen = {words_.empty() ? nullptr : words_.data(),
                                          kernels::chosen_words(shape_.context)},
                               .out = {out_.data(), kLatent, int64_t{tokens_} * kLatent},
                               .workspace = workspace_.span()});
  }

 private:
  [[nodiscard]] int64_t bytes_of(int32_t width) const {
    return num_blocks_ * kernels::kv_head_bytes(DType::kBF16, width, kBlockSize);
  }

  void choose() {
    std::minstd_rand rng(3);
    const int64_t stride = kernels::chosen_words(shape_.context);
    if (shape_.chosen > 0) words_.resize(static_cast<size_t>(tokens_ * stride));
    const auto seen = static_cast<uint32_t>(shape_.context - shape_.new_tokens + 1);
    for (int32_t token = 0; token < tokens_; ++token) {
      for (int32_t left = shape_.chosen; left > 0;) {
        const uint32_t key = rng() % seen;
        uint64_t& word = words_[static_cast<size_t>(token * stride + key / 64)];
        left -= (word >> key % 64 & 1) == 0 ? 1 : 0;
        word |= uint64_t{1} << key % 64;
      }
    }
  }

  const kernels::ExecContext& ctx_;
  Shape shape_;
  int32_t tokens_;
  int32_t num_blocks_;
  AlignedBuffer latent_, rope_, workspace_;
  std::vector<float> q_, out_;
  std::vector<int32_t> table_, lens_, starts_;
  std::vector<uint64_t> words_;
};

void run_shape(const kernels::ExecContext& ctx, const Shape& shape) {
  constexpr int kRounds = 5;
  Call call(ctx, shape);
  std::vector<double> times, of_floats, of_reads;
  for (int round = 0; round < kRounds; ++round) {
    const double float_peak = probe_float_gflops(ctx);
    const double read_peak = probe_read_gbps(ctx);
    const auto start = Clock::now();
    call.run();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    of_floats.push_back(call.flops() / times.back() * 1e-9 / float_peak);
    of_reads.push_back(call.cache_bytes() / times.back() * 1e-9 / read_peak);
  }
  const double seconds = median(times);
  std::printf("%-14s %7d %5d %8d %11.1f %9.1f %6.1f%% %8.1f %6.1f%%\n",
              shape.name,
              shape.streams,
              shape.new_tokens,
              shape.context,
              seconds * 1e6,
              call.flops() / seconds * 1e-9,
              100 * median(of_floats),
              call.cache_bytes() / seconds * 1e-9,
              100 * median(of_reads));
  std::fflush(stdout);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  constexpr const char* kHeader =
      "shape          streams   new  context          us   GFLOP/s   float     GB/s    read";
  return run_shapes(argc, argv, kHeader, kShapes, run_shape);
}
