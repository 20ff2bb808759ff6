// SPDX-License-Identifier: Apache-2.0
// The memory that linear layers bring to caches for the attention after them, and the time when
// they do. linear_check.h checks that results do not change.
#include "kernels/cpu/linear/read_ahead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/isa/simd.h"
#include "kernels/gemm.h"
#include "tests/kernels/devices.h"
#include "tests/kernels/linear_reference.h"

namespace sluice::kernels::testing {
namespace {

using cpu::kProductsPerLine;
using cpu::LinesAhead;
using cpu::ReadAhead;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kRunBytes = 2 * 64 * kBlockSize * 2;  // K or V of a block: 2 heads, 16 bits
constexpr int32_t kStride = 8;

using Runs = std::vector<const std::byte*>;

// Requests of one token each unless `num_tokens` says more. Memory is only named, never read.
struct Requests {
  explicit Requests(std::vector<int32_t> lengths) : seq_lens(std::move(lengths)) {
    num_tokens.assign(seq_lens.size(), 1);
    for (size_t i = 0; i < seq_lens.size() * kStride; ++i) {
      block_table.push_back(static_cast<int32_t>(3 * i + 5));
    }
  }

  AttentionAheadArgs args() {
    query_start_loc.assign(1, 0);
    for (const int32_t count : num_tokens) {
      query_start_loc.push_back(query_start_loc.back() + count);
    }
    return {.kv = {.k = k,
                   .v = v,
                   .dtype = DType::kBF16,
                   .num_blocks = 1000,
                   .block_size = kBlockSize,
                   .num_kv_heads = 2,
                   .head_dim = 64},
            .num_heads = 6,
            .query_start_loc = query_start_loc,
            .seq_lens = seq_lens,
            .block_table = block_table.data(),
            .block_table_stride = kStride,
            .window = window};
  }

  // Adds K and V of `count` blocks of a request, from `first` on.
  void add(Runs& runs, size_t req, size_t first, size_t count) const {
    for (size_t block = first; block < first + count; ++block) {
      const int64_t at = int64_t{block_table[req * kStride + block]} * kRunBytes;
      runs.push_back(k + at);
      runs.push_back(v + at);
    }
  }

  std::vector<int32_t> seq_lens;
  std::vector<int32_t> num_tokens;
  std::vector<int32_t> query_start_loc;
  std::vector<int32_t> block_table;
  int32_t window = 0;
  std::vector<std::byte> cache = std::vector<std::byte>(2 * 1000 * size_t{kRunBytes});
  std::byte* k = cache.data();
  std::byte* v = k + 1000 * int64_t{kRunBytes};
};

// Returns what a worker brings when no later work is known: everything.
Runs runs_of(ReadAhead& ahead, int32_t worker) {
  const LinesAhead* const lines = ahead.lines(worker);
  if (lines == nullptr) return {};
  EXPECT_EQ(lines->left, lines->num_runs * lines->run_lines);
  return {lines->runs, lines->runs + lines->num_runs};
}

TEST(ReadAhead, EachWorkerBringsWhatItsRequestsSeeInOrder) {
  Requests requests({40, 16, 17, 1});
  ReadAhead ahead(2);
  ahead.begin(requests.args());
  EXPECT_EQ(ahead.lines(0), nullptr) << "before a layer";
  ahead.share(1, 8);
  Runs first;
  requests.add(first, 0, 0, 3);
  requests.add(first, 1, 0, 1);
  EXPECT_EQ(runs_of(ahead, 0), first);
  Runs second;
  requests.add(second, 2, 0, 2);
  requests.add(second, 3, 0, 1);
  EXPECT_EQ(runs_of(ahead, 1), second);
  EXPECT_EQ(ahead.lines(0)->run_lines, kRunBytes / 64);
  ahead.end();
  EXPECT_EQ(ahead.lines(0), nullptr) << "attention has begun";
}

// A prompt's attention computes for longer than it reads: from 32 rows on, 11 tokens of 3 heads.
// Blocks outside of the window may belong to other requests.
TEST(ReadAhead, PromptsAndKeysOutsideTheWindowAreLeftOut) {
  Requests requests({48, 48, 48});
  requests.num_tokens = {11, 10, 1};
  requests.window = 20;
  requests.block_table[2 * kStride] = -1;
  ReadAhead ahead(1);
  ahead.begin(requests.args());
  ahead.share(1, 8);
  Runs expected;
  requests.add(expected, 1, 1, 2);
  requests.add(expected, 2, 1, 2);
  EXPECT_EQ(runs_of(ahead, 0), expected);
}

TEST(ReadAhead, NoMoreThanCachesHold) {
  Requests requests(std::vector<int32_t>(300, kStride * kBlockSize));
  for (int32_t& block : requests.block_table) block %= 1000;
  ReadAhead ahead(1);
  ahead.begin(requests.args());
  ahead.share(1, 8);
  EXPECT_EQ(runs_of(ahead, 0).size(), (size_t{2} << 20) / kRunBytes);
}

// Layers are judged by those before the previous attention: the last one has time for most of it.
TEST(ReadAhead, ALayerLeavesToTheNextWhatThatHasTimeFor) {
  constexpr int64_t kRows = 8;
  constexpr int64_t kFirst = 10 * kProductsPerLine;
  constexpr int64_t kSecond = 2 * kProductsPerLine;
  Requests requests({16, 16});
  ReadAhead ahead(2);
  const int32_t all = 2 * kRunBytes / 64;  // lines of each worker
  for (int attention = 0; attention < 3; ++attention) {
    ahead.begin(requests.args());
    ahead.share(kFirst, kRows);
    EXPECT_EQ(ahead.lines(1)->left, attention == 0 ? all : all - 2 * kRows / 2);
    ahead.share(kSecond, kRows);
    EXPECT_EQ(ahead.lines(1)->left, all) << "of what nobody has brought";
    ahead.end();
    ahead.share(kFirst, kRows);  // the output projection, which no layer follows
    EXPECT_EQ(ahead.lines(1), nullptr);
  }
}

// A layer with time for all lines brings them all, in every way that integer rows are multiplied.
TEST(ReadAhead, LinearLayersBringIt) {
  std::mt19937 rng(1);
  constexpr int32_t kOut = 192;
  constexpr int32_t kIn = 512;
  Requests requests({16});
  for (const test::NamedDevice& device : test::devices({1})) {
    if (device.isa == Isa::kScalar || device.isa == Isa::kAmx) continue;  // they bring nothing
    for (const int32_t rows : {8, 32}) {
      const TestWeight weight = make_weight(WeightFormat::kQ4_1, kOut, kIn, Values::kOrdinary, rng);
      const TestActivations x =
          make_activations(ActivationFormat::kInt8, rows, kIn, Values::kOrdinary, rng);
      std::vector<float> out(size_t{kOut} * static_cast<size_t>(rows));
      const RowGroup group{
          .weight = &weight.view, .out = out.data(), .out_stride = kOut, .bias = nullptr};
      const ExecContext& ctx = device.device->context();
      attention_ahead(ctx, requests.args());
      linear(ctx, {.x = x.view, .groups = {&group, 1}});
      EXPECT_EQ(ctx.read_ahead->lines(0), nullptr) << device.name << " rows " << rows;
      ctx.read_ahead->share(1, rows);
      EXPECT_EQ(ctx.read_ahead->lines(0), nullptr) << "brought once, " << device.name;
      ctx.read_ahead->end();
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::testing
