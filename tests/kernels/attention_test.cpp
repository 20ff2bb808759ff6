// SPDX-License-Identifier: Apache-2.0
// Attention against a plain fp64 softmax, and its bits across instruction sets, threads, chunkings
// and batch compositions.
#include "kernels/attention.h"
#include "kernels/row_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cpu/isa/simd.h"
#include "kernels/rope.h"
#include "quant/format.h"
#include "quant/kv_code.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

using test::Random;

struct Shape {
  int32_t num_heads = 3;
  int32_t num_kv_heads = 1;
  int32_t head_dim = 64;
  DType dtype = DType::kBF16;
  int32_t block_size = 16;
  int32_t window = 0;
  float soft_cap = 0;
  bool sinks = false;

  [[nodiscard]] std::string name() const {
    return std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) + " heads of " +
           std::to_string(head_dim) + " " + std::string(to_string(dtype)) + " blocks of " +
           std::to_string(block_size) + " window " + std::to_string(window);
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
  Sequences(const Shape& shape, std::vector<int32_t> lengths, uint64_t seed)
      : shape_(shape), lengths_(std::move(lengths)) {
    Random random(seed);
    for (const int32_t length : lengths_) {
      first_.push_back(num_tokens_);
      num_tokens_ += length;
    }
    const auto tokens = static_cast<size_t>(num_tokens_);
    q_ = random.normals(tokens * static_cast<size_t>(q_width()), 1.5F);
    k_ = random.normals(tokens * static_cast<size_t>(kv_width()), 1.5F);
    v_ = random.normals(tokens * static_cast<size_t>(kv_width()));
    sinks_ = random.normals(static_cast<size_t>(shape.num_heads), 2);
    cached_k_ = as_cached(k_);
    cached_v_ = as_cached(v_);
    // Blocks are in random order, so that nothing depends on neighbours.
    const int32_t longest = *std::max_element(lengths_.begin(), lengths_.end());
    table_stride_ = static_cast<int32_t>(ceil_div(longest, shape.block_size));
    num_blocks_ = table_stride_ * static_cast<int32_t>(lengths_.size());
    table_.resize(static_cast<size_t>(num_blocks_));
    std::iota(table_.begin(), table_.end(), 0);
    for (size_t i = table_.size(); i > 1; --i) {
      std::swap(table_[i - 1], table_[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
    }
  }

  [[nodiscard]] int32_t q_width() const { return shape_.num_heads * shape_.head_dim; }

  [[nodiscard]] int32_t kv_width() const { return shape_.num_kv_heads * shape_.head_dim; }

  struct Result {
    std::vector<float> out;  // [token of any request][q_width]
    std::vector<std::byte> k;
    std::vector<std::byte> v;

    [[nodiscard]] bool same_bits(const Result& other) const {
      return std::memcmp(out.data(), other.out.data(), out.size() * sizeof(float)) == 0 &&
             k == other.k && v == other.v;
    }
  };

  // The cache and the output start as NaN.
  Result run(const Device& device, const std::vector<Step>& steps, int32_t workspace_seq_len = 0) {
    Result result;
    const size_t cache_bytes =
        static_cast<size_t>(num_blocks_) * static_cast<size_t>(shape_.num_kv_heads) *
        static_cast<size_t>(kv_head_bytes(shape_.dtype, shape_.head_dim, shape_.block_size));
    result.k.assign(cache_bytes, std::byte{0xFF});
    result.v.assign(cache_bytes, std::byte{0xFF});
    result.out.assign(static_cast<size_t>(num_tokens_) * static_cast<size_t>(q_width()),
                      std::nanf(""));
    std::vector<int32_t> done(lengths_.size(), 0);
    for (const Step& step : steps) run_step(device, step, workspace_seq_len, done, result);
    EXPECT_EQ(done, lengths_);
    return result;
  }

  // Returns one row's output in fp64, from the values as cached or as written.
  [[nodiscard]] std::vector<double> oracle(int32_t req,
                                           int32_t position,
                                           int32_t head,
                                           bool from_cache = true) const {
    const auto element = [&](const std::vector<float>& rows,
                             const Cached& cached,
                             int32_t j,
                             int32_t kv_head,
                             int32_t d) {
      const size_t at = index(req, j, kv_head);
      const auto i = at * static_cast<size_t>(shape_.head_dim) + static_cast<size_t>(d);
      if (!from_cache) return static_cast<double>(rows[i]);
      return static_cast<double>(cached.codes[i]) * static_cast<double>(cached.scales[at]);
    };
    const int32_t kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    const float* q = q_.data() + int64_t{first_[static_cast<size_t>(req)] + position} * q_width() +
                     head * shape_.head_dim;
    const int32_t begin = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    std::vector<double> scores;
    double top = -std::numeric_limits<double>::infinity();
    for (int32_t j = begin; j <= position; ++j) {
      double score = 0;
      for (int32_t d = 0; d < shape_.head_dim; ++d) {
        score += double{q[d]} * element(k_, cached_k_, j, kv_head, d);
      }
      score *= static_cast<double>(scale());
      if (shape_.soft_cap != 0) {
        const auto cap = static_cast<double>(shape_.soft_cap);
        score = cap * std::tanh(score / cap);
      }
      scores.push_back(score);
      top = std::max(top, score);
    }
    const auto sink = static_cast<double>(sinks_[static_cast<size_t>(head)]);
    if (shape_.sinks) top = std::max(top, sink);
    double total = shape_.sinks ? std::exp(sink - top) : 0;
    std::vector<double> out(static_cast<size_t>(shape_.head_dim), 0);
    for (int32_t j = begin; j <= position; ++j) {
      const double p = std::exp(scores[static_cast<size_t>(j - begin)] - top);
      total += p;
      for (size_t d = 0; d < out.size(); ++d) {
        out[d] += p * element(v_, cached_v_, j, kv_head, static_cast<int32_t>(d));
      }
    }
    for (double& value : out) value /= total;
    return out;
  }

  // Returns one row's output by the header's expression tree, one float operation at a time.
  [[nodiscard]] std::vector<float> tree(int32_t req, int32_t position, int32_t head) const {
    const int32_t kv_head = head / (shape_.num_heads / shape_.num_kv_heads);
    const auto dim = static_cast<size_t>(shape_.head_dim);
    const float* q = q_.data() + int64_t{first_[static_cast<size_t>(req)] + position} * q_width() +
                     head * shape_.head_dim;
    const int32_t begin = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    State merged;
    bool started = false;
    for (int32_t partition = 0; partition <= position; partition += kAttentionPartition) {
      State state;
      state.o.assign(dim, 0.0F);
      bool any = false;
      for (int32_t tile = partition; tile < partition + kAttentionPartition;
           tile += kAttentionTile) {
        const int32_t from = std::max(tile, begin);
        const int32_t to = std::min(tile + kAttentionTile, position + 1);
        if (from >= to) continue;
        any = true;
        std::vector<float> s(kAttentionTile);
        float m = state.m;
        for (int32_t j = from; j < to; ++j) {
          const size_t at = index(req, j, kv_head);
          float acc = 0;
          for (size_t d = 0; d < dim; ++d) {
            acc = std::fmaf(q[d], cached_k_.codes[at * dim + d], acc);
          }
          s[static_cast<size_t>(j - tile)] = acc * cached_k_.scales[at] * scale();
          m = std::max(m, s[static_cast<size_t>(j - tile)]);
        }
        float lanes[16] = {};
        const float c = own_exp(state.m - m);
        for (float& o : state.o) o *= c;
        for (int32_t j = from; j < to; ++j) {
          const float p = own_exp(s[static_cast<size_t>(j - tile)] - m);
          lanes[j % 16] += p;
          const size_t at = index(req, j, kv_head);
          const float weight = p * cached_v_.scales[at];
          for (size_t d = 0; d < dim; ++d) {
            state.o[d] = std::fmaf(weight, cached_v_.codes[at * dim + d], state.o[d]);
          }
        }
        for (int half = 8; half > 0; half /= 2) {
          for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
        }
        state.l = std::fmaf(state.l, c, lanes[0]);
        state.m = m;
      }
      if (!any) continue;
      if (!started) {
        merged = state;
        started = true;
        continue;
      }
      const float m = std::max(merged.m, state.m);
      const float a = own_exp(merged.m - m);
      const float b = own_exp(state.m - m);
      merged.m = m;
      merged.l = std::fmaf(state.l, b, merged.l * a);
      for (size_t d = 0; d < dim; ++d) merged.o[d] = std::fmaf(state.o[d], b, merged.o[d] * a);
    }
    if (shape_.sinks) {
      const float sink = sinks_[static_cast<size_t>(head)];
      const float m = std::max(merged.m, sink);
      const float a = own_exp(merged.m - m);
      merged.l = merged.l * a + own_exp(sink - m);
      for (float& o : merged.o) o *= a;
    }
    for (float& o : merged.o) o /= merged.l;
    return merged.o;
  }

  [[nodiscard]] const float* row_of(const Result& result, int32_t req, int32_t position) const {
    return result.out.data() +
           int64_t{first_[static_cast<size_t>(req)] + position} * int64_t{q_width()};
  }

 private:
  struct State {
    float m = std::numeric_limits<float>::lowest();
    float l = 0;
    std::vector<float> o;
  };

  // The header's factors: codes, and the scale of each row of a head, 1 if there is none.
  struct Cached {
    std::vector<float> codes;
    std::vector<float> scales;
  };

  static float own_exp(float x) {
    float in[16] = {};
    float out[16];
    in[0] = x;
    cpu::simd_table(Isa::kScalar).map(cpu::MathFunction::kExp, in, 16, out);
    return out[0];
  }

  [[nodiscard]] float scale() const {
    return 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  }

  [[nodiscard]] double rounded(float x) const {
    switch (shape_.dtype) {
      case DType::kF16:
        return static_cast<double>(half_to_float(float_to_half(x)));
      case DType::kBF16:
        return static_cast<double>(bf16_to_float(float_to_bf16(x)));
      default:
        return static_cast<double>(x);
    }
  }

  [[nodiscard]] Cached as_cached(const std::vector<float>& rows) const {
    const auto dim = static_cast<size_t>(shape_.head_dim);
    Cached cached{.codes = rows, .scales = std::vector<float>(rows.size() / dim, 1.0F)};
    if (!has_kv_scales(shape_.dtype)) {
      for (float& x : cached.codes) x = static_cast<float>(rounded(x));
      return cached;
    }
    const float unit = shape_.dtype == DType::kF8E4M3 ? 256.0F : 1.0F;
    std::vector<uint8_t> codes(dim);
    for (size_t i = 0; i < cached.scales.size(); ++i) {
      cached.scales[i] =
          unit * encode_kv_row(shape_.dtype, std::span(rows).subspan(i * dim, dim), codes.data());
      for (size_t d = 0; d < dim; ++d) {
        cached.codes[i * dim + d] = kv_code_value(shape_.dtype, codes[d]) / unit;
      }
    }
    return cached;
  }

  // Returns the index of a row of one head in K and V.
  [[nodiscard]] size_t index(int32_t req, int32_t position, int32_t kv_head) const {
    return static_cast<size_t>(
        int64_t{first_[static_cast<size_t>(req)] + position} * shape_.num_kv_heads + kv_head);
  }

  void run_step(const Device& device,
                const Step& step,
                int32_t workspace_seq_len,
                std::vector<int32_t>& done,
                Result& result) {
    std::vector<float> q;
    std::vector<float> k;
    std::vector<float> v;
    std::vector<int32_t> query_start_loc = {0};
    std::vector<int32_t> seq_lens;
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    std::vector<int32_t> tables;
    for (const Piece& piece : step) {
      const auto req = static_cast<size_t>(piece.req);
      const int32_t* table = table_.data() + piece.req * table_stride_;
      for (int32_t i = 0; i < piece.num_tokens; ++i) {
        const int32_t position = done[req] + i;
        const int64_t token = first_[req] + position;
        q.insert(q.end(), q_.begin() + token * q_width(), q_.begin() + (token + 1) * q_width());
        k.insert(k.end(), k_.begin() + token * kv_width(), k_.begin() + (token + 1) * kv_width());
        v.insert(v.end(), v_.begin() + token * kv_width(), v_.begin() + (token + 1) * kv_width());
        positions.push_back(position);
        slots.push_back(int64_t{table[position / shape_.block_size]} * shape_.block_size +
                        position % shape_.block_size);
      }
      done[req] += piece.num_tokens;
      query_start_loc.push_back(static_cast<int32_t>(positions.size()));
      seq_lens.push_back(done[req]);
      // Entries past the sequence and wholly before the window must not be read.
      const int32_t oldest =
          shape_.window > 0 ? std::max(0, done[req] - piece.num_tokens - shape_.window + 1) : 0;
      for (int32_t b = 0; b < table_stride_; ++b) {
        const bool used = b * shape_.block_size < done[req] && (b + 1) * shape_.block_size > oldest;
        tables.push_back(used ? table[b] : -1000000);
      }
    }
    const KvLayerView kv = {.k = result.k.data(),
                            .v = result.v.data(),
                            .dtype = shape_.dtype,
                            .num_blocks = num_blocks_,
                            .block_size = shape_.block_size,
                            .num_kv_heads = shape_.num_kv_heads,
                            .head_dim = shape_.head_dim};
    rope_write_kv(device.context(),
                  {.q = q.data(),
                   .q_stride = q_width(),
                   .k = k.data(),
                   .k_stride = kv_width(),
                   .v = v.data(),
                   .v_stride = kv_width(),
                   .num_heads = shape_.num_heads,
                   .table = nullptr,
                   .positions = positions,
                   .slot_mapping = slots,
                   .kv = kv});
    const int32_t longest = *std::max_element(seq_lens.begin(), seq_lens.end());
    const int64_t bytes =
        attention_workspace_bytes({.num_tokens = query_start_loc.back(),
                                   .num_reqs = static_cast<int32_t>(seq_lens.size()),
                                   .seq_len = workspace_seq_len > 0 ? workspace_seq_len : longest,
                                   .num_heads = shape_.num_heads,
                                   .num_kv_heads = shape_.num_kv_heads,
                                   .head_dim = shape_.head_dim,
                                   .num_threads = device.num_threads()});
    std::vector<float> workspace(static_cast<size_t>(bytes) / sizeof(float), std::nanf(""));
    std::vector<float> out(q.size(), std::nanf(""));
    // A following step sees each token once, and whole.
    std::vector<float> followed(q.size(), 0);
    RowSteps then;
    then.add(AddRowsArgs{.x = followed.data(),
                         .x_stride = q_width(),
                         .y = out.data(),
                         .y_stride = q_width(),
                         .num_rows = query_start_loc.back(),
                         .n = static_cast<int32_t>(q_width())});
    attention(device.context(),
              {.q = q.data(),
               .q_stride = q_width(),
               .num_heads = shape_.num_heads,
               .kv = kv,
               .query_start_loc = query_start_loc,
               .seq_lens = seq_lens,
               .block_table = tables.data(),
               .block_table_stride = table_stride_,
               .scale = scale(),
               .window = shape_.window,
               .soft_cap = shape_.soft_cap,
               .sinks = shape_.sinks ? sinks_.data() : nullptr,
               .out = out.data(),
               .out_stride = q_width(),
               .workspace = std::as_writable_bytes(std::span(workspace)),
               .then = &then});
    ASSERT_EQ(followed, out) << device.name();
    for (size_t i = 0; i < step.size(); ++i) {
      const auto req = static_cast<size_t>(step[i].req);
      const int64_t token = first_[req] + done[req] - step[i].num_tokens;
      std::copy(out.begin() + int64_t{query_start_loc[i]} * q_width(),
                out.begin() + int64_t{query_start_loc[i + 1]} * q_width(),
                result.out.begin() + token * q_width());
    }
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> first_;
  int32_t num_tokens_ = 0;
  std::vector<float> q_, k_, v_, sinks_;
  Cached cached_k_, cached_v_;
  std::vector<int32_t> table_;
  int32_t table_stride_ = 0;
  int32_t num_blocks_ = 0;
};

// Returns steps with chunks of `chunk` of all requests that have tokens left.
std::vector<Step> together(const std::vector<int32_t>& lengths, int32_t chunk) {
  std::vector<Step> steps;
  for (int32_t at = 0;; at += chunk) {
    Step step;
    for (size_t req = 0; req < lengths.size(); ++req) {
      const int32_t left = lengths[req] - at;
      if (left > 0) step.push_back({static_cast<int32_t>(req), std::min(chunk, left)});
    }
    if (step.empty()) return steps;
    steps.push_back(step);
  }
}

// Returns steps of one request after the other, each in chunks.
std::vector<Step> apart(const std::vector<int32_t>& lengths, int32_t chunk) {
  std::vector<Step> steps;
  for (size_t req = 0; req < lengths.size(); ++req) {
    for (int32_t left = lengths[req]; left > 0; left -= chunk) {
      steps.push_back({{static_cast<int32_t>(req), std::min(chunk, left)}});
    }
  }
  return steps;
}

// Returns chunks of random sizes of random requests, decodes among them.
std::vector<Step> mixed(std::vector<int32_t> left, uint64_t seed) {
  Random random(seed);
  const int32_t sizes[] = {1, 1, 2, 7, 16, 64, 100};
  std::vector<Step> steps;
  while (std::any_of(left.begin(), left.end(), [](int32_t n) { return n > 0; })) {
    Step step;
    for (size_t req = left.size(); req-- > 0;) {
      if (left[req] == 0 || random.below(4) == 0) continue;
      const int32_t tokens = std::min(left[req], sizes[random.below(7)]);
      step.push_back({static_cast<int32_t>(req), tokens});
      left[req] -= tokens;
    }
    if (!step.empty()) steps.push_back(step);
  }
  return steps;
}

void expect_oracle(const Shape& shape,
                   const std::vector<int32_t>& lengths,
                   double bound,
                   bool from_cache = true) {
  SCOPED_TRACE(shape.name());
  Sequences sequences(shape, lengths, 11);
  const auto device = test::make_device("auto", 2);
  const Sequences::Result result = sequences.run(*device, together(lengths, 2000));
  for (size_t req = 0; req < lengths.size(); ++req) {
    for (const int32_t back : {1, 2, 17, 65, 200}) {
      const int32_t position = lengths[req] - back;
      if (position < 0) continue;
      const float* got = sequences.row_of(result, static_cast<int32_t>(req), position);
      for (int32_t head = 0; head < shape.num_heads; ++head) {
        const std::vector<double> wanted =
            sequences.oracle(static_cast<int32_t>(req), position, head, from_cache);
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(static_cast<double>(got[head * shape.head_dim + d]),
                      wanted[static_cast<size_t>(d)],
                      bound)
              << "length " << lengths[req] << " position " << position << " head " << head
              << " element " << d;
        }
      }
    }
  }
}

// Values are of order 1: fp32 accumulation over at most 1,500 keys stays below 1e-5.
constexpr double kBound = 1e-5;

TEST(Attention, MatchesAnFp64SoftmaxAtEveryBorder) {
  expect_oracle(
      {}, {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1500}, kBound);
}

TEST(Attention, MatchesAnFp64SoftmaxForEveryShape) {
  const std::vector<int32_t> lengths = {1, 33, 130, 600};
  expect_oracle({.num_heads = 2, .num_kv_heads = 2, .head_dim = 32}, lengths, kBound);
  expect_oracle({.num_heads = 9, .num_kv_heads = 3, .head_dim = 64}, lengths, kBound);
  expect_oracle({.num_heads = 8, .num_kv_heads = 2, .head_dim = 80}, lengths, kBound);
  expect_oracle({.num_heads = 8, .num_kv_heads = 1, .head_dim = 128}, lengths, kBound);
  expect_oracle({.num_heads = 40, .num_kv_heads = 1, .head_dim = 16}, lengths, kBound);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kF8E4M3}) {
    expect_oracle({.dtype = dtype}, lengths, kBound);
  }
  for (const DType dtype : {DType::kI8, DType::kF8E4M3}) {
    for (const int32_t block_size : {1, 8, 32, 64}) {
      expect_oracle({.head_dim = 20, .dtype = dtype, .block_size = block_size}, lengths, kBound);
    }
  }
  for (const int32_t head_dim : {1, 8, 20, 24, 40, 72, 96, 100, 120}) {
    expect_oracle({.head_dim = head_dim}, lengths, kBound);
    expect_oracle({.num_heads = 6, .num_kv_heads = 2, .head_dim = head_dim, .block_size = 8},
                  {1, 70},
                  kBound);
  }
  for (const int32_t block_size : {1, 4, 8, 32, 64}) {
    expect_oracle({.block_size = block_size}, lengths, kBound);
  }
}

