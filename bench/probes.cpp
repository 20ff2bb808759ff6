// SPDX-License-Identifier: Apache-2.0
#include "bench/probes.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "kernels/cpu/thread_pool.h"

namespace sluice::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int kChains = 12;
constexpr int64_t kSteps = 100000;

// Independent chains of dot-product instructions on registers; returns operations done.
__attribute__((target("avx512f,avx512vnni"))) double busy_vnni(int32_t* sink) {
  __m512i acc[kChains];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm512_set1_epi32(*sink);
  const __m512i u = _mm512_set1_epi8(3);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      acc[i] = _mm512_dpbusd_epi32(acc[i], u, u);
      asm volatile("" : "+v"(acc[i]));  // keeps the chain as written
    }
  }
  __m512i sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_epi32(sum, acc[i]);
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, sum);
  *sink = lanes[0];
  return static_cast<double>(kSteps) * kChains * 64 * 2;
}

// The rate without VNNI: vpmaddubsw and the 16-bit add that every use of it needs.
__attribute__((target("avx2"))) double busy_avx2(int32_t* sink) {
  __m256i acc[kChains];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm256_set1_epi32(*sink);
  const __m256i u = _mm256_set1_epi8(3);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(u, acc[i]));
      asm volatile("" : "+x"(acc[i]));
    }
  }
  __m256i sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_epi32(sum, acc[i]);
  *sink = _mm256_extract_epi32(sum, 0);
  return static_cast<double>(kSteps) * kChains * 32 * 2;
}

__attribute__((target("avx512f"))) double busy_fma512(int32_t* sink) {
  __m512 acc[kChains];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm512_set1_ps(static_cast<float>(*sink));
  const __m512 half = _mm512_set1_ps(0.5F);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      acc[i] = _mm512_fmadd_ps(acc[i], half, half);
      asm volatile("" : "+v"(acc[i]));
    }
  }
  __m512 sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  *sink = static_cast<int32_t>(_mm512_cvtss_f32(sum));
  return static_cast<double>(kSteps) * kChains * 16 * 2;
}

__attribute__((target("avx2,fma"))) double busy_fma256(int32_t* sink) {
  __m256 acc[kChains];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm256_set1_ps(static_cast<float>(*sink));
  const __m256 half = _mm256_set1_ps(0.5F);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      acc[i] = _mm256_fmadd_ps(acc[i], half, half);
      asm volatile("" : "+x"(acc[i]));
    }
  }
  __m256 sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = _mm256_add_ps(sum, acc[i]);
  *sink = static_cast<int32_t>(_mm256_cvtss_f32(sum));
  return static_cast<double>(kSteps) * kChains * 8 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) double busy_bf16(int32_t* sink) {
  __m512 acc[kChains];
#pragma GCC unroll 12
  for (auto& a : acc) a = _mm512_set1_ps(static_cast<float>(*sink));
  const auto half = (__m512bh)_mm512_set1_epi16(0x3F00);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      acc[i] = _mm512_dpbf16_ps(acc[i], half, half);
      asm volatile("" : "+v"(acc[i]));
    }
  }
  __m512 sum = acc[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, acc[i]);
  *sink = static_cast<int32_t>(_mm512_cvtss_f32(sum) * 1e-9F);
  return static_cast<double>(kSteps) * kChains * 32 * 2;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile,amx-int8"))) double busy_tiles(int32_t* sink) {
  static constexpr TileConfig kConfig;
  static constexpr int64_t kTiles = 4;
  alignas(64) int32_t sums[16][16] = {};
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, sums, 64);
  _tile_loadd(5, sums, 64);
  for (int64_t step = 0; step < kSteps; ++step) {
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(2, 4, 5);
    _tile_dpbssd(3, 4, 5);
  }
  _tile_stored(0, sums, 64);
  _tile_release();
  *sink = sums[0][0];
  return static_cast<double>(kSteps) * kTiles * 16 * 16 * 64 * 2;
}

