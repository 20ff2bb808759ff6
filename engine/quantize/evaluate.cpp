// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/evaluate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/quantize/text_windows.h"
#include "engine/run/offline_model.h"

namespace sluice {
namespace {

// Returns the logarithm of the sum of exponentials.
double log_sum(const float* logits, int64_t count, float largest) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(double{logits[i]} - double{largest});
  return double{largest} + std::log(sum);
}

class Sums {
 public:
  explicit Sums(int64_t vocab) : vocab_(vocab) {}

  // Adds one position; `next`: the following token, kInvalidToken at the window's end.
  void add(const float* reference, const float* other, TokenId next) {
    const float* top = std::max_element(reference, reference + vocab_);
    const float* other_top = std::max_element(other, other + vocab_);
    const double norm = log_sum(reference, vocab_, *top);
    const double other_norm = log_sum(other, vocab_, *other_top);
    double divergence = 0;
    for (int64_t i = 0; i < vocab_; ++i) {
      const double log_p = double{reference[i]} - norm;
      divergence += std::exp(log_p) * (log_p - (double{other[i]} - other_norm));
    }
    divergence_ += divergence;
    num_same_ += (top - reference) == (other_top - other) ? 1 : 0;
    ++num_positions_;
    if (next == kInvalidToken) return;
    ++num_next_;
    surprise_ += norm - double{reference[next]};
    other_surprise_ += other_norm - double{other[next]};
  }

  [[nodiscard]] Comparison result() const {
    const auto positions = static_cast<double>(num_positions_);
    const auto next = static_cast<double>(num_next_);
    return {.num_positions = num_positions_,
            .divergence = divergence_ / positions,
            .same_top = static_cast<double>(num_same_) / positions,
            .perplexity = std::exp(other_surprise_ / next),
            .reference_perplexity = std::exp(surprise_ / next)};
  }

 private:
  int64_t vocab_;
  int64_t num_positions_ = 0;
  int64_t num_next_ = 0;
  int64_t num_same_ = 0;
  double divergence_ = 0;
  double surprise_ = 0;
  double other_surprise_ = 0;
};

}  // namespace

Expected<Comparison> compare_models(const std::string& reference,
                                    const std::string& other,
                                    std::span<const std::vector<TokenId>> windows,
                                    int32_t threads) {
  SLUICE_TRY(const auto first, OfflineModel::open(reference, kTextWindow, {.threads = threads}));
  SLUICE_TRY(const auto second, OfflineModel::open(other, kTextWindow, {.threads = threads}));
  CHECK_EQ(first->vocab_size(), second->vocab_size());
  Sums sums(first->vocab_size());
  std::vector<float> logits;
  std::vector<float> other_logits;
  for (const std::vector<TokenId>& tokens : windows) {
    first->forward(tokens, logits);
    second->forward(tokens, other_logits);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t at = i * static_cast<size_t>(first->vocab_size());
      sums.add(logits.data() + at,
               other_logits.data() + at,
               i + 1 < tokens.size() ? tokens[i + 1] : kInvalidToken);
    }
  }
  return sums.result();
}

}  // namespace sluice
