// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/prediction.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kNear = 32;             // tokens: this near the deviation two matches suffice
constexpr size_t kMaxPlaces = 8;         // most occurrences tried of a frequent pair
constexpr size_t kFollowedACall = 4096;  // tokens of the answer
constexpr int32_t kLongRun = 16;

// Classes of agreement for confidence_bin().
enum Alignment : int32_t { kNeverLost, kFoundAgain, kLost };

struct Pair {
  TokenId first = 0;
  TokenId second = 0;
  uint32_t next = 0;  // position after the pair

  friend auto operator<=>(const Pair&, const Pair&) = default;
};

// A prediction, and the answer's position in it.
class Course {
 public:
  void begin(std::span<const TokenId> prediction, size_t num_prompt_tokens) {
    tokens_.assign(prediction.begin(), prediction.end());
    pairs_.clear();
    seen_ = num_prompt_tokens;
    next_ = 0;
    run_ = 0;
    was_lost_ = false;
    is_lost_ = false;
  }

  void follow(std::span<const TokenId> known) {
    const size_t end = std::min(known.size(), seen_ + kFollowedACall);
    while (seen_ < end) {
      ++seen_;
      take(known.first(seen_));
    }
  }

  void guess(size_t num_known, int32_t max, Draft& draft) const {
    if (seen_ < num_known || next_ >= tokens_.size()) return;
    const Alignment agreement = is_lost_ ? kLost : (was_lost_ ? kFoundAgain : kNeverLost);
    const auto size =
        static_cast<int32_t>(std::min(tokens_.size() - next_, static_cast<size_t>(max)));
    for (int32_t j = 0; j < size; ++j) {
      draft.push(tokens_[next_ + static_cast<size_t>(j)], confidence_bin(run_, agreement));
    }
  }

  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(tokens_.capacity() * sizeof(TokenId) +
                                pairs_.capacity() * sizeof(Pair));
  }

 private:
  // Takes a new last token of `known`. While the answer deviates, next_ advances in parallel.
  void take(std::span<const TokenId> known) {
    const bool is_right = next_ < tokens_.size() && tokens_[next_] == known.back();
    if (next_ < tokens_.size()) ++next_;
    if (is_right) {
      run_ = std::min(run_ + 1, kLongRun);
      is_lost_ = false;
      return;
    }
    if (!is_lost_) lost_at_ = next_;
    is_lost_ = true;
    was_lost_ = true;
    run_ = 0;
    find_again(known);
  }

  void find_again(std::span<const TokenId> known) {
    if (known.size() < 2 || tokens_.size() < 2) return;
    if (pairs_.empty()) list_pairs();
    const Pair wanted = {known[known.size() - 2], known.back(), static_cast<uint32_t>(lost_at_)};
    auto place = std::ranges::lower_bound(pairs_, wanted);
    for (size_t i = 0; i < kMaxPlaces && place != pairs_.end() && is_same(*place, wanted);
         ++i, ++place) {
      if (try_place(known, place->next)) return;
    }
    place = std::ranges::lower_bound(pairs_, wanted);
    if (place != pairs_.begin() && is_same(*std::prev(place), wanted)) {
      try_place(known, std::prev(place)->next);
    }
  }

  static bool is_same(const Pair& a, const Pair& b) {
    return a.first == b.first && a.second == b.second;
  }

  // Tries a place where two tokens before `next` match the answer's; far away it takes three.
  bool try_place(std::span<const TokenId> known, size_t next) {
    const size_t distance = next > lost_at_ ? next - lost_at_ : lost_at_ - next;
    const bool is_three =
        next >= 3 && known.size() >= 3 && tokens_[next - 3] == known[known.size() - 3];
    if (distance > kNear && !is_three) return false;
    next_ = next;
    run_ = is_three ? 3 : 2;
    is_lost_ = false;
    return true;
  }

  void list_pairs() {
    pairs_.reserve(tokens_.size());
    for (size_t next = 2; next <= tokens_.size(); ++next) {
      pairs_.push_back({tokens_[next - 2], tokens_[next - 1], static_cast<uint32_t>(next)});
    }
    std::ranges::sort(pairs_);
  }

  std::vector<TokenId> tokens_;
  std::vector<Pair> pairs_;  // sorted; made when the answer first leaves the prediction
  size_t seen_ = 0;          // tokens of the text that were taken
  size_t next_ = 0;          // the expected next token
  size_t lost_at_ = 0;
  int32_t run_ = 0;  // consecutive right tokens
  bool was_lost_ = false;
  bool is_lost_ = false;
};

class PredictionProposer : public Proposer {
 public:
  std::string_view name() const override { return to_string(DraftSource::kPrediction); }

  void begin(int32_t slot, const RequestRecord& request) override {
    if (courses_.size() <= static_cast<size_t>(slot)) {
      courses_.resize(static_cast<size_t>(slot) + 1);
    }
    courses_[static_cast<size_t>(slot)].begin(request.prediction,
                                              static_cast<size_t>(request.num_prompt_tokens));
  }

  void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(DraftSource::kPrediction);
    Course& course = courses_[static_cast<size_t>(slot)];
    course.follow(known);
    course.guess(known.size(), max, draft);
  }

  void end(int32_t slot, std::span<const TokenId>) override {
    courses_[static_cast<size_t>(slot)] = {};
  }

  int64_t memory_bytes() const override {
    int64_t bytes = static_cast<int64_t>(courses_.capacity() * sizeof(Course));
    for (const Course& course : courses_) bytes += course.memory_bytes();
    return bytes;
  }

 private:
  std::vector<Course> courses_;  // by slot
};

}  // namespace

std::unique_ptr<Proposer> make_prediction_proposer() {
  return std::make_unique<PredictionProposer>();
}

int64_t prediction_max_bytes(int32_t num_requests, int64_t max_length) {
  const auto per_token = static_cast<int64_t>(sizeof(TokenId) + sizeof(Pair));
  return num_requests * (static_cast<int64_t>(2 * sizeof(Course)) + per_token * max_length);
}

}  // namespace sluice
