// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values of whole sequences, which attention sees in steps of any shape; what it
// must find, in fp64 and bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels::test {

struct Shape {
  int32_t num_heads = 3;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kBF16;
  int32_t block_size = 16;
  int32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  bool sees_behind = false;
  bool is_chunked = false;
  bool slopes = false;
  int32_t value_dim = 0;  // 0: head_dim
  bool place_bias = false;
  int32_t num_unseen = 0;  // with sees_behind, the last keys of longer sequences

  // The keys of a sequence that its tokens see.
  [[nodiscard]] int32_t num_seen(int32_t length) const {
    return length > num_unseen ? length - num_unseen : length;
  }

  [[nodiscard]] int32_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }

  [[nodiscard]] std::string name() const {
    return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " +
           std::to_string(head_dim) + " " + std::string(to_string(dtype)) + " blocks of " +
           std::to_string(block_size) + " window " + std::to_string(window) +
           (sees_behind ? ", keys behind but " + std::to_string(num_unseen) : "") +
           (is_chunked ? ", chunked" : "") +
           (slopes ? ", slopes" : "") + (place_bias ? ", a bias by place" : "") +
           " values of " + std::to_string(value_width());
  }
};

// One step of one request: its next `num_tokens` tokens.
struct Piece {
  int32_t req;
  int32_t num_tokens;
};

using Step = std::vector<Piece>;

// Queries, keys and values of whole sequences, and the cache they go through.
class Sequences {
 public:
  Sequences(const Shape& shape, std::vector<int32_t> lengths, uint64_t seed);

  [[nodiscard]] int32_t q_width() const { return shape_.num_heads * shape_.head_dim; }

  [[nodiscard]] int32_t k_width() const { return shape_.num_kv_heads * shape_.head_dim; }

  [[nodiscard]] int32_t v_width() const { return shape_.num_kv_heads * shape_.value_width(); }

  [[nodiscard]] int32_t out_width() const { return shape_.num_heads * shape_.value_width(); }

  struct Result {
    std::vector<float> out;  // [token of any request][out_width]
    std::vector<std::byte> k;
    std::vector<std::byte> v;

    [[nodiscard]] bool same_bits(const Result& other) const {
      return std::memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0 &&
             k == other.k && v == other.v;
    }
  };

  // The cache and the output start as NaN.
  Result run(const Device& device, const std::vector<Step>& steps, int32_t workspace_seq_len = 0);

  // Returns one row's output in fp64, from the values as cached or as written.
  [[nodiscard]] std::vector<double> oracle(int32_t req,
                                           int32_t position,
                                           int32_t head,
                                           bool from_cache = true) const;

  // Returns one row's output by the header's expression tree, one float operation at a time.
  [[nodiscard]] std::vector<float> tree(int32_t req, int32_t position, int32_t head) const;

  [[nodiscard]] const float* row_of(const Result& result, int32_t req, int32_t position) const {
    return result.out.data() +
           int64_t{first_[static_cast<size_t>(req)] + position} * int64_t{out_width()};
  }

 private:
  struct State {
    float m = std::numeric_limits<float>::lowest();
    float l = 0;
    std::vector<float> o;
  };

  // The tree's state of a head over one partition of keys, from `begin` on; nothing if it has none.
  [[nodiscard]] std::optional<State> partition_of(
      int32_t req, int32_t position, int32_t head, int32_t partition, int32_t begin) const;
  static void merge(const State& state, State& merged);

  [[nodiscard]] const float* query(int32_t req, int32_t position, int32_t head) const {
    return q_.data() + int64_t{first_[static_cast<size_t>(req)] + position} * q_width() +
           head * shape_.head_dim;
  }

  [[nodiscard]] int32_t first_key(int32_t position) const {
    if (shape_.window == 0) return 0;
    return shape_.is_chunked ? position - position % shape_.window
                             : std::max(0, position - shape_.window + 1);
  }

  [[nodiscard]] int32_t last_key(int32_t req, int32_t position) const {
    if (!shape_.sees_behind) return position;
    const int32_t last = shape_.num_seen(lengths_[static_cast<size_t>(req)]) - 1;
    return shape_.window > 0 ? std::min(last, position + shape_.window - 1) : last;
  }

  // The header's factors: codes, and the scale of each row of a head, 1 if there is none.
  struct Cached {
    std::vector<float> codes;
    std::vector<float> scales;
  };

  static float own_exp(float x);

  [[nodiscard]] float scale() const {
    return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  }

  [[nodiscard]] double rounded(float x) const;

  [[nodiscard]] Cached as_cached(const std::vector<float>& rows, int32_t width) const;

  // Returns the index of a row of one head in K and V.
  [[nodiscard]] size_t index(int32_t req, int32_t position, int32_t kv_head) const {
    return static_cast<size_t>(
        int64_t{first_[static_cast<size_t>(req)] + position} * shape_.num_kv_heads + kv_head);
  }

  // What a step passes to the kernels.
  struct Batch {
    std::vector<float> q;
    std::vector<float> k;
    std::vector<float> v;
    std::vector<int32_t> query_start_loc = {0};
    std::vector<int32_t> seq_lens;
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    std::vector<int32_t> tables;
  };

  Batch gather(const Step& step, std::vector<int32_t>& done) const;
  std::vector<float> attend(const Device& device,
                            const Batch& batch,
                            const KvLayerView& kv,
                            int32_t workspace_seq_len) const;
  void run_step(const Device& device,
                const Step& step,
                int32_t workspace_seq_len,
                std::vector<int32_t>& done,
                Result& result) const;

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> first_;
  int32_t num_tokens_ = 0;
  std::vector<float> q_, k_, v_, sinks_, slopes_;
  std::vector<float> place_bias_;  // [head][place], a row's own key in the middle
  int32_t place_reach_ = 0;        // keys on either side

  // The bias of a head and a key so many places after a row's own.
  [[nodiscard]] const float& place_bias_of(int32_t head, int32_t places) const {
    return place_bias_[static_cast<size_t>(head * (2 * place_reach_) + place_reach_ + places)];
  }

  Cached cached_k_, cached_v_;
  std::vector<int32_t> table_;
  int32_t table_stride_ = 0;
  int32_t num_blocks_ = 0;
};

// Returns steps with chunks of `chunk` of all requests that have tokens left.
std::vector<Step> together(const std::vector<int32_t>& lengths, int32_t chunk);
// Returns steps of one request after the other, each in chunks.
std::vector<Step> apart(const std::vector<int32_t>& lengths, int32_t chunk);
// Returns chunks of random sizes of random requests, decodes among them.
std::vector<Step> mixed(std::vector<int32_t> left, uint64_t seed);

}  // namespace sluice::kernels::test
