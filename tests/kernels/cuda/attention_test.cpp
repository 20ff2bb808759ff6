// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/rope.h"
#include "tests/kernels/cuda/attention_model.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct Request {
  int32_t seq_len;
  int32_t num_tokens;
};

struct Case {
  DType dtype = DType::kBF16;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 16;
  int32_t block_size = 16;
  int32_t window = 0;
  bool is_chunked = false;
  float soft_cap = 0;
  bool sinks = false;
  std::vector<Request> requests = {};
  int32_t value_dim = 0;  // 0: head_dim
  bool slopes = false;

  [[nodiscard]] int32_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
};

// A cache, the queries of one step, and that step's outputs: the CPU's for caches of floats, else
// the model's, which may not be further from the CPU than it says. Slots that were never written,
// or that no row sees any more, hold NaN or codes and scales of 1 bits, and table entries of blocks
// without a visible key are far out of bounds.
class Step {
 public:
  explicit Step(const Case& c, simt::TensorCore core = simt::kHopperCore)
      : c_(c),
        num_blocks_(blocks_of(c)),
        k_(cache_bytes(c.head_dim)),
        v_(cache_bytes(c.value_width())) {
    std::memset(k_.data(), 0xFF, k_.size());
    std::memset(v_.data(), 0xFF, v_.size());
    Random random(71);
    starts_.push_back(0);
    for (const Request& request : c.requests) {
      starts_.push_back(starts_.back() + request.num_tokens);
      lengths_.push_back(request.seq_len);
      stride_ =
          std::max(stride_, static_cast<int32_t>(ceil_div(request.seq_len, c.block_size)) + 1);
    }
    table_.assign(c.requests.size() * static_cast<size_t>(stride_), INT32_MAX);
    int32_t next = num_blocks_;  // the last block first
    for (size_t r = 0; r < c.requests.size(); ++r) {
      for (int32_t i = 0; i < ceil_div(c.requests[r].seq_len, c.block_size); ++i) {
        table_[r * static_cast<size_t>(stride_) + static_cast<size_t>(i)] = --next;
      }
      fill(random, r);
      forget(r);
    }
    const int64_t rows = starts_.back();
    q_ = random.normals(static_cast<size_t>(rows * width()), 1.5F);
    sinks_ = random.normals(static_cast<size_t>(c.num_heads), 2);
    for (int32_t head = 0; head < c.num_heads; ++head) {
      slopes_.push_back(-0.1F / static_cast<float>(head + 1));
    }
    const auto cpu = test::make_device("scalar", 1);
    std::vector<std::byte> workspace(
        static_cast<size_t>(kernels::attention_workspace_bytes(limits())) + 64);
    void* aligned = workspace.data();
    size_t space = workspace.size();
    std::align(64, space - 64, aligned, space);
    want_ = untouched();
    AttentionArgs args = arguments(want_);
    args.workspace = {static_cast<std::byte*>(aligned), workspace.size() - 64};
    attention(cpu->context(), args);
    args.workspace = {};
    if (c.dtype != DType::kF32) take_model(args, core);
  }

  [[nodiscard]] AttentionLimits limits() const {
    int32_t longest = 1;
    for (const Request& request : c_.requests) longest = std::max(longest, request.seq_len);
    return {.num_tokens = starts_.back(),
            .num_reqs = static_cast<int32_t>(c_.requests.size()),
            .seq_len = longest,
            .num_heads = c_.num_heads,
            .num_kv_heads = c_.num_kv_heads,
            .head_dim = c_.head_dim,
            .num_threads = 1};
  }

  // Launches once; `split`: with a workspace of the size it asks for.
  [[nodiscard]] std::vector<float> launch(const AttentionLimits& limits, bool split) const {
    const test::DeviceBytes workspace(split ? cuda::attention_workspace_bytes(limits, c_.window)
                                            : 0);
    return launch_with(limits, workspace);
  }

  [[nodiscard]] std::vector<float> launch_with(const AttentionLimits& limits,
                                               const test::DeviceBytes& workspace) const {
    std::vector<float> out = untouched();
    AttentionArgs args = arguments(out);
    args.workspace = {workspace.data(), workspace.size()};
    cuda::launch_attention(nullptr, args, limits);
    return out;
  }

  [[nodiscard]] const std::vector<float>& want() const { return want_; }

