// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/suffix.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include "engine/spec/suffix_tree.h"

namespace sluice {
namespace {

constexpr int32_t kRequestNodes = 1 << 15;   // in a request's tree, for its newest text
constexpr int32_t kAnswerNodes = 1'000'000;  // in the tree of answers
constexpr int32_t kAnswerTokens = 1 << 20;   // over all answers
constexpr size_t kTokensACall = 256;         // tokens of a request's text indexed before a guess
constexpr size_t kLearnedAGuess = 8;         // tokens of answers per guess
constexpr size_t kLearnedAnEnd = 64;         // tokens of answers per end
constexpr size_t kMaxToLearn = 1 << 18;      // waiting tokens; beyond: the oldest are dropped

SuffixTreeLimits request_limits(int32_t max_depth) {
  return {.max_depth = max_depth, .max_nodes = kRequestNodes};
}

SuffixTreeLimits answer_limits(int32_t max_depth, int32_t max_requests) {
  return {.max_depth = max_depth,
          .max_nodes = kAnswerNodes,
          .max_tokens = kAnswerTokens,
          .max_sequences = max_requests,
          .reserves = true};
}

// Answers of finished requests, from which other requests draft.
class Answers {
 public:
  Answers(int32_t max_depth, int32_t max_requests)
      : tree_(answer_limits(max_depth, max_requests)) {}

  void add(uint64_t salt, std::span<const TokenId> tokens) {
    if (tokens.empty()) return;
    waiting_.push_back({salt, {tokens.begin(), tokens.end()}});
    num_waiting_ += tokens.size();
    while (num_waiting_ > kMaxToLearn && waiting_.size() > 1) {
      num_waiting_ -= waiting_[1].tokens.size();
      waiting_.erase(waiting_.begin() + 1);  // the first may be half learned
    }
  }

  void learn(size_t num_tokens) {
    for (; num_tokens > 0 && !waiting_.empty(); --num_tokens) {
      const Answer& answer = waiting_.front();
      if (next_ == 0) tree_.open(answer.salt);
      tree_.append(answer.tokens[next_++]);
      --num_waiting_;
      if (next_ < answer.tokens.size()) continue;
      tree_.close();
      waiting_.pop_front();
      next_ = 0;
    }
  }

  [[nodiscard]] const SuffixTree& tree() const { return tree_; }

  [[nodiscard]] int64_t memory_bytes() const {
    int64_t bytes = tree_.memory_bytes();
    for (const Answer& answer : waiting_) {
      bytes += static_cast<int64_t>(sizeof(Answer) + answer.tokens.capacity() * sizeof(TokenId));
    }
    return bytes;
  }

 private:
  struct Answer {
    uint64_t salt = 0;
    std::vector<TokenId> tokens;
  };

  SuffixTree tree_;
  std::deque<Answer> waiting_;  // not learned yet
  size_t num_waiting_ = 0;      // their unlearned tokens
  size_t next_ = 0;             // the first one's next token
};

class SuffixProposer : public Proposer {
 public:
  explicit SuffixProposer(const SuffixOptions& options) : options_(options) {
    if (options.max_cached_requests > 0) {
      answers_ = std::make_unique<Answers>(options.max_depth, options.max_cached_requests);
    }
  }

  std::string_view name() const override { return to_string(DraftSource::kSuffix); }

  void begin(int32_t slot, const RequestRecord& request) override {
    while (requests_.size() <= static_cast<size_t>(slot)) {
      requests_.push_back(std::make_unique<Text>(options_.max_depth));
    }
    Text& text = *requests_[static_cast<size_t>(slot)];
    text.tree.clear();
    text.tree.open(0);
    text.num_seen = 0;
    text.num_prompt_tokens = static_cast<size_t>(request.num_prompt_tokens);
    text.salt = request.tenant_salt;
  }

  void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(DraftSource::kSuffix);
    Text& text = *requests_[static_cast<size_t>(slot)];
    const size_t end = std::min(known.size(), text.num_seen + kTokensACall);
    while (text.num_seen < end) text.tree.append(known[text.num_seen++]);
    const SuffixTree::Rules rules = {.max_tokens = max,
                                     .max_spec_factor = options_.max_spec_factor,
                                     .min_token_prob = options_.min_token_prob};
    double best = 0;
    if (text.num_seen == known.size()) best = text.tree.guess(0, known, rules, draft);
    if (answers_ == nullptr) return;
    answers_->learn(kLearnedAGuess);
    other_.clear(DraftSource::kSuffix);
    if (answers_->tree().guess(text.salt, known, rules, other_) > best) draft = other_;
  }

  void end(int32_t slot, std::span<const TokenId> known) override {
    Text& text = *requests_[static_cast<size_t>(slot)];
    text.tree.clear();
    if (answers_ == nullptr) return;
    answers_->add(text.salt, known.subspan(text.num_prompt_tokens));
    answers_->learn(kLearnedAnEnd);
  }

  int64_t memory_bytes() const override {
    int64_t bytes = answers_ != nullptr ? answers_->memory_bytes() : 0;
    for (const auto& text : requests_) bytes += text->tree.memory_bytes();
    return bytes;
  }

 private:
  struct Text {
    explicit Text(int32_t max_depth) : tree(request_limits(max_depth)) {}

    SuffixTree tree;
    size_t num_seen = 0;  // tokens in the tree
    size_t num_prompt_tokens = 0;
    uint64_t salt = 0;
  };

  SuffixOptions options_;
  std::vector<std::unique_ptr<Text>> requests_;  // by slot
  std::unique_ptr<Answers> answers_;
  Draft other_;  // the guess from answers
};

}  // namespace

std::unique_ptr<Proposer> make_suffix_proposer(const SuffixOptions& options) {
  return std::make_unique<SuffixProposer>(options);
}

int64_t suffix_max_bytes(const SuffixOptions& options, int32_t num_requests, int64_t max_length) {
  SuffixTreeLimits request = request_limits(options.max_depth);
  request.max_tokens = static_cast<int32_t>(std::min<int64_t>(max_length, request.max_tokens));
  const int64_t bytes = num_requests * SuffixTree::max_memory_bytes(request);
  if (options.max_cached_requests == 0) return bytes;
  // The queue may exceed its bound by one answer, and each answer has at least one token.
  const auto waiting = static_cast<int64_t>(kMaxToLearn) * (sizeof(TokenId) + 32) + 8 * max_length;
  return bytes + waiting +
         SuffixTree::max_memory_bytes(
             answer_limits(options.max_depth, options.max_cached_requests));
}

}  // namespace sluice
