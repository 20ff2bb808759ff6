// SPDX-License-Identifier: Apache-2.0
// The indexer of sparse latent attention: its choice against the definition, ties included, on
// every instruction set, with any threads and in any chunks; and attention on what it has chosen.
#include "kernels/latent_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/latent_attention.h"
#include "quant/format.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

constexpr int32_t kDim = 32;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kTopK = 24;

// Two sequences, of which the first is longer than three tiles.
const std::vector<int32_t> kLengths = {210, 40};
constexpr int32_t kTokens = 250;

std::vector<float> fold(std::vector<float> lanes) {
  for (size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes;
}

class Indexed {
 public:
  explicit Indexed(int32_t num_heads, bool has_ties) : num_heads_(num_heads) {
    test::Random random(9);
    q_ = random.normals(static_cast<size_t>(kTokens * num_heads * kDim));
    weights_ = random.normals(static_cast<size_t>(kTokens * num_heads));
    keys_ = random.normals(static_cast<size_t>(kTokens * kDim));
    // Few different keys: most scores have equals.
    for (int32_t t = 0; t < kTokens && has_ties; ++t) {
      std::copy_n(keys_.begin() + t % 5 * kDim, kDim, keys_.begin() + int64_t{t} * kDim);
    }
    for (float& key : keys_) key = bf16_to_float(float_to_bf16(key));
    stride_ = (kLengths.front() + kBlockSize - 1) / kBlockSize;
    const auto num_blocks = static_cast<int32_t>(kLengths.size()) * stride_;
    for (int32_t i = num_blocks - 1; i >= 0; --i) table_.push_back(i);
    cache_.resize(static_cast<size_t>(num_blocks * kBlockSize * kDim));
    for (size_t req = 0, token = 0; req < kLengths.size(); ++req) {
      for (int32_t p = 0; p < kLengths[req]; ++p, ++token) {
        const int32_t block =
            table_[req * static_cast<size_t>(stride_) + static_cast<size_t>(p / kBlockSize)];
        for (int32_t d = 0; d < kDim; ++d) {
          const float key = keys_[token * kDim + static_cast<size_t>(d)];
          cache_[static_cast<size_t>((block * kBlockSize + p % kBlockSize) * kDim + d)] =
              float_to_bf16(key);
        }
      }
    }
  }

  // The score of a key, by the definition; both are numbers of all requests' tokens.
  [[nodiscard]] float score(int32_t token, int32_t key) const {
    std::vector<float> lanes(16);
    for (int32_t head = 0; head < num_heads_; ++head) {
      float product = 0;
      for (int32_t d = 0; d < kDim; ++d) {
        product = std::fma(q_[static_cast<size_t>((token * num_heads_ + head) * kDim + d)],
                           keys_[static_cast<size_t>(key * kDim + d)],
                           product);
      }
      float& lane = lanes[static_cast<size_t>(head % 16)];
      lane = std::fma(
          weights_[static_cast<size_t>(token * num_heads_ + head)], std::max(0.0F, product), lane);
    }
    return fold(lanes).front();
  }

  [[nodiscard]] std::vector<bool> expected() const {
    std::vector<bool> chosen;
    for (size_t req = 0, first = 0; req < kLengths.size(); ++req) {
      for (int32_t p = 0; p < kLengths[req]; ++p) {
        std::vector<int32_t> order(static_cast<size_t>(p) + 1);
        std::iota(order.begin(), order.end(), 0);
        std::vector<float> scores;
        for (const int32_t j : order) {
          const auto begin = static_cast<int32_t>(first);
          scores.push_back(score(begin + p, begin + j));
        }
        std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
          return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
        });
        std::vector<bool> row(static_cast<size_t>(kLengths.front()));
        for (size_t i = 0; i < order.size() && i < kTopK; ++i) {
          row[static_cast<size_t>(order[i])] = true;
        }
        chosen.insert(chosen.end(), row.begin(), row.end());
      }
      first += static_cast<size_t>(kLengths[req]);
    }
    return chosen;
  }

  // Returns the kernel's choice, in chunks of all requests at once.
  [[nodiscard]] std::vector<bool> run(const Device& device, int32_t chunk) const {
    std::vector<bool> chosen(static_cast<size_t>(kTokens * kLengths.front()));
    for (int32_t begin = 0; begin < kLengths.front(); begin += chunk) {
      run_chunk(device, begin, chunk, chosen);
    }
    return chosen;
  }

 private:
  void run_chunk(const Device& device,
                 int32_t begin,
                 int32_t chunk,
                 std::vector<bool>& chosen) const {
    std::vector<int32_t> tokens;
    std::vector<int32_t> starts = {0};
    std::vector<int32_t> lens;
    std::vector<int32_t> tables;
    std::vector<float> q;
    std::vector<float> weights;
    for (size_t req = 0, first = 0; req < kLengths.size(); first += kLengths[req], ++req) {
      const int32_t end = std::min(begin + chunk, kLengths[req]);
      if (end <= begin) continue;
      for (int32_t p = begin; p < end; ++p) tokens.push_back(static_cast<int32_t>(first) + p);
      starts.push_back(static_cast<int32_t>(tokens.size()));
      lens.push_back(end);
      const auto row = table_.begin() + static_cast<int64_t>(req) * stride_;
      tables.insert(tables.end(), row, row + stride_);
    }
    for (const int32_t token : tokens) {
      const auto from = q_.begin() + int64_t{token} * num_heads_ * kDim;
      q.insert(q.end(), from, from + num_heads_ * kDim);
      const auto weight = weights_.begin() + int64_t{token} * num_heads_;
      weights.insert(weights.end(), weight, weight + num_heads_);
    }
    const int64_t stride = chosen_words(kLengths.front());
    std::vector<uint64_t> words(tokens.size() * static_cast<size_t>(stride), 0);
    const int64_t bytes = choose_keys_workspace_bytes({.seq_len = kLengths.front(),
                                                       .num_heads = num_heads_,
                                                       .dim = kDim,
                                                       .num_threads = device.num_threads()});
    std::vector<float> workspace(static_cast<size_t>(bytes) / sizeof(float) + 16, NAN);
    choose_keys(
        device.context(),
        {.q = q.data(),
         .q_stride = num_heads_ * kDim,
         .weights = weights.data(),
         .weights_stride = num_heads_,
         .num_heads = num_heads_,
         .cache = {.data = reinterpret_cast<std::byte*>(const_cast<uint16_t*>(cache_.data())),
                   .dtype = DType::kBF16,
                   .block_size = kBlockSize,
                   .dim = kDim},
         .query_start_loc = starts,
         .seq_lens = lens,
         .block_table = tables.data(),
         .block_table_stride = stride_,
         .top_k = kTopK,
         .out = {words.data(), stride},
         .workspace =
             std::as_writable_bytes(std::span(workspace)).first(static_cast<size_t>(bytes))});
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int32_t j = 0; j < kLengths.front(); ++j) {
        const uint64_t word = words[i * static_cast<size_t>(stride) + static_cast<size_t>(j / 64)];
        chosen[static_cast<size_t>(tokens[i] * kLengths.front() + j)] = (word >> j % 64 & 1) != 0;
      }
    }
  }

  int32_t num_heads_;
  int32_t stride_ = 0;
  std::vector<float> q_, weights_, keys_;
  std::vector<int32_t> table_;
  std::vector<uint16_t> cache_;
};