  // Returns where element `head` of token `token` of request `r` starts in an output.
  [[nodiscard]] size_t at(size_t r, int32_t token, int32_t head) const {
    return static_cast<size_t>(((starts_[r] + token) * c_.num_heads + head) * c_.value_width());
  }

  // Launches other tokens of the requests over the same cache.
  [[nodiscard]] std::vector<float> launch_part(size_t r, int32_t first, int32_t count) const {
    std::vector<float> out(static_cast<size_t>(count * out_width()), -1.0F);
    const std::vector<int32_t> starts = {0, count};
    const Request& request = c_.requests[r];
    const std::vector<int32_t> lengths = {request.seq_len - request.num_tokens + first + count};
    AttentionArgs args = arguments(out);
    args.q = q_.data() + (starts_[r] + first) * width();
    args.query_start_loc = starts;
    args.seq_lens = lengths;
    args.block_table = table_.data() + r * static_cast<size_t>(stride_);
    AttentionLimits few = limits();
    few.num_tokens = count;
    few.num_reqs = 1;
    cuda::launch_attention(nullptr, args, few);
    return out;
  }

  [[nodiscard]] int64_t width() const { return int64_t{c_.num_heads} * c_.head_dim; }

  [[nodiscard]] int64_t out_width() const { return int64_t{c_.num_heads} * c_.value_width(); }

 private:
  static int32_t blocks_of(const Case& c) {
    int64_t blocks = 0;
    for (const Request& request : c.requests) blocks += ceil_div(request.seq_len, c.block_size);
    return static_cast<int32_t>(blocks);
  }

  [[nodiscard]] int64_t cache_bytes(int32_t width) const {
    return int64_t{num_blocks_} * c_.num_kv_heads * kv_head_bytes(c_.dtype, width, c_.block_size);
  }

  [[nodiscard]] KvLayerView view() const {
    return {.k = k_.data(),
            .v = v_.data(),
            .dtype = c_.dtype,
            .num_blocks = num_blocks_,
            .block_size = c_.block_size,
            .num_kv_heads = c_.num_kv_heads,
            .head_dim = c_.head_dim,
            .value_dim = c_.value_dim};
  }

  void take_model(const AttentionArgs& args, simt::TensorCore core) {
    const test::AttentionModel model(args, core);
    for (size_t r = 0; r < c_.requests.size(); ++r) {
      for (int32_t token = 0; token < c_.requests[r].num_tokens; ++token) {
        for (int32_t head = 0; head < c_.num_heads; ++head) {
          const std::vector<float> row = model.output({r, token, head});
          const std::vector<double> bound = model.tolerance({r, token, head});
          float* const want = &want_[at(r, token, head)];
          for (size_t d = 0; d < row.size(); ++d) {
            ASSERT_NEAR(row[d], want[d], bound[d]) << r << ", " << token << ", " << head;
            want[d] = row[d];
          }
        }
      }
    }
  }

