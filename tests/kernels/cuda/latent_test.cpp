// SPDX-License-Identifier: Apache-2.0
// Latent attention on a GPU: over floats the CPU's bits, over 16 bits those of the model of
// attention on keys [latent | rotated], which also says how far from the CPU they may be; alone, in
// a batch, with chosen keys, split or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/latent_attention.h"
#include "tests/kernels/cache_element.h"
#include "tests/kernels/cuda/attention_model.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;
using test::write_element;

struct Request {
  int32_t seq_len;
  int32_t num_tokens;
};

struct Case {
  DType dtype = DType::kBF16;
  int32_t num_heads = 3;
  int32_t latent_dim = 32;
  int32_t rope_dim = 16;
  int32_t block_size = 16;
  int32_t chosen_of_ten = 0;  // 0: tokens do not choose
  std::vector<Request> requests = {};
  int32_t bound = 0;  // of tokens, as a recorded launch has it; 0: their number
  int capability = 90;
  int32_t slots = 0;  // partials that a split launch has room for; 0: what it asks for

  [[nodiscard]] int32_t width() const { return latent_dim + rope_dim; }
};

// A cache and one step's queries. Slots that were never written hold NaN; entries of the table
// behind a request's keys are far out of bounds.
class Step {
 public:
  explicit Step(const Case& c)
      : c_(c), latent_(plane_bytes(c.latent_dim)), rope_(plane_bytes(c.rope_dim)) {
    std::memset(latent_.data(), 0xFF, latent_.size());
    std::memset(rope_.data(), 0xFF, rope_.size());
    Random random(81);
    starts_.push_back(0);
    for (const Request& request : c.requests) {
      starts_.push_back(starts_.back() + request.num_tokens);
      lengths_.push_back(request.seq_len);
      longest_ = std::max(longest_, request.seq_len);
    }
    stride_ = static_cast<int32_t>(ceil_div(longest_, c.block_size)) + 1;
    table_.assign(c.requests.size() * static_cast<size_t>(stride_), INT32_MAX);
    int32_t next = num_blocks();
    for (size_t r = 0; r < c.requests.size(); ++r) {
      keys_.push_back(random.normals(static_cast<size_t>(lengths_[r] * c.width()), 1.0F));
      for (int32_t i = 0; i < ceil_div(lengths_[r], c.block_size); ++i) entry(r, i) = --next;
      for (int32_t p = 0; p < lengths_[r]; ++p) write_key(r, p);
    }
    q_ = random.normals(static_cast<size_t>(num_tokens() * c.num_heads * c.width()), 0.5F);
    words_.assign(static_cast<size_t>(num_tokens() * chosen_words(longest_)), 0);
    for (size_t r = 0; r < c.requests.size(); ++r) {
      for (int32_t t = 0; t < c.requests[r].num_tokens; ++t) choose(random, r, t);
    }
  }