TEST(LatentIndex, ChoosesTheBestKeysAndOfEqualOnesTheEarlier) {
  for (const int32_t num_heads : {6, 40}) {
    for (const bool has_ties : {false, true}) {
      const Indexed indexed(num_heads, has_ties);
      const std::vector<bool> expected = indexed.expected();
      for (const auto& device : test::devices({1, 3})) {
        for (const int32_t chunk : {1, 50, 4096}) {
          EXPECT_EQ(indexed.run(*device.device, chunk), expected)
              << num_heads << (has_ties ? " heads, ties, " : " heads, ") << device.name
              << ", chunks of " << chunk;
        }
      }
    }
  }
}

constexpr int32_t kLatent = 32;
constexpr int32_t kRope = 16;

// The first `length` rows of a cache of floats, in whole blocks.
struct FloatCache {
  std::vector<float> latents, ropes;

  explicit FloatCache(int32_t length) {
    test::Random random(4);
    latents = random.normals(static_cast<size_t>(length * kLatent));
    ropes = random.normals(static_cast<size_t>(length * kRope));
    pad(length);
  }

  // The rows of some positions alone.
  FloatCache(const FloatCache& all, const std::vector<int32_t>& positions) {
    for (const int32_t p : positions) {
      const auto row = all.latents.begin() + int64_t{p} * kLatent;
      const auto rope = all.ropes.begin() + int64_t{p} * kRope;
      latents.insert(latents.end(), row, row + kLatent);
      ropes.insert(ropes.end(), rope, rope + kRope);
    }
    pad(static_cast<int32_t>(positions.size()));
  }

 private:
  void pad(int32_t length) {
    const auto slots = static_cast<size_t>((length + kBlockSize - 1) / kBlockSize * kBlockSize);
    latents.resize(slots * kLatent, NAN);
    ropes.resize(slots * kRope, NAN);
  }
};