  void fill(Random& random, size_t r) {
    const int32_t tokens = c_.requests[r].seq_len;
    const int64_t k_width = int64_t{c_.num_kv_heads} * c_.head_dim;
    const int64_t v_width = int64_t{c_.num_kv_heads} * c_.value_width();
    std::vector<float> k = random.normals(static_cast<size_t>(tokens * k_width), 1.5F);
    const std::vector<float> v = random.normals(static_cast<size_t>(tokens * v_width));
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < tokens; ++i) {
      const size_t entry =
          r * static_cast<size_t>(stride_) + static_cast<size_t>(i / c_.block_size);
      slots.push_back(int64_t{table_[entry]} * c_.block_size + i % c_.block_size);
    }
    const std::vector<int32_t> positions(slots.size(), 0);
    rope_write_kv(test::make_device("scalar", 1)->context(),
                  {.q = nullptr,
                   .q_stride = 0,
                   .k = k.data(),
                   .k_stride = k_width,
                   .v = v.data(),
                   .v_stride = v_width,
                   .num_heads = 0,
                   .table = nullptr,
                   .positions = positions,
                   .slot_mapping = slots,
                   .kv = view()});
  }

  // Clears keys before the window of the request's first token, and blocks with only such keys.
  void forget(size_t r) {
    const Request& request = c_.requests[r];
    const int32_t position = request.seq_len - request.num_tokens;
    const int32_t first = first_visible_key(position, c_.window, c_.is_chunked);
    const int64_t k_width = cached_head_dim(c_.head_dim);
    const int64_t v_width = cached_head_dim(c_.value_width());
    const int64_t k_bytes = kv_head_bytes(c_.dtype, c_.head_dim, c_.block_size);
    const int64_t v_bytes = kv_head_bytes(c_.dtype, c_.value_width(), c_.block_size);
    const auto bytes = static_cast<int64_t>(dtype_bytes(c_.dtype));
    for (int32_t key = 0; key < first; ++key) {
      int32_t& block =
          table_[r * static_cast<size_t>(stride_) + static_cast<size_t>(key / c_.block_size)];
      const int32_t slot = key % c_.block_size;
      for (int32_t head = 0; head < c_.num_kv_heads; ++head) {
        const int64_t at = int64_t{block} * c_.num_kv_heads + head;
        std::memset(v_.data() + at * v_bytes + slot * v_width * bytes,
                    0xFF,
                    static_cast<size_t>(v_width * bytes));
        for (int64_t d = 0; d < k_width; ++d) {
          std::memset(k_.data() + at * k_bytes + (d * c_.block_size + slot) * bytes,
                      0xFF,
                      static_cast<size_t>(bytes));
        }
      }
      if (slot == c_.block_size - 1) block = INT32_MAX;
    }
  }

  [[nodiscard]] std::vector<float> untouched() const {
    return std::vector<float>(static_cast<size_t>(starts_.back() * out_width()) + 1, -1.0F);
  }

  [[nodiscard]] AttentionArgs arguments(std::vector<float>& out) const {
    return {.q = q_.data(),
            .q_stride = width(),
            .num_heads = c_.num_heads,
            .kv = view(),
            .query_start_loc = starts_,
            .seq_lens = lengths_,
            .block_table = table_.data(),
            .block_table_stride = stride_,
            .scale = 1.0F / std::sqrt(static_cast<float>(c_.head_dim)),
            .window = c_.window,
            .is_chunked = c_.is_chunked,
            .soft_cap = c_.soft_cap,
            .sinks = c_.sinks ? sinks_.data() : nullptr,
            .slopes = c_.slopes ? slopes_.data() : nullptr,
            .out = out.data(),
            .out_stride = out_width(),
            .workspace = {}};
  }

  const Case c_;
  const int32_t num_blocks_;
  test::DeviceBytes k_;
  test::DeviceBytes v_;
  int32_t stride_ = 1;
  std::vector<int32_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> table_;
  std::vector<float> q_;
  std::vector<float> sinks_;
  std::vector<float> slopes_;
  std::vector<float> want_;
};

// Checks one block walking the partitions, and blocks for each of them.
void check(const Case& c) {
  const Step step(c);
  test::on_schedules([&] {
    test::expect_same_floats(step.launch(step.limits(), false), step.want());
    if (cuda::attention_workspace_bytes(step.limits(), c.window) == 0) return;
    SCOPED_TRACE("split");
    test::expect_same_floats(step.launch(step.limits(), true), step.want());
  });
}

constexpr DType kCacheTypes[] = {
    DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3};

TEST(CudaAttention, DecodesAndPromptsOverEveryCacheType) {
  for (const DType dtype : kCacheTypes) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_dim = 24,  // padded in the cache
           .requests = {{1, 1}, {77, 1}, {200, 1}}});
    check({.dtype = dtype, .num_heads = 4, .head_dim = 24, .requests = {{150, 20}}});
  }
  check({.dtype = DType::kF32, .num_heads = 2, .requests = {{600, 1}, {530, 11}}});
}

TEST(CudaAttention, GroupsAndHeadsOfEverySize) {
  check({.num_heads = 3, .num_kv_heads = 3, .requests = {{70, 1}, {5, 1}}});
  check({.num_heads = 6, .num_kv_heads = 2, .head_dim = 70, .requests = {{100, 1}}});
  check({.num_heads = 8, .num_kv_heads = 1, .head_dim = 128, .requests = {{130, 1}}});
  check({.num_heads = 20, .num_kv_heads = 1, .requests = {{30, 1}, {65, 1}}});
  for (const int32_t head_dim : {64, 80, 96, 256}) {
    SCOPED_TRACE(head_dim);
    check({.num_heads = 2, .head_dim = head_dim, .requests = {{140, 1}}});
    check({.num_heads = 1, .head_dim = head_dim, .requests = {{70, 17}}});
  }
  check({.dtype = DType::kI8, .num_heads = 1, .head_dim = 112, .requests = {{70, 17}}});
  check({.dtype = DType::kF8E4M3, .num_heads = 1, .head_dim = 240, .requests = {{100, 1}}});
}

