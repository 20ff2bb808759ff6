// SPDX-License-Identifier: Apache-2.0
// Latent attention against usual attention, whose tree it has: keys [latent | rotated], values
// [latent | zeros], one KV head. Every bit must be the same on every instruction set, with any
// threads and in any chunks; and the rows that it reads.
#include "kernels/latent_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "tests/kernels/cache_element.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::write_element;

struct Shape {
  int32_t num_heads;
  int32_t latent_dim;
  int32_t rope_dim;
  DType dtype = DType::kBF16;
  int32_t block_size = 16;

  [[nodiscard]] int32_t width() const { return latent_dim + rope_dim; }

  [[nodiscard]] std::string name() const {
    return std::to_string(num_heads) + " heads, " + std::to_string(latent_dim) + " + " +
           std::to_string(rope_dim) + " " + std::string(to_string(dtype)) + " blocks of " +
           std::to_string(block_size);
  }
};

// Whole sequences, and both caches with all of their keys.
class Sequences {
 public:
  Sequences(const Shape& shape, std::vector<int32_t> lengths)
      : shape_(shape), lengths_(std::move(lengths)) {
    const int32_t longest = *std::ranges::max_element(lengths_);
    stride_ = (longest + shape.block_size - 1) / shape.block_size;
    const auto num_blocks = static_cast<int32_t>(lengths_.size()) * stride_;
    // Blocks lie anywhere: the table counts down.
    for (int32_t i = num_blocks - 1; i >= 0; --i) table_.push_back(i);
    for (const int32_t length : lengths_) {
      first_.push_back(num_tokens_);
      num_tokens_ += length;
    }
    test::Random random(5);
    const auto count = static_cast<size_t>(num_tokens_);
    queries_ = random.normals(count * static_cast<size_t>(shape.num_heads * shape.width()), 0.2F);
    keys_ = random.normals(count * static_cast<size_t>(shape.width()));
    const auto plane = [&](int32_t width) {
      return std::vector<std::byte>(
          static_cast<size_t>(num_blocks * kv_head_bytes(shape.dtype, width, shape.block_size)));
    };
    latent_ = plane(shape.latent_dim);
    rope_ = plane(shape.rope_dim);
    k_ = plane(shape.width());
    v_ = plane(shape.width());
    for (size_t req = 0; req < lengths_.size(); ++req) {
      for (int32_t p = 0; p < lengths_[req]; ++p) write_key(req, p);
    }
  }

  // The latents' mixes of every row, [token][head][latent_dim], in chunks of `chunk` tokens of all
  // requests at once.
  std::vector<float> run(const Device& device, int32_t chunk, bool is_latent) const {
    const int32_t heads = shape_.num_heads;
    std::vector<float> result(static_cast<size_t>(num_tokens_ * heads * shape_.latent_dim));
    const int32_t longest = *std::ranges::max_element(lengths_);
    for (int32_t begin = 0; begin < longest; begin += chunk)
      run_chunk(device, begin, chunk, is_latent, result);
    return result;
  }

 private:
  void write_key(size_t req, int32_t position) {
    const int32_t c = shape_.latent_dim;
    const int32_t size = shape_.block_size;
    const float* key = keys_.data() + int64_t{first_[req] + position} * shape_.width();
    const int64_t block =
        table_[req * static_cast<size_t>(stride_) + static_cast<size_t>(position / size)];
    const int64_t slot = position % size;
    const int64_t rope_width = cached_head_dim(shape_.rope_dim);
    const int64_t width = cached_head_dim(shape_.width());
    for (int32_t d = 0; d < shape_.width(); ++d) {
      write_element(k_.data(), block * width * size + d * size + slot, shape_.dtype, key[d]);
      if (d >= c) {
        write_element(
            rope_.data(), (block * size + slot) * rope_width + d - c, shape_.dtype, key[d]);
        continue;
      }
      write_element(latent_.data(), (block * size + slot) * c + d, shape_.dtype, key[d]);
      write_element(v_.data(), (block * size + slot) * width + d, shape_.dtype, key[d]);
    }
  }