  // Returns what is expected, [token][head][latent_dim].
  [[nodiscard]] std::vector<float> want() const {
    std::vector<float> all;
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      for (int32_t t = 0; t < c_.requests[r].num_tokens; ++t) add_row(r, t, all);
    }
    return all;
  }

  // Launches the tokens [first, first + count) of request r, or the whole step where r is below 0.
  [[nodiscard]] std::vector<float> launch(bool split,
                                          int r = -1,
                                          int first = 0,
                                          int count = 0) const {
    const bool whole = r < 0;
    std::vector<int32_t> starts = starts_;
    std::vector<int32_t> lengths = lengths_;
    const int32_t* table = table_.data();
    int32_t skipped = 0;
    if (!whole) {
      const Request& request = c_.requests[static_cast<size_t>(r)];
      starts = {0, count};
      lengths = {request.seq_len - request.num_tokens + first + count};
      table += int64_t{r} * stride_;
      skipped = starts_[static_cast<size_t>(r)] + first;
    }
    const int64_t tokens = starts.back();
    const int64_t rows = align_up(tokens, 8) + 8;  // of a head
    const int64_t width = c_.width() + 2;
    std::vector<float> q(static_cast<size_t>(c_.num_heads * rows * width), NAN);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t head = 0; head < c_.num_heads; ++head) {
        std::copy_n(q_.data() + ((skipped + t) * c_.num_heads + head) * c_.width(),
                    c_.width(),
                    q.data() + (head * rows + t) * width);
      }
    }
    std::vector<float> out(static_cast<size_t>(c_.num_heads * rows * c_.latent_dim), -1.0F);
    const auto bound = static_cast<int32_t>(std::max<int64_t>(whole ? c_.bound : 0, tokens));
    const AttentionLimits limits{.num_tokens = bound,
                                 .num_reqs = static_cast<int32_t>(lengths.size()),
                                 .seq_len = longest_ + (whole ? 700 : 0),
                                 .num_heads = c_.num_heads,
                                 .num_kv_heads = 1,
                                 .head_dim = c_.latent_dim,
                                 .num_threads = 1};
    const int64_t asked =
        c_.slots > 0 ? c_.slots * slot_bytes() : cuda::latent_partials_bytes(limits);
    const test::DeviceBytes workspace(split ? asked : 0);
    ChosenKeys chosen;
    if (c_.chosen_of_ten > 0) {
      chosen = {const_cast<uint64_t*>(words_.data()) + skipped * chosen_words(longest_),
                chosen_words(longest_)};
    }
    cuda::launch_latent_attention(nullptr,
                                  {.query = {q.data(), width, rows * width},
                                   .num_heads = c_.num_heads,
                                   .cache = view(),
                                   .query_start_loc = starts,
                                   .seq_lens = lengths,
                                   .num_tokens = bound,
                                   .max_seq_len = limits.seq_len,
                                   .block_table = table,
                                   .block_table_stride = stride_,
                                   .scale = kScale,
                                   .chosen = chosen,
                                   .most_chosen = most_chosen_,
                                   .out = {out.data(), c_.latent_dim, rows * c_.latent_dim},
                                   .workspace = {workspace.data(), workspace.size()}});
    std::vector<float> result;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t head = 0; head < c_.num_heads; ++head) {
        const auto from = out.begin() + (head * rows + t) * c_.latent_dim;
        result.insert(result.end(), from, from + c_.latent_dim);
      }
    }
    for (int64_t head = 0; head < c_.num_heads; ++head) {  // rows behind the tokens' stay
      EXPECT_EQ(out[static_cast<size_t>((head * rows + tokens) * c_.latent_dim)], -1.0F);
    }
    return result;
  }

  [[nodiscard]] int32_t num_tokens() const { return starts_.back(); }

  // Returns the part of a whole step's result that these tokens have.
  [[nodiscard]] std::vector<float> part(const std::vector<float>& whole,
                                        int r,
                                        int first,
                                        int count) const {
    const int64_t each = int64_t{c_.num_heads} * c_.latent_dim;
    const auto from = whole.begin() + (starts_[static_cast<size_t>(r)] + first) * each;
    return {from, from + count * each};
  }

 private:
  static constexpr float kScale = 0.21F;

  [[nodiscard]] int32_t num_blocks() const {
    int64_t blocks = 0;
    for (const Request& request : c_.requests) blocks += ceil_div(request.seq_len, c_.block_size);
    return static_cast<int32_t>(blocks);
  }

  [[nodiscard]] int64_t plane_bytes(int32_t width) const {
    return num_blocks() * kv_head_bytes(c_.dtype, width, c_.block_size);
  }

  [[nodiscard]] int64_t slot_bytes() const {
    const int64_t rows = c_.dtype == DType::kF32 ? 8 : 16;
    return rows * (c_.latent_dim + 2) * static_cast<int64_t>(sizeof(float));
  }

  int32_t& entry(size_t r, int64_t block) {
    return table_[r * static_cast<size_t>(stride_) + static_cast<size_t>(block)];
  }

  void write_key(size_t r, int32_t p) {
    const float* const key = keys_[r].data() + int64_t{p} * c_.width();
    const int64_t slot = int64_t{entry(r, p / c_.block_size)} * c_.block_size + p % c_.block_size;
    const int64_t padded = cached_head_dim(c_.rope_dim);
    for (int32_t d = 0; d < c_.latent_dim; ++d) {
      write_element(latent_.data(), slot * c_.latent_dim + d, c_.dtype, key[d]);
    }
    for (int32_t d = 0; d < padded; ++d) {
      const float value = d < c_.rope_dim ? key[c_.latent_dim + d] : 0.0F;
      write_element(rope_.data(), slot * padded + d, c_.dtype, value);
    }
  }

  [[nodiscard]] int32_t position(size_t r, int32_t t) const {
    return c_.requests[r].seq_len - c_.requests[r].num_tokens + t;
  }

  void choose(Random& random, size_t r, int32_t t) {
    uint64_t* const words = &words_[static_cast<size_t>((starts_[r] + t) * chosen_words(longest_))];
    for (int32_t p = 0; p <= position(r, t); ++p) {
      const bool chosen = p == position(r, t) / 2 || random.below(10) < c_.chosen_of_ten;
      if (chosen) words[p / 64] |= uint64_t{1} << p % 64;
    }
    most_chosen_ = std::max(most_chosen_, static_cast<int32_t>(keys_of(r, t).size()));
  }

  [[nodiscard]] std::vector<int32_t> keys_of(size_t r, int32_t t) const {
    const uint64_t* const words =
        &words_[static_cast<size_t>((starts_[r] + t) * chosen_words(longest_))];
    std::vector<int32_t> keys;
    for (int32_t p = 0; p <= position(r, t); ++p) {
      if (c_.chosen_of_ten == 0 || (words[p / 64] >> p % 64 & 1) != 0) keys.push_back(p);
    }
    return keys;
  }

  // Appends a token's rows: usual attention's on a cache that has its keys alone.
  void add_row(size_t r, int32_t t, std::vector<float>& all) const {
    const std::vector<int32_t> keys = keys_of(r, t);
    const auto count = static_cast<int32_t>(keys.size());
    const int32_t width = c_.width();
    const auto blocks = static_cast<int32_t>(ceil_div(count, kAttentionTile));
    const int64_t bytes = kv_head_bytes(c_.dtype, width, kAttentionTile);
    std::vector<std::byte> k(static_cast<size_t>(blocks * bytes));
    std::vector<std::byte> v(k.size());
    std::vector<int32_t> table;
    for (int32_t i = 0; i < blocks; ++i) table.push_back(i);
    const int64_t padded = cached_head_dim(width);
    for (int32_t i = 0; i < count; ++i) {
      const float* const key = keys_[r].data() + int64_t{keys[static_cast<size_t>(i)]} * width;
      const int64_t block = i / kAttentionTile * padded * kAttentionTile;
      const int64_t slot = i % kAttentionTile;
      for (int32_t d = 0; d < width; ++d) {
        write_element(k.data(), block + d * kAttentionTile + slot, c_.dtype, key[d]);
        if (d < c_.latent_dim) write_element(v.data(), block + slot * padded + d, c_.dtype, key[d]);
      }
    }
    const std::vector<int32_t> starts = {0, 1};
    const std::vector<int32_t> lengths = {count};
    std::vector<float> out(static_cast<size_t>(c_.num_heads * width));
    const AttentionLimits limits{.num_tokens = 1,
                                 .num_reqs = 1,
                                 .seq_len = count,
                                 .num_heads = c_.num_heads,
                                 .num_kv_heads = 1,
                                 .head_dim = width,
                                 .num_threads = 1};
    const test::DeviceBytes workspace(kernels::attention_workspace_bytes(limits));
    const AttentionArgs args{.q = q_.data() + int64_t{starts_[r] + t} * c_.num_heads * width,
                             .q_stride = c_.num_heads * width,
                             .num_heads = c_.num_heads,
                             .kv = {.k = k.data(),
                                    .v = v.data(),
                                    .dtype = c_.dtype,
                                    .num_blocks = blocks,
                                    .block_size = kAttentionTile,
                                    .num_kv_heads = 1,
                                    .head_dim = width},
                             .query_start_loc = starts,
                             .seq_lens = lengths,
                             .block_table = table.data(),
                             .block_table_stride = blocks,
                             .scale = kScale,
                             .out = out.data(),
                             .out_stride = c_.num_heads * width,
                             .workspace = {workspace.data(), workspace.size()}};
    attention(test::make_device("scalar", 1)->context(), args);
    const test::AttentionModel model(args,
                                     c_.capability == 90 ? simt::kHopperCore : simt::kAmpereCore);
    for (int32_t head = 0; head < c_.num_heads; ++head) {
      const float* const cpu = out.data() + head * width;
      if (c_.dtype == DType::kF32) {
        all.insert(all.end(), cpu, cpu + c_.latent_dim);
        continue;
      }
      const std::vector<float> row = model.output({0, 0, head});
      const std::vector<double> tolerance = model.tolerance({0, 0, head});
      for (size_t d = 0; d < static_cast<size_t>(c_.latent_dim); ++d) {
        ASSERT_NEAR(row[d], cpu[d], tolerance[d]) << r << ", " << t << ", " << head;
      }
      all.insert(all.end(), row.begin(), row.begin() + c_.latent_dim);
    }
  }

  [[nodiscard]] LatentKvView view() const {
    return {.latent = latent_.data(),
            .rope = rope_.data(),
            .dtype = c_.dtype,
            .num_blocks = num_blocks(),
            .block_size = c_.block_size,
            .latent_dim = c_.latent_dim,
            .rope_dim = c_.rope_dim};
  }

  const Case c_;
  test::DeviceBytes latent_, rope_;
  std::vector<int32_t> starts_, lengths_, table_;
  int32_t longest_ = 0;
  int32_t stride_ = 0;
  int32_t most_chosen_ = 0;
  std::vector<std::vector<float>> keys_;
  std::vector<float> q_;
  std::vector<uint64_t> words_;
};