TEST(Attention, HonoursWindowSoftCapAndSinks) {
  const std::vector<int32_t> lengths = {1, 40, 130, 700, 1100};
  for (const int32_t window : {1, 16, 50, 64, 512, 600}) {
    expect_oracle({.window = window}, lengths, kBound);
  }
  expect_oracle({.soft_cap = 5}, lengths, kBound);
  expect_oracle({.sinks = true}, lengths, kBound);
  expect_oracle({.block_size = 8, .window = 70, .soft_cap = 20, .sinks = true}, lengths, kBound);
}

// Scores of normal K and Q have a deviation of 2, values one of 1. Half a step of int8 moves an
// output by some hundredths, half a step of e4m3's 3 bits of mantissa by tenths at most.
TEST(Attention, QuantizedCachesStayNearWhatWasWritten) {
  expect_oracle({.dtype = DType::kI8}, {1, 130, 600}, 0.1, /*from_cache=*/false);
  expect_oracle({.dtype = DType::kF8E4M3}, {1, 130, 600}, 0.5, /*from_cache=*/false);
}

TEST(Attention, EveryBitIsThatOfTheTreeTheHeaderStates) {
  const std::vector<int32_t> lengths = {1, 70, 1100};
  for (const Shape& shape : {Shape{},
                             Shape{.head_dim = 80, .dtype = DType::kF32, .window = 600},
                             Shape{.head_dim = 20, .dtype = DType::kBF16},
                             Shape{.head_dim = 100, .dtype = DType::kF16, .window = 90},
                             Shape{.dtype = DType::kF16, .window = 40, .sinks = true},
                             Shape{.dtype = DType::kI8},
                             Shape{.head_dim = 20, .dtype = DType::kI8, .block_size = 8},
                             Shape{.head_dim = 80, .dtype = DType::kF8E4M3, .window = 600},
                             Shape{.dtype = DType::kF8E4M3, .block_size = 64, .sinks = true}}) {
    SCOPED_TRACE(shape.name());
    Sequences sequences(shape, lengths, 14);
    const auto device = test::make_device("auto", 2);
    const Sequences::Result result = sequences.run(*device, together(lengths, 500));
    for (int32_t req = 0; req < 3; ++req) {
      for (const int32_t position : {0, 15, 16, 63, 64, 69, 511, 512, 575, 1023, 1024, 1099}) {
        if (position >= lengths[static_cast<size_t>(req)]) continue;
        for (int32_t head = 0; head < shape.num_heads; ++head) {
          const std::vector<float> wanted = sequences.tree(req, position, head);
          const float* got = sequences.row_of(result, req, position) + head * shape.head_dim;
          EXPECT_EQ(std::memcmp(got, wanted.data(), wanted.size() * sizeof(float)), 0)
              << "request " << req << " position " << position << " head " << head;
        }
      }
    }
  }
}