TEST(CudaAttention, WideHeadsNarrowValuesAndSlopes) {
  for (const DType dtype : kCacheTypes) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .num_heads = 2, .head_dim = 512, .requests = {{70, 1}, {3, 2}}});
    check({dtype, 4, 2, 40, 16, 0, false, 0, false, {{75, 2}}, 24});
    check({dtype, 6, 2, 16, 16, 0, false, 0, false, {{530, 1}, {75, 4}}, 0, true});
  }
  check({.num_heads = 2, .head_dim = 264, .requests = {{600, 1}}});
  check({.num_heads = 1, .head_dim = 320, .window = 60, .requests = {{150, 17}}});
  check({.num_heads = 2, .head_dim = 192, .requests = {{520, 1}, {70, 9}}, .value_dim = 128});
  check({.num_heads = 1, .head_dim = 96, .requests = {{90, 40}, {3, 1}}, .value_dim = 48});
  check({.num_heads = 2, .soft_cap = 3, .requests = {{90, 40}}, .slopes = true});
}

TEST(CudaAttention, BlocksOfEverySize) {
  for (const int32_t block_size : {1, 4, 8, 32, 64}) {
    SCOPED_TRACE(block_size);
    for (const DType dtype : {DType::kF16, DType::kI8}) {
      check({.dtype = dtype, .block_size = block_size, .requests = {{90, 1}, {3, 2}}});
    }
  }
}

TEST(CudaAttention, PrefillsAndMixesThemWithDecodes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .requests = {{23, 23}, {40, 0}, {66, 1}, {130, 7}}});
    check({.dtype = dtype, .num_heads = 3, .requests = {{519, 12}, {2, 2}}});
  }
}

TEST(CudaAttention, AWindowStartsAtTheSameKeyAsOnTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kI8}) {
    for (const int32_t window : {1, 64, 513}) {
      SCOPED_TRACE(window);
      check({.dtype = dtype,
             .num_heads = 2,
             .window = window,
             .requests = {{window, 1}, {window + 1, 1}, {1025, 1}}});
    }
    check({.dtype = dtype, .num_heads = 2, .window = 9, .requests = {{516, 11}, {30, 30}}});
  }
}

// One token, prompts over the border of two chunks, and chunks beyond a partition.
TEST(CudaAttention, AChunkStartsAtTheSameKeyAsOnTheCpu) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const int32_t window : {48, 520}) {
      SCOPED_TRACE(window);
      check({.dtype = dtype,
             .num_heads = 2,
             .window = window,
             .is_chunked = true,
             .requests = {{window, 1}, {window + 1, 1}, {2 * window + 7, 20}, {30, 30}}});
    }
  }
}

TEST(CudaAttention, SoftCapAndSinks) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype, .soft_cap = 2, .sinks = true, .requests = {{530, 1}, {20, 5}}});
    // A block starts inside a token.
    check({.dtype = dtype, .num_heads = 3, .sinks = true, .requests = {{40, 25}}});
    check({.dtype = dtype,
           .num_heads = 8,
           .num_kv_heads = 2,
           .window = 40,
           .sinks = true,
           .requests = {{560, 3}}});
  }
}

TEST(CudaAttention, PartitionsAndTilesEndWhereTheirLastKeyIs) {
  check({.num_heads = 2,
         .requests = {{63, 1}, {64, 1}, {65, 1}, {511, 1}, {512, 1}, {513, 1}, {1025, 1}}});
}