// Runs `busy`, which returns its number of operations, on all threads.
double probe_rate(const kernels::ExecContext& ctx, double (*busy)(int32_t* sink)) {
  const int32_t threads = ctx.pool->num_threads();
  std::vector<double> operations(static_cast<size_t>(threads) * 8);
  const auto start = Clock::now();
  ctx.pool->parallel_for(threads * 8, [&](int64_t tile, int32_t) {
    int32_t sink = 0;
    operations[static_cast<size_t>(tile)] = busy(&sink);
  });
  const double seconds = seconds_since(start);
  return std::accumulate(operations.begin(), operations.end(), 0.0) / seconds * 1e-9;
}

// Several streams at once; one does not keep enough of a core's requests in flight.
constexpr int64_t kStreams = 4;

// On some processors of virtual machines the prefetchers alone do not reach the limit.
constexpr int64_t kPrefetchBytes = 2048;

template <bool kPrefetch>
__attribute__((target("avx2"))) int64_t read_all(const std::byte* data, int64_t bytes) {
  const int64_t part = bytes / kStreams;
  __m256i sums[kStreams];
  for (auto& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t i = 0; i < part; i += 64) {
#pragma GCC unroll 4
    for (int64_t s = 0; s < kStreams; ++s) {
      const std::byte* const line = data + s * part + i;
      if constexpr (kPrefetch) __builtin_prefetch(line + kPrefetchBytes);
      const auto* p = reinterpret_cast<const __m256i*>(line);
      sums[s] = _mm256_xor_si256(
          sums[s], _mm256_xor_si256(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1)));
    }
  }
  const __m256i low = _mm256_xor_si256(sums[0], sums[1]);
  return _mm256_extract_epi64(_mm256_xor_si256(low, _mm256_xor_si256(sums[2], sums[3])), 0);
}

constexpr int64_t kReadBytes = int64_t{256} << 20;

// Memory written once, so that every page is its own, in huge pages, like weights.
std::span<const std::byte> bytes_to_read() {
  static const AlignedBuffer buffer = [] {
    Expected<AlignedBuffer> bytes = AlignedBuffer::allocate(kReadBytes, "the read probe");
    CHECK(bytes.has_value());
    std::ranges::fill(bytes->span(), std::byte{1});
    return *std::move(bytes);
  }();
  return buffer.span();
}

double read_gbps(const kernels::ExecContext& ctx, int64_t (*read)(const std::byte*, int64_t)) {
  constexpr int64_t kPiece = int64_t{1} << 20;
  const std::byte* const data = bytes_to_read().data();
  std::vector<int64_t> sinks(static_cast<size_t>(kReadBytes / kPiece));
  const auto start = Clock::now();
  ctx.pool->parallel_for(kReadBytes / kPiece, [&](int64_t piece, int32_t) {
    sinks[static_cast<size_t>(piece)] = read(data + piece * kPiece, kPiece);
  });
  return static_cast<double>(kReadBytes) / seconds_since(start) * 1e-9;
}

}  // namespace

double probe_int8_gops(const kernels::ExecContext& ctx) {
  return probe_rate(ctx, ctx.isa >= kernels::Isa::kAvx512 ? busy_vnni : busy_avx2);
}

double probe_tile_gops(const kernels::ExecContext& ctx) {
  return ctx.isa == kernels::Isa::kAmx ? probe_rate(ctx, busy_tiles) : 0;
}

double probe_float_gflops(const kernels::ExecContext& ctx) {
  return probe_rate(ctx, ctx.isa >= kernels::Isa::kAvx512 ? busy_fma512 : busy_fma256);
}

double probe_bf16_gflops(const kernels::ExecContext& ctx) {
  return __builtin_cpu_supports("avx512bf16") != 0 ? probe_rate(ctx, busy_bf16) : 0;
}

double probe_read_gbps(const kernels::ExecContext& ctx) {
  return std::max(read_gbps(ctx, read_all<false>), read_gbps(ctx, read_all<true>));
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace sluice::bench
