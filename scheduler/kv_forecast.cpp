// SPDX-License-Identifier: Apache-2.0
#include "scheduler/kv_forecast.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

namespace {

constexpr double kKept = 1 - 1.0 / 128;  // share of earlier answers' weight that each new one
                                         // leaves

}  // namespace

int AnswerLengths::bucket_of(int32_t num_tokens) {
  const auto n = static_cast<uint32_t>(std::max(num_tokens, 0));
  if (n < 4) return static_cast<int>(n);
  const int width = std::bit_width(n);
  const int quarter = static_cast<int>((n >> (width - 3)) & 3);
  return std::min(4 * (width - 2) + quarter, kNumBuckets - 1);
}

void AnswerLengths::observe(int32_t num_tokens) {
  const auto last = static_cast<size_t>(bucket_of(num_tokens));
  for (size_t i = kNumBuckets; i-- > 0;) {
    weights_[i] = kKept * weights_[i] + (i == last ? 1.0 : 0.0);
    tokens_[i] = kKept * tokens_[i] + (i == last ? static_cast<double>(num_tokens) : 0.0);
    weights_from_[i] = weights_from_[i + 1] + weights_[i];
    tokens_from_[i] = tokens_from_[i + 1] + tokens_[i];
  }
}

int32_t AnswerLengths::expected_more(int32_t num_generated) const {
  if (weights_from_[0] <= 0) return 0;
  const auto own = static_cast<size_t>(bucket_of(num_generated));
  const double generated = num_generated;
  double weight = weights_from_[own + 1];
  double tokens = tokens_from_[own + 1];
  // Answers of its own bucket count only if they were longer on average.
  if (tokens_[own] > generated * weights_[own]) {
    weight += weights_[own];
    tokens += tokens_[own];
  }
  constexpr double kLeastWeight = 1e-3;  // in answers; less counts as nothing
  if (weight < kLeastWeight) return num_generated / 8;
  return std::max(0, static_cast<int32_t>(tokens / weight - generated));
}

KvForecast::KvForecast(int32_t max_requests) { lives_.reserve(static_cast<size_t>(max_requests)); }

void KvForecast::add(int32_t num_tokens, int32_t num_more) {
  CHECK_LT(lives_.size(), lives_.capacity());
  sum_ += num_tokens + num_more;
  const Life added{num_tokens, num_more};
  // Few requests are added after sorting, many before.
  if (sorted_) {
    lives_.insert(std::ranges::lower_bound(lives_, added, ends_later), added);
  } else {
    lives_.push_back(added);
  }
}

void KvForecast::clear() {
  lives_.clear();
  sum_ = 0;
  sorted_ = false;
}

int64_t KvForecast::sum_with(int32_t num_tokens, int32_t num_more, int32_t block_size) const {
  const auto count = static_cast<int64_t>(lives_.size()) + 1;
  return ceil_div(sum_ + num_tokens + num_more + count * (block_size / 2), int64_t{block_size});
}

int64_t KvForecast::peak_with(int32_t num_tokens, int32_t num_more, int32_t block_size) {
  if (!sorted_) {
    std::ranges::sort(lives_, ends_later);
    sorted_ = true;
  }
  // The peak occurs when some request is about to end: the tokens of it and of all that end later,
  // plus half a block each, the average waste in last blocks.
  int64_t peak = 0;
  int64_t sum = 0;
  int64_t count = 0;
  const auto join = [&](int32_t tokens, int32_t more) {
    sum += tokens;
    ++count;
    peak = std::max(peak, sum + count * (more + block_size / 2));
  };
  bool joined = false;
  for (const Life& life : lives_) {
    if (!joined && num_more >= life.num_more) {
      join(num_tokens, num_more);
      joined = true;
    }
    join(life.num_tokens, life.num_more);
  }
  if (!joined) join(num_tokens, num_more);
  return ceil_div(peak, int64_t{block_size});
}

}  // namespace sluice
