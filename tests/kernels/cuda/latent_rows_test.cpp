// SPDX-License-Identifier: Apache-2.0
// The rows that latent attention reads, and the choice of its keys, on a GPU: the CPU's bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/latent_attention.h"
#include "tests/kernels/cache_element.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct RowsCase {
  DType dtype;
  RopeStyle style;
  int32_t num_heads;
  int32_t nope_dim;
  int32_t latent_dim;
  int32_t rope_dim;
  bool rotates = true;
  double growth = 0;  // of queries
};

// Compares all that latent_rows and join_heads write with the CPU.
void check_rows(const RowsCase& c) {
  constexpr int32_t kTokens = 5;
  constexpr int32_t kPlaces = 8;
  constexpr int32_t kBlocks = 3;
  constexpr int32_t kBlockSize = 16;
  Random random(33);
  const int64_t q_stride = c.num_heads * (c.nope_dim + c.rope_dim) + 3;
  const int64_t kv_stride = c.latent_dim + c.rope_dim + 1;
  const int64_t nope = align_up(c.nope_dim, 32);
  const int64_t width = c.latent_dim + c.rope_dim;
  const std::vector<float> q = random.normals(static_cast<size_t>(kTokens * q_stride));
  const std::vector<float> kv = random.normals(static_cast<size_t>(kTokens * kv_stride), 3);
  const std::vector<float> norm = random.normals(static_cast<size_t>(c.latent_dim));
  const std::vector<int32_t> positions = {0, 5, 17, 40, 2};
  const std::vector<int64_t> slots = {47, 0, 17, 16, 33};
  RopeTable table(
      {.rotary_dim = c.rope_dim, .style = c.style, .query_scale = {.beta = c.growth, .context = 8}},
      64);
  table.prepare(64);
  const int64_t rows = c.num_heads * kPlaces;

  struct Buffers {
    Buffers(const RowsCase& c, const std::vector<float>& of_kv, int64_t rows, int64_t nope)
        : kv(of_kv),
          nope(static_cast<size_t>(rows * nope), -1.0F),
          query(static_cast<size_t>(rows * (c.latent_dim + c.rope_dim)), -1.0F),
          joined(static_cast<size_t>(kTokens * (c.num_heads * c.rope_dim + 1)), -1.0F),
          heads(static_cast<size_t>(3 * c.num_heads + 1), -1),
          latent(kBlocks * kv_head_bytes(c.dtype, c.latent_dim, kBlockSize)),
          rope(kBlocks * kv_head_bytes(c.dtype, c.rope_dim, kBlockSize)) {}

    std::vector<float> kv, nope, query, joined;
    std::vector<int32_t> heads;
    test::DeviceBytes latent, rope;
  };

  const auto args = [&](Buffers& buffers) {
    int32_t* const heads = buffers.heads.data();
    return LatentRowsArgs{.q = q.data(),
                          .q_stride = q_stride,
                          .kv = buffers.kv.data(),
                          .kv_stride = kv_stride,
                          .num_heads = c.num_heads,
                          .nope_dim = c.nope_dim,
                          .norm = norm.data(),
                          .norm_eps = 1e-5F,
                          .table = c.rotates ? &table : nullptr,
                          .positions = positions,
                          .slot_mapping = slots,
                          .cache = {.latent = buffers.latent.data(),
                                    .rope = buffers.rope.data(),
                                    .dtype = c.dtype,
                                    .num_blocks = kBlocks,
                                    .block_size = kBlockSize,
                                    .latent_dim = c.latent_dim,
                                    .rope_dim = c.rope_dim},
                          .nope = {buffers.nope.data(), nope, kPlaces * nope},
                          .query = {buffers.query.data(), width, kPlaces * width},
                          .heads = {.num_experts = c.num_heads,
                                    .first = heads,
                                    .count = heads + c.num_heads,
                                    .chosen = heads + 2 * c.num_heads,
                                    .num_chosen = heads + 3 * c.num_heads}};
  };
  // The rotated parts side by side.
  const auto join = [&](Buffers& buffers) {
    return JoinHeadsArgs{.rows = {buffers.query.data() + c.latent_dim, width, kPlaces * width},
                         .num_tokens = kTokens,
                         .num_heads = c.num_heads,
                         .width = c.rope_dim,
                         .out = buffers.joined.data(),
                         .out_stride = c.num_heads * c.rope_dim + 1};
  };
  const auto cpu = test::make_device("scalar", 1);
  Buffers want(c, kv, rows, nope);
  latent_rows(cpu->context(), args(want));
  join_heads(cpu->context(), join(want));
  cuda::RopeRows table_rows;
  if (c.rotates) {
    table_rows = {.cos = table.cos_row(0),
                  .sin = table.sin_row(0),
                  .num_pairs = table.num_pairs(),
                  .style = c.style,
                  .query_scales = table.query_scales()};
  }
  test::on_schedules([&] {
    Buffers got(c, kv, rows, nope);
    cuda::launch_latent_rows(nullptr, args(got), table_rows);
    cuda::launch_join_heads(nullptr, join(got));
    test::expect_same_floats(got.kv, want.kv);
    test::expect_same_floats(got.nope, want.nope);
    test::expect_same_floats(got.query, want.query);
    test::expect_same_floats(got.joined, want.joined);
    EXPECT_EQ(got.heads, want.heads);
    test::expect_same_bytes(got.latent.data(), want.latent.data(), want.latent.size());
    test::expect_same_bytes(got.rope.data(), want.rope.data(), want.rope.size());
  });
}