// Checks one block walking the partitions, and blocks for each of them.
void check(const Case& c) {
  const simt::GivenDevice device(c.capability);
  if (!device.is_here()) return;
  const Step step(c);
  const std::vector<float> want = step.want();
  test::on_schedules([&] {
    test::expect_same_floats(step.launch(false), want);
    SCOPED_TRACE("split");
    test::expect_same_floats(step.launch(true), want);
  });
}

TEST(CudaLatentAttention, OverFloatsHasTheCpusBits) {
  check({.dtype = DType::kF32,
         .num_heads = 9,
         .latent_dim = 64,
         .rope_dim = 10,
         .requests = {{530, 1}, {70, 3}, {1, 1}}});
  check(
      {.dtype = DType::kF32, .block_size = 8, .chosen_of_ten = 9, .requests = {{580, 2}, {3, 1}}});
}

TEST(CudaLatentAttention, Over16BitsHasTheModelsBits) {
  check({.num_heads = 20,
         .latent_dim = 160,
         .rope_dim = 10,
         .requests = {{330, 1}, {70, 2}, {1, 1}}});
  check({.dtype = DType::kF16,
         .num_heads = 3,
         .latent_dim = 512,
         .rope_dim = 64,
         .block_size = 64,
         .requests = {{130, 1}}});
}