// The last `tokens` of `length` cached ones, each with some keys chosen: [head][token][kLatent].
std::vector<float> attend(const Device& device,
                          const FloatCache& cache,
                          int32_t length,
                          const std::vector<uint64_t>& words,
                          int32_t tokens = 1,
                          int32_t most_chosen = 0) {
  constexpr int32_t kHeads = 37;
  std::vector<float> query =
      test::Random(6).normals(static_cast<size_t>(kHeads * tokens * (kLatent + kRope)));
  std::vector<int32_t> table(cache.latents.size() / (kBlockSize * kLatent));
  std::iota(table.begin(), table.end(), 0);
  const std::vector<int32_t> starts = {0, tokens};
  const std::vector<int32_t> lens = {length};
  const int64_t bytes = latent_workspace_bytes({.num_tokens = tokens,
                                                .num_reqs = 1,
                                                .seq_len = most_chosen > 0 ? most_chosen : length,
                                                .num_heads = kHeads,
                                                .num_kv_heads = 1,
                                                .head_dim = kLatent,
                                                .num_threads = device.num_threads()},
                                               kRope);
  std::vector<float> workspace(static_cast<size_t>(bytes) / sizeof(float) + 16, NAN);
  std::vector<float> out(static_cast<size_t>(kHeads * tokens * kLatent), NAN);
  const auto plane = [](const std::vector<float>& rows) {
    return reinterpret_cast<std::byte*>(const_cast<float*>(rows.data()));
  };
  latent_attention(
      device.context(),
      {.query = {query.data(), kLatent + kRope, int64_t{tokens} * (kLatent + kRope)},
       .num_heads = kHeads,
       .cache = {.latent = plane(cache.latents),
                 .rope = plane(cache.ropes),
                 .dtype = DType::kF32,
                 .num_blocks = static_cast<int32_t>(table.size()),
                 .block_size = kBlockSize,
                 .latent_dim = kLatent,
                 .rope_dim = kRope},
       .query_start_loc = starts,
       .seq_lens = lens,
       .block_table = table.data(),
       .block_table_stride = static_cast<int32_t>(table.size()),
       .scale = 0.1F,
       .chosen = {words.empty() ? nullptr : const_cast<uint64_t*>(words.data()),
                  chosen_words(length)},
       .most_chosen = most_chosen,
       .out = {out.data(), kLatent, int64_t{tokens} * kLatent},
       .workspace =
           std::as_writable_bytes(std::span(workspace)).first(static_cast<size_t>(bytes))});
  return out;
}

std::vector<uint64_t> words_of(int32_t length, const std::vector<int32_t>& positions) {
  std::vector<uint64_t> words(static_cast<size_t>(chosen_words(length)), 0);
  for (const int32_t p : positions) words[static_cast<size_t>(p / 64)] |= uint64_t{1} << p % 64;
  return words;
}

TEST(LatentIndex, SizesThatADeviceHasNotAreRefused) {
  const auto refused = check_indexer(DeviceType::kCuda, 65, 128);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("found an indexer of 65 heads of 128"), std::string::npos);
  EXPECT_FALSE(check_indexer(DeviceType::kCuda, 64, 160).has_value());
  EXPECT_TRUE(check_indexer(DeviceType::kCuda, 64, 128).has_value());
  EXPECT_TRUE(check_indexer(DeviceType::kCpu, 65, 160).has_value());
}

TEST(LatentIndex, AChoiceOfAllKeysIsDenseAttention) {
  for (const int32_t length : {1, 64, 200, 1100}) {
    std::vector<int32_t> all(static_cast<size_t>(length));
    std::iota(all.begin(), all.end(), 0);
    const FloatCache cache(length);
    for (const auto& device : test::devices({1, 3})) {
      EXPECT_EQ(attend(*device.device, cache, length, words_of(length, all)),
                attend(*device.device, cache, length, {}))
          << device.name << " " << length;
    }
  }
}

// Wherever the chosen keys lie, they are attended to as if nothing else were cached.
TEST(LatentIndex, AChoiceIsDenseAttentionToTheChosenKeys) {
  constexpr int32_t kLength = 3000;
  const FloatCache cache(kLength);
  for (const int32_t kept : {1, 17, 64, 600}) {
    std::vector<int32_t> positions(kLength);
    std::iota(positions.begin(), positions.end(), 0);
    std::ranges::shuffle(positions, std::minstd_rand(kept));
    positions.resize(static_cast<size_t>(kept));
    std::ranges::sort(positions);
    const FloatCache alone(cache, positions);
    for (const auto& device : test::devices({1, 3})) {
      const std::vector<float> want = attend(*device.device, alone, kept, {});
      const std::vector<uint64_t> words = words_of(kLength, positions);
      EXPECT_EQ(attend(*device.device, cache, kLength, words), want) << device.name << " " << kept;
      EXPECT_EQ(attend(*device.device, cache, kLength, words, 1, kept), want)
          << device.name << " " << kept << ", bound";
    }
  }
}

// Tokens of one call have choices of their own.
TEST(LatentIndex, TokensOfAChunkChooseForThemselves) {
  constexpr int32_t kLength = 700;
  const FloatCache cache(kLength);
  const std::vector<int32_t> keys = {697, 0, 699};
  std::vector<uint64_t> words;
  for (const int32_t key : keys) {
    const std::vector<uint64_t> one = words_of(kLength, {key});
    words.insert(words.end(), one.begin(), one.end());
  }
  for (const auto& device : test::devices({1, 3})) {
    const std::vector<float> out = attend(*device.device, cache, kLength, words, 3);
    for (size_t i = 0; i < out.size(); ++i) {
      // A single key gives its latent.
      const auto key = static_cast<size_t>(keys[i / kLatent % 3]);
      ASSERT_EQ(out[i], cache.latents[key * kLatent + i % kLatent])
          << device.name << " key " << key << " at " << i;
    }
  }
}

}  // namespace
}  // namespace sluice::kernels