  // What a step passes to either kernel.
  struct Step {
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lens;
    std::vector<int32_t> tables;
    std::vector<int32_t> tokens;
  };

  [[nodiscard]] Step step_of(int32_t begin, int32_t chunk) const {
    Step step;
    for (size_t req = 0; req < lengths_.size(); ++req) {
      const int32_t end = std::min(begin + chunk, lengths_[req]);
      if (end <= begin) continue;
      for (int32_t p = begin; p < end; ++p) step.tokens.push_back(first_[req] + p);
      step.starts.push_back(static_cast<int32_t>(step.tokens.size()));
      step.lens.push_back(end);
      const auto row = table_.begin() + static_cast<int64_t>(req) * stride_;
      step.tables.insert(step.tables.end(), row, row + stride_);
    }
    return step;
  }

  void run_chunk(const Device& device,
                 int32_t begin,
                 int32_t chunk,
                 bool is_latent,
                 std::vector<float>& result) const {
    const Step step = step_of(begin, chunk);
    const auto tokens = static_cast<int64_t>(step.tokens.size());
    const int32_t width = shape_.width();
    const int32_t c = shape_.latent_dim;
    const int64_t out_width = is_latent ? c : width;
    // Latent rows lie by head, usual ones by token.
    const int64_t q_token = is_latent ? width : shape_.num_heads * width;
    const int64_t q_head = is_latent ? tokens * width : width;
    const int64_t out_token = is_latent ? c : shape_.num_heads * width;
    const int64_t out_head = is_latent ? tokens * c : width;
    std::vector<float> q(static_cast<size_t>(tokens * shape_.num_heads * width));
    std::vector<float> out(static_cast<size_t>(tokens * shape_.num_heads * out_width), NAN);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t head = 0; head < shape_.num_heads; ++head) {
        const int64_t from =
            (int64_t{step.tokens[static_cast<size_t>(t)]} * shape_.num_heads + head) * width;
        std::copy_n(queries_.begin() + from, width, q.begin() + t * q_token + head * q_head);
      }
    }
    run_kernel(
        device, step, is_latent, {q.data(), q_token, q_head}, {out.data(), out_token, out_head});
    for (int64_t t = 0; t < tokens; ++t) {
      for (int32_t head = 0; head < shape_.num_heads; ++head) {
        const int64_t to =
            (int64_t{step.tokens[static_cast<size_t>(t)]} * shape_.num_heads + head) * c;
        std::copy_n(out.begin() + t * out_token + head * out_head, c, result.begin() + to);
      }
    }
  }

  void run_kernel(const Device& device,
                  const Step& step,
                  bool is_latent,
                  const HeadRows& q,
                  const HeadRows& out) const {
    const AttentionLimits limits{.num_tokens = step.starts.back(),
                                 .num_reqs = static_cast<int32_t>(step.lens.size()),
                                 .seq_len = *std::ranges::max_element(step.lens),
                                 .num_heads = shape_.num_heads,
                                 .num_kv_heads = 1,
                                 .head_dim = is_latent ? shape_.latent_dim : shape_.width(),
                                 .num_threads = device.num_threads()};
    const int64_t bytes = is_latent ? latent_workspace_bytes(limits, shape_.rope_dim)
                                    : attention_workspace_bytes(limits);
    std::vector<float> workspace(static_cast<size_t>(bytes) / sizeof(float) + 16, NAN);
    const std::span<std::byte> scratch =
        std::as_writable_bytes(std::span(workspace)).first(static_cast<size_t>(bytes));
    const auto plane = [](const std::vector<std::byte>& bytes) {
      return const_cast<std::byte*>(bytes.data());
    };
    const auto num_blocks = static_cast<int32_t>(table_.size());
    constexpr float kScale = 0.31F;
    if (is_latent) {
      return latent_attention(device.context(),
                              {.query = q,
                               .num_heads = shape_.num_heads,
                               .cache = {.latent = plane(latent_),
                                         .rope = plane(rope_),
                                         .dtype = shape_.dtype,
                                         .num_blocks = num_blocks,
                                         .block_size = shape_.block_size,
                                         .latent_dim = shape_.latent_dim,
                                         .rope_dim = shape_.rope_dim},
                               .query_start_loc = step.starts,
                               .seq_lens = step.lens,
                               .block_table = step.tables.data(),
                               .block_table_stride = stride_,
                               .scale = kScale,
                               .out = out,
                               .workspace = scratch});
    }
    attention(device.context(),
              {.q = q.data,
               .q_stride = q.stride,
               .num_heads = shape_.num_heads,
               .kv = {.k = plane(k_),
                      .v = plane(v_),
                      .dtype = shape_.dtype,
                      .num_blocks = num_blocks,
                      .block_size = shape_.block_size,
                      .num_kv_heads = 1,
                      .head_dim = shape_.width()},
               .query_start_loc = step.starts,
               .seq_lens = step.lens,
               .block_table = step.tables.data(),
               .block_table_stride = stride_,
               .scale = kScale,
               .out = out.data,
               .out_stride = out.stride,
               .workspace = scratch});
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> first_;
  int32_t num_tokens_ = 0;
  int32_t stride_ = 0;
  std::vector<int32_t> table_;
  std::vector<float> queries_, keys_;
  std::vector<std::byte> latent_, rope_, k_, v_;
};

