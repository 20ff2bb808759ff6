// SPDX-License-Identifier: Apache-2.0
// One step of attention for tests of the CUDA kernels: a cache, queries, and their outputs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/launch.h"
#include "kernels/rope.h"
#include "tests/kernels/cuda/attention_model.h"
#include "tests/kernels/cuda/rows_check.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {

struct AttentionRequest {
  int32_t seq_len;
  int32_t num_tokens;
};

struct AttentionCase {
  DType dtype = DType::kBF16;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 16;
  int32_t block_size = 16;
  int32_t window = 0;
  bool is_chunked = false;
  float soft_cap = 0;
  bool sinks = false;
  std::vector<AttentionRequest> requests = {};
  int32_t value_dim = 0;  // 0: head_dim
  bool slopes = false;

  [[nodiscard]] int32_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
};

// A cache, the queries of one step, and that step's outputs: the CPU's for caches of floats, else
// the model's, which may not be further from the CPU than it says. Slots that were never written,
// or that no row sees any more, hold NaN or codes and scales of 1 bits, and table entries of blocks
// without a visible key are far out of bounds.
class AttentionStep {
 public:
  explicit AttentionStep(const AttentionCase& c, simt::TensorCore core = simt::kHopperCore)
      : c_(c),
        num_blocks_(blocks_of(c)),
        k_(cache_bytes(c.head_dim)),
        v_(cache_bytes(c.value_width())) {
    std::memset(k_.data(), 0xFF, k_.size());
    std::memset(v_.data(), 0xFF, v_.size());
    Random random(71);
    starts_.push_back(0);
    for (const AttentionRequest& request : c.requests) {
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
    const auto cpu = make_device("scalar", 1);
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
    for (const AttentionRequest& request : c_.requests) {
      longest = std::max(longest, request.seq_len);
    }
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
    const DeviceBytes workspace(split ? cuda::attention_workspace_bytes(limits, c_.window)
                                            : 0);
    return launch_with(limits, workspace);
  }

  [[nodiscard]] std::vector<float> launch_with(const AttentionLimits& limits,
                                               const DeviceBytes& workspace) const {
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
    const AttentionRequest& request = c_.requests[r];
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
  static int32_t blocks_of(const AttentionCase& c) {
    int64_t blocks = 0;
    for (const AttentionRequest& request : c.requests) {
      blocks += ceil_div(request.seq_len, c.block_size);
    }
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
    const AttentionModel model(args, core);
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
    rope_write_kv(make_device("scalar", 1)->context(),
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
    const AttentionRequest& request = c_.requests[r];
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

  const AttentionCase c_;
  const int32_t num_blocks_;
  DeviceBytes k_;
  DeviceBytes v_;
  int32_t stride_ = 1;
  std::vector<int32_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> table_;
  std::vector<float> q_;
  std::vector<float> sinks_;
  std::vector<float> slopes_;
  std::vector<float> want_;
};

}  // namespace sluice::kernels::test