// Runs the sequences in one prefill, in chunks, as decodes and mixed, on every device.
void expect_same_bits(const Shape& shape, const std::vector<int32_t>& lengths) {
  SCOPED_TRACE(shape.name());
  Sequences sequences(shape, lengths, 12);
  const auto reference_device = test::make_device("auto", 1);
  const Sequences::Result reference = sequences.run(*reference_device, apart(lengths, 4096));
  for (const auto& device : test::devices({1, 2, 3})) {
    SCOPED_TRACE(device.name);
    for (const int32_t chunk : {1, 7, 16, 64, 100, 4096}) {
      EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, together(lengths, chunk))))
          << "chunks of " << chunk;
    }
    EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, apart(lengths, 48))));
    EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, mixed(lengths, 5))));
  }
}

TEST(Attention, BitsDoNotDependOnInstructionSetThreadsChunkingOrBatch) {
  expect_same_bits({}, {150, 65, 1});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 1, .head_dim = 80, .dtype = DType::kF16},
                   {97, 40});
  expect_same_bits({.num_heads = 8, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF32},
                   {70, 130});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .head_dim = 20}, {97, 40});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .dtype = DType::kI8}, {97, 40});
  expect_same_bits({.num_heads = 4, .num_kv_heads = 2, .head_dim = 20, .dtype = DType::kF8E4M3},
                   {97, 40});
  expect_same_bits({.num_heads = 2, .dtype = DType::kF8E4M3, .block_size = 8, .window = 50},
                   {97, 40});
  expect_same_bits({.num_heads = 2, .num_kv_heads = 1, .head_dim = 100, .block_size = 8}, {70, 9});
  expect_same_bits({.num_heads = 2,
                    .num_kv_heads = 2,
                    .block_size = 4,
                    .window = 50,
                    .soft_cap = 10,
                    .sinks = true},
                   {140, 20});
}