// Rings have as many stages as a partition has tiles, or fewer; several blocks share rows.
TEST(CudaAttention, WholePartitionsOfWideHeads) {
  for (const DType dtype : {DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(to_string(dtype));
    check({.dtype = dtype,
           .num_heads = 4,
           .num_kv_heads = 2,
           .head_dim = 128,
           .requests = {{1100, 1}, {600, 2}}});
    check({.dtype = dtype, .num_heads = 2, .head_dim = 256, .requests = {{1030, 1}}});
  }
}

// A request's window moves over more partitions than one of its row blocks sees.
TEST(CudaAttention, RowBlocksOfALongPromptHavePartitionsOfTheirOwn) {
  std::vector<Request> requests(168, {1, 0});  // lets blocks of few rows take all of it
  requests[5] = {2340, 1340};
  const Step step({.num_heads = 2, .window = 500, .requests = requests});
  const auto split = [&] {
    test::expect_same_floats(step.launch(step.limits(), true), step.want());
  };
  test::on_schedules(split, test::Seeds::kOne);
}

// Like in a recorded step, most of the thousands of blocks have nothing to do.
TEST(CudaAttention, BlocksTakeSeveralPartitionsWhereThereAreMany) {
  std::vector<Request> requests(250, {1, 0});
  requests[77] = {3100, 1};
  requests[78] = {1500, 1};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(to_string(dtype));
    const Step step({.dtype = dtype, .num_heads = 2, .num_kv_heads = 2, .requests = requests});
    const auto split = [&] {
      test::expect_same_floats(step.launch(step.limits(), true), step.want());
    };
    test::on_schedules(split, test::Seeds::kOne);
  }
}

TEST(CudaAttention, EveryChunkingGivesTheSameRows) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(to_string(dtype));
    const Step step({.dtype = dtype, .num_heads = 2, .window = 520, .requests = {{535, 30}}});
    test::on_schedules([&] {
      for (const int32_t chunk : {1, 7, 30}) {
        SCOPED_TRACE(chunk);
        for (int32_t first = chunk == 1 ? 26 : 0; first < 30; first += chunk) {
          const int32_t count = std::min(chunk, 30 - first);
          const auto begin = step.want().begin() + first * step.width();
          test::expect_same_floats(step.launch_part(0, first, count),
                                   {begin, begin + count * step.width()});
        }
      }
    });
  }
}

// The definition's bits come from the copy engine and wgmma, and from mma.sync on a device without
// them. Cases: more rows than a warpgroup's 64 and a block's 128, partitions, rings that go round
// with heads of up to 64 and up to 128, whole and cut blocks at both ends of the visible keys.
TEST(CudaAttention, PromptsHaveTheSameBitsWithAndWithoutWgmma) {
  for (const Case& c : {Case{.num_heads = 2, .head_dim = 64, .requests = {{530, 70}}},
                        Case{.dtype = DType::kF16,
                        .num_heads = 2,
                        .num_kv_heads = 2,
                        .head_dim = 128,
                        .block_size = 32,
                        .requests = {{530, 66}, {20, 1}}},
                        Case{.num_heads = 2,
                        .head_dim = 80,
                        .block_size = 64,
                        .window = 40,
                        .sinks = true,
                        .requests = {{230, 30}}},
                        Case{.dtype = DType::kF16,
                        .num_heads = 3,
                        .head_dim = 24,
                        .window = 70,
                        .soft_cap = 3,
                        .requests = {{600, 9}, {9, 1}, {30, 30}}}}) {
    SCOPED_TRACE(c.head_dim);
    check(c);
    const simt::GivenDevice blackwell(100);
    if (!blackwell.is_here()) continue;
    const Step step(c);
    simt::Run run(1);
    test::expect_same_floats(step.launch(step.limits(), false), step.want());
    EXPECT_EQ(test::joined(run.take_reports()), "");
  }
}

// sm_80's tensor cores take 8 products at a time.
TEST(CudaAttention, Sm80HasBitsOfItsOwnThatNothingElseChanges) {
  for (const Case& c : {Case{.num_heads = 2, .requests = {{530, 1}}},
                        Case{.dtype = DType::kF16, .num_heads = 2, .requests = {{70, 9}}}}) {
    const Step step(c, simt::kAmpereCore);
    EXPECT_NE(step.want(), Step(c).want());
    const simt::GivenDevice device(80);
    if (!device.is_here()) GTEST_SKIP() << "the GPU is another";
    test::on_schedules([&] {
      test::expect_same_floats(step.launch(step.limits(), false), step.want());
      test::expect_same_floats(step.launch(step.limits(), true), step.want());
    });
  }
}

