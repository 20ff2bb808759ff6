// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/replay.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/core/status.h"

namespace sluice {
namespace {

uint64_t mixed(uint64_t seed, uint64_t position) {
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t z = seed + (position + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

class ReplayProposer : public Proposer {
 public:
  ReplayProposer(double error_rate, uint64_t seed, int32_t vocab_size)
      : error_rate_(error_rate), seed_(seed), vocab_size_(vocab_size) {
    CHECK_GE(vocab_size, 2);
  }

  std::string_view name() const override { return to_string(DraftSource::kReplay); }

  void begin(int32_t slot, const RequestRecord& request) override {
    if (records_.size() <= static_cast<size_t>(slot)) {
      records_.resize(static_cast<size_t>(slot) + 1);
    }
    Record& record = records_[static_cast<size_t>(slot)];
    record.answer.assign(request.prediction.begin(), request.prediction.end());
    record.begin = static_cast<size_t>(request.num_prompt_tokens);
  }

  void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(DraftSource::kReplay);
    const Record& record = records_[static_cast<size_t>(slot)];
    const size_t first = known.size() - record.begin;
    const size_t end = std::min(record.answer.size(), first + static_cast<size_t>(max));
    for (size_t i = first; i < end; ++i) draft.push(guess(record.answer[i], i), 0);
  }

  void end(int32_t slot, std::span<const TokenId>) override {
    records_[static_cast<size_t>(slot)].answer.clear();
  }

  int64_t memory_bytes() const override {
    int64_t bytes = static_cast<int64_t>(records_.capacity() * sizeof(Record));
    for (const Record& record : records_) {
      bytes += static_cast<int64_t>(record.answer.capacity() * sizeof(TokenId));
    }
    return bytes;
  }

 private:
  struct Record {
    std::vector<TokenId> answer;
    size_t begin = 0;  // position of its first token
  };

  [[nodiscard]] TokenId guess(TokenId right, size_t position) const {
    const uint64_t chance = mixed(seed_, position);
    if (static_cast<double>(chance >> 11) * 0x1p-53 >= error_rate_) return right;
    const uint64_t step = 1 + mixed(chance, position) % static_cast<uint64_t>(vocab_size_ - 1);
    return static_cast<TokenId>((static_cast<uint64_t>(right) + step) %
                                static_cast<uint64_t>(vocab_size_));
  }

  double error_rate_;
  uint64_t seed_;
  int32_t vocab_size_;
  std::vector<Record> records_;  // by slot
};

}  // namespace

std::unique_ptr<Proposer> make_replay_proposer(double error_rate,
                                               uint64_t seed,
                                               int32_t vocab_size) {
  return std::make_unique<ReplayProposer>(error_rate, seed, vocab_size);
}

int64_t replay_max_bytes(int32_t num_requests, int64_t max_length) {
  constexpr int64_t kOwnBytes = 2 * (sizeof(std::vector<TokenId>) + sizeof(size_t));
  return num_requests * (kOwnBytes + static_cast<int64_t>(sizeof(TokenId)) * max_length);
}

}  // namespace sluice