// Few rows over several partitions are split over threads.
TEST(Attention, LongContextsHaveTheSameBitsSplitOverThreadsOrNot) {
  for (const Shape& shape : {Shape{},
                             Shape{.window = 700, .sinks = true},
                             Shape{.head_dim = 24},
                             Shape{.num_heads = 1, .head_dim = 16, .dtype = DType::kI8},
                             Shape{.num_heads = 1, .head_dim = 16, .dtype = DType::kF8E4M3}}) {
    SCOPED_TRACE(shape.name());
    const std::vector<int32_t> lengths = {1300, 530};
    Sequences sequences(shape, lengths, 12);
    const auto reference_device = test::make_device("auto", 1);
    const Sequences::Result reference = sequences.run(*reference_device, apart(lengths, 4096));
    // A long prefill, then decodes and small chunks across the borders of partitions.
    std::vector<Step> steps = {{{0, 500}, {1, 490}}};
    for (int i = 0; i < 40; ++i) steps.push_back({{1, 1}, {0, 1}});
    steps.push_back({{0, 470}});
    for (int i = 0; i < 8; ++i) steps.push_back({{0, 4}});
    for (int i = 0; i < 10; ++i) steps.push_back({{0, 1}});
    steps.push_back({{0, 248}});
    for (const auto& device : test::devices({1, 2, 3})) {
      EXPECT_TRUE(reference.same_bits(sequences.run(*device.device, steps))) << device.name;
    }
  }
}

TEST(Attention, AWorkspaceTooSmallToSplitChangesNothing) {
  const std::vector<int32_t> lengths = {1200};
  Sequences sequences({}, lengths, 13);
  const auto device = test::make_device("auto", 3);
  const std::vector<Step> steps = {{{0, 1199}}, {{0, 1}}};
  EXPECT_TRUE(sequences.run(*device, steps).same_bits(sequences.run(*device, steps, 1)));
}

}  // namespace
}  // namespace sluice::kernels