TEST(CudaAttention, LimitsAboveTheCallChangeNothing) {
  const Step step({.num_heads = 2, .requests = {{700, 2}, {9, 1}}});
  AttentionLimits limits = step.limits();
  limits.num_tokens += 5;
  limits.seq_len = 5000;
  ASSERT_GT(cuda::attention_workspace_bytes(limits, 0),
            cuda::attention_workspace_bytes(step.limits(), 0));
  test::on_schedules([&] {
    test::expect_same_floats(step.launch(limits, false), step.want());
    test::expect_same_floats(step.launch(limits, true), step.want());
  });
}

TEST(CudaAttention, AWorkspaceIsAskedForWhereItHelps) {
  const AttentionLimits decode{.num_tokens = 1,
                               .num_reqs = 1,
                               .seq_len = 4096,
                               .num_heads = 32,
                               .num_kv_heads = 8,
                               .head_dim = 128,
                               .num_threads = 0};
  EXPECT_GT(cuda::attention_workspace_bytes(decode, 0), 0);
  EXPECT_LT(cuda::attention_workspace_bytes(decode, 600),
            cuda::attention_workspace_bytes(decode, 0));
  AttentionLimits other = decode;
  other.seq_len = kAttentionPartition;
  EXPECT_EQ(cuda::attention_workspace_bytes(other, 0), 0);
  other = decode;
  other.num_tokens = 4096;
  EXPECT_EQ(cuda::attention_workspace_bytes(other, 0), 0);
}

TEST(CudaAttention, AWorkspaceThatItDidNotAskForIsLeftAlone) {
  const Step step({.requests = {{40, 1}}});
  test::DeviceBytes workspace(64);
  const std::vector<std::byte> before = workspace.copy();
  test::on_schedules([&] {
    test::expect_same_floats(step.launch_with(step.limits(), workspace), step.want());
    test::expect_same_bytes(workspace.data(), before.data(), before.size());
  });
}

TEST(CudaAttention, HeadsThatDoNotFitAreRefused) {
  EXPECT_TRUE(check_attention(DeviceType::kCuda, 256, 256).has_value());
  EXPECT_TRUE(check_attention(DeviceType::kCpu, 512, 256).has_value());
  EXPECT_TRUE(check_attention(DeviceType::kCuda, 192, 128).has_value());
  EXPECT_FALSE(check_attention(DeviceType::kCuda, 128, 192).has_value());
  const Expected<void> refused = check_attention(DeviceType::kCuda, 520, 520);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(refused.error().message.find("heads of 520, expected at most 512"), std::string::npos);
  const simt::GivenDevice small(89);
  EXPECT_EQ(check_attention(DeviceType::kCuda, 264, 264).has_value(), !small.is_here());
}

#ifndef SLUICE_TESTS_ON_GPU  // a GPU does not count launches
// The workspace that an engine has serves decodes beside a prompt, and several tokens a request.
TEST(CudaAttention, FewRowsOfMixedStepsAreSplitWithTheEnginesWorkspace) {
  struct Mixed {
    std::vector<Request> requests;
    int32_t head_dim;
    int launches;
  };

  for (const Mixed& mixed : {Mixed{{{1300, 1}, {30, 30}, {700, 1}, {9, 1}}, 16, 3},
                             Mixed{{{1300, 5}, {30, 2}}, 16, 2},
                             Mixed{{{1030, 40}}, 144, 2}}) {
    SCOPED_TRACE(mixed.requests.size());
    const Step step({.num_heads = 2, .head_dim = mixed.head_dim, .requests = mixed.requests});
    AttentionLimits limits = step.limits();
    limits.num_tokens += 10;
    limits.device = DeviceType::kCuda;
    const test::DeviceBytes workspace(attention_workspace_bytes(limits));
    simt::Run run(3);
    test::expect_same_floats(step.launch_with(step.limits(), workspace), step.want());
    EXPECT_EQ(run.num_launches(), mixed.launches);
    EXPECT_EQ(test::joined(run.take_reports()), "");
  }
}

TEST(CudaAttention, NothingIsLaunchedForNoTokens) {
  const Step step({.requests = {{40, 0}}});
  simt::Run run(0);
  test::expect_same_floats(step.launch(step.limits(), true), step.want());
  EXPECT_EQ(run.num_launches(), 0);
}
#endif

}  // namespace
}  // namespace sluice::kernels