TEST(CudaLatentAttention, MergesPartitions) {
  check({.block_size = 32, .requests = {{1100, 2}, {515, 1}}});
}

// There is room for 5 partitions of 6: those of the last request run one after the other.
TEST(CudaLatentAttention, RequestsWithoutRoomAreNotSplit) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    check({.dtype = dtype, .requests = {{1100, 1}, {9, 1}, {600, 1}}, .slots = 5});
  }
  check({.chosen_of_ten = 9, .requests = {{610, 1}, {600, 1}}, .slots = 3});
}

TEST(CudaLatentAttention, TakesChosenKeysAloneInTheirOrder) {
  check({.num_heads = 20, .latent_dim = 96, .chosen_of_ten = 9, .requests = {{610, 1}, {90, 2}}});
  check({.block_size = 1, .chosen_of_ten = 2, .requests = {{700, 1}, {5, 3}}});
  check({.dtype = DType::kF16, .num_heads = 5, .chosen_of_ten = 6, .requests = {{130, 1}, {9, 2}}});
}

#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
// However long the context is, a few chosen keys are one partition.
TEST(CudaLatentAttention, IsSplitByTheKeysThatTokensChoose) {
  for (const int32_t of_ten : {0, 3}) {
    const Step step({.chosen_of_ten = of_ten, .requests = {{1100, 1}}});
    simt::Run run(1);
    test::expect_same_floats(step.launch(true), step.want());
    EXPECT_EQ(run.num_launches(), of_ten == 0 ? 2 : 1);
    EXPECT_EQ(test::joined(run.take_reports()), "");
  }
}
#endif

// A block of a launch for many tokens has two groups of rows.
TEST(CudaLatentAttention, ManyRowsHaveTheSameBits) {
  check({.num_heads = 20, .requests = {{200, 5}, {3, 2}}, .bound = 260});
  check({.num_heads = 36, .chosen_of_ten = 7, .requests = {{150, 3}}, .bound = 260});
}

TEST(CudaLatentAttention, OtherDevicesHaveOneTileAtOnce) {
  check({.num_heads = 20, .requests = {{270, 2}, {66, 1}}, .bound = 260, .capability = 80});
}

TEST(CudaLatentAttention, RowsAloneAndInChunksHaveTheSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Step step({.dtype = dtype,
                     .num_heads = 5,
                     .latent_dim = 64,
                     .requests = {{75, 9}, {520, 2}, {1, 1}}});
    test::on_schedules(
        [&] {
          const std::vector<float> whole = step.launch(true);
          for (const auto& [r, first, count] :
               {std::array{0, 0, 9}, {0, 3, 1}, {0, 4, 5}, {1, 1, 1}, {2, 0, 1}}) {
            test::expect_same_floats(step.launch(false, r, first, count),
                                     step.part(whole, r, first, count));
          }
        },
        test::Seeds::kOne);
  }
}

}  // namespace
}  // namespace sluice::kernels