TEST(CudaLatentRows, HaveTheCpusBits) {
  check_rows({DType::kBF16, RopeStyle::kInterleaved, 6, 40, 160, 20});
  check_rows({DType::kF16, RopeStyle::kHalves, 3, 33, 32, 64, true, 0.3});
  check_rows({DType::kF32, RopeStyle::kHalves, 5, 64, 64, 8, false});
}

struct IndexCase {
  DType dtype;
  int32_t num_heads;
  int32_t top_k;
  bool has_ties = false;
  int64_t tokens_together = 64;  // whose scores the workspace holds
  int32_t num_spare = 2;         // tokens of a bucket that no request has
};

// Compares rows, cache and choice with the CPU.
void check_index(const IndexCase& c) {
  constexpr int32_t kDim = 64;
  constexpr int32_t kBlockSize = 16;

  struct Request {
    int32_t seq_len;
    int32_t num_tokens;
  };

  const std::vector<Request> requests = {{300, 2}, {150, 11}, {20, 3}};
  Random random(37);
  std::vector<int32_t> starts = {0};
  std::vector<int32_t> lengths;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<int32_t> table;
  constexpr int32_t kStride = 20;
  int32_t next = 3 * kStride;
  for (const Request& request : requests) {
    for (int32_t i = 0; i < kStride; ++i) table.push_back(--next);
    for (int32_t p = request.seq_len - request.num_tokens; p < request.seq_len; ++p) {
      positions.push_back(p);
      const int64_t block = table[table.size() - kStride + static_cast<size_t>(p / kBlockSize)];
      slots.push_back(block * kBlockSize + p % kBlockSize);
    }
    starts.push_back(static_cast<int32_t>(positions.size()));
    lengths.push_back(request.seq_len);
  }
  const auto tokens = static_cast<int32_t>(positions.size());
  const int64_t q_stride = c.num_heads * kDim;
  const std::vector<float> q = random.normals(static_cast<size_t>(tokens * q_stride));
  const std::vector<float> k = random.normals(static_cast<size_t>(tokens * kDim), 2);
  const std::vector<float> weights = random.normals(static_cast<size_t>(tokens * c.num_heads));
  const std::vector<float> norm = random.normals(kDim);
  const std::vector<float> bias = random.normals(kDim);
  std::vector<float> cached = random.normals(static_cast<size_t>(3 * kStride * kBlockSize * kDim));
  for (size_t i = kDim; i < cached.size() && c.has_ties; ++i) cached[i] = cached[i % (5 * kDim)];
  RopeTable rope({.rotary_dim = 24, .style = RopeStyle::kHalves}, 512);
  rope.prepare(512);
  const int64_t words = chosen_words(320);

  struct Buffers {
    std::vector<float> q, k;
    std::vector<uint64_t> chosen;
    test::DeviceBytes cache;
  };

  const auto fill = [&](Buffers& buffers) {
    for (size_t i = 0; i < cached.size(); ++i) {
      test::write_element(buffers.cache.data(), static_cast<int64_t>(i), c.dtype, cached[i]);
    }
  };
  const auto view = [&](Buffers& buffers) {
    return IndexKeyView{
        .data = buffers.cache.data(), .dtype = c.dtype, .block_size = kBlockSize, .dim = kDim};
  };
  const auto rows = [&](Buffers& buffers) {
    return IndexRowsArgs{.q = buffers.q.data(),
                         .q_stride = q_stride,
                         .k = buffers.k.data(),
                         .k_stride = kDim,
                         .num_heads = c.num_heads,
                         .norm_weight = norm.data(),
                         .norm_bias = bias.data(),
                         .norm_eps = 1e-6F,
                         .table = &rope,
                         .style = RopeStyle::kInterleaved,
                         .positions = positions,
                         .slot_mapping = slots,
                         .cache = view(buffers)};
  };
  const auto choice = [&](Buffers& buffers, std::span<std::byte> workspace) {
    return ChooseKeysArgs{.q = buffers.q.data(),
                          .q_stride = q_stride,
                          .weights = weights.data(),
                          .weights_stride = c.num_heads,
                          .num_heads = c.num_heads,
                          .cache = view(buffers),
                          .query_start_loc = starts,
                          .seq_lens = lengths,
                          .num_tokens = tokens + c.num_spare,
                          .max_seq_len = 320,
                          .block_table = table.data(),
                          .block_table_stride = kStride,
                          .top_k = c.top_k,
                          .out = {buffers.chosen.data(), words},
                          .workspace = workspace};
  };
  const auto make = [&] {
    const auto bytes = static_cast<int64_t>(cached.size() * dtype_bytes(c.dtype));
    return Buffers{q,
                   k,
                   std::vector<uint64_t>(static_cast<size_t>((tokens + c.num_spare) * words)),
                   test::DeviceBytes(bytes)};
  };
  const auto cpu = test::make_device("scalar", 1);
  Buffers want = make();
  fill(want);
  index_rows(cpu->context(), rows(want));
  const test::DeviceBytes scratch(choose_keys_workspace_bytes(
      {.seq_len = 320, .num_heads = c.num_heads, .dim = kDim, .num_threads = 1}));
  choose_keys(cpu->context(), choice(want, {scratch.data(), scratch.size()}));
  const cuda::RopeRows table_rows = {.cos = rope.cos_row(0),
                                     .sin = rope.sin_row(0),
                                     .num_pairs = rope.num_pairs(),
                                     .style = rope.style()};
  const auto run = [&] {
    Buffers got = make();
    fill(got);
    cuda::launch_index_rows(nullptr, rows(got), table_rows);
    const test::DeviceBytes workspace(cuda::index_scores_bytes(
        {.seq_len = 320,
         .num_heads = c.num_heads,
         .dim = kDim,
         .num_tokens =
             static_cast<int32_t>(std::min<int64_t>(c.tokens_together, tokens + c.num_spare))}));
    cuda::launch_choose_keys(nullptr, choice(got, {workspace.data(), workspace.size()}));
    test::expect_same_floats(got.q, want.q);
    test::expect_same_floats(got.k, want.k);
    EXPECT_EQ(got.chosen, want.chosen);
    test::expect_same_bytes(got.cache.data(), want.cache.data(), want.cache.size());
  };
  if (c.num_spare == 2) return test::on_schedules(run);
  simt::Run once(1);  // it has thousands of blocks
  run();
  EXPECT_EQ(test::joined(once.take_reports()), "");
#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count blocks
  EXPECT_LE(once.num_blocks(), 2700 + tokens + c.num_spare);
#endif
}

// The last of the 5 tiles is a second one of its block.
TEST(CudaLatentIndex, TilesOfALargeBucketMakeFewBlocks) {
  check_index({.dtype = DType::kBF16,
               .num_heads = 3,
               .top_k = 100,
               .tokens_together = 8192,
               .num_spare = 4400});
}

TEST(CudaLatentIndex, ChoosesAsTheCpu) {
  check_index({DType::kF32, 14, 24});
  check_index({.dtype = DType::kBF16, .num_heads = 20, .top_k = 100, .tokens_together = 3});
  check_index({.dtype = DType::kF16, .num_heads = 3, .top_k = 7, .has_ties = true});
}

}  // namespace
}  // namespace sluice::kernels