void expect_usual_bits(const Shape& shape,
                       const std::vector<int32_t>& lengths,
                       const std::vector<int32_t>& chunks) {
  SCOPED_TRACE(shape.name());
  const Sequences sequences(shape, lengths);
  const auto usual = test::make_device("auto", 1);
  const std::vector<float> expected = sequences.run(*usual, 4096, false);
  for (const auto& device : test::devices({1, 3})) {
    for (const int32_t chunk : chunks) {
      const std::vector<float> found = sequences.run(*device.device, chunk, true);
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)), 0)
          << device.name << ", chunks of " << chunk;
    }
  }
}

TEST(LatentAttention, HasTheBitsOfUsualAttentionOnOneKvHead) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    expect_usual_bits({.num_heads = 3, .latent_dim = 64, .rope_dim = 8, .dtype = dtype},
                      {97, 40, 1},
                      {1, 7, 64, 4096});
  }
  expect_usual_bits({.num_heads = 20, .latent_dim = 96, .rope_dim = 32}, {70, 130}, {1, 48, 4096});
  expect_usual_bits(
      {.num_heads = 40, .latent_dim = 32, .rope_dim = 10, .block_size = 8}, {66, 5}, {1, 4096});
}

// Few rows over several partitions are divided among threads and merged.
TEST(LatentAttention, MergesPartitionsLikeUsualAttention) {
  expect_usual_bits({.num_heads = 5, .latent_dim = 32, .rope_dim = 16, .block_size = 64},
                    {1100, 30},
                    {300, 4096});
}

TEST(LatentAttention, SizesThatADeviceHasNotAreRefused) {
  const auto refused = check_latent_attention(DeviceType::kCuda, 544, 64);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("found latents of 544 + 64"), std::string::npos);
  EXPECT_FALSE(check_latent_attention(DeviceType::kCuda, 512, 66).has_value());
  EXPECT_TRUE(check_latent_attention(DeviceType::kCuda, 512, 64).has_value());
  EXPECT_FALSE(check_latent_attention(DeviceType::kCpu, 40, 64).has_value());
  EXPECT_TRUE(check_latent_attention(DeviceType::kCpu, 544, 66).has_value());
}

}  // namespace
}  // namespace sluice::kernels
