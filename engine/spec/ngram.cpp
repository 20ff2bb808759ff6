// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/ngram.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "engine/core/status.h"
#include "engine/spec/ngram_index.h"

namespace sluice {
namespace {

constexpr size_t kTokensACall = 4096;  // indexed before a guess, about 0.2 ms
constexpr int32_t kLongMatch = 16;     // longer ones are not surer

// Classes of agreement for confidence_bin().
enum Agreement : int32_t { kOnlyOnce, kAgrees, kDisagrees };

// Number of tokens, up to kLongMatch, on which the text's end and the text before `next` agree.
int32_t match_length(std::span<const TokenId> text, size_t next) {
  int32_t length = 0;
  while (length < kLongMatch && static_cast<size_t>(length) < next &&
         text[next - 1 - static_cast<size_t>(length)] ==
             text[text.size() - 1 - static_cast<size_t>(length)]) {
    ++length;
  }
  return length;
}

class NgramProposer : public Proposer {
 public:
  NgramProposer(int32_t min_n, int32_t max_n) : min_n_(min_n), max_n_(max_n) {
    CHECK_GE(min_n, 1);
    CHECK_GE(max_n, min_n);
  }

  std::string_view name() const override { return to_string(DraftSource::kNgram); }

  void begin(int32_t slot, const RequestRecord&) override {
    while (slots_.size() <= static_cast<size_t>(slot)) {
      slots_.emplace_back(min_n_, max_n_);
    }
    slots_[static_cast<size_t>(slot)].longest.clear();
    slots_[static_cast<size_t>(slot)].shortest.clear();
  }

  void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) override {
    draft.clear(DraftSource::kNgram);
    Indexes& indexes = slots_[static_cast<size_t>(slot)];
    bool is_ready = indexes.longest.extend(known, kTokensACall);
    if (min_n_ < max_n_) is_ready = indexes.shortest.extend(known, kTokensACall) && is_ready;
    if (!is_ready) return;
    NgramIndex::Match match = indexes.longest.find(known);
    if (match.latest == 0 && min_n_ < max_n_) match = indexes.shortest.find(known);
    if (match.latest == 0) return;
    follow(known, match, max, draft);
  }

  void end(int32_t, std::span<const TokenId>) override {}

  int64_t memory_bytes() const override {
    int64_t bytes = static_cast<int64_t>(slots_.capacity() * sizeof(Indexes));
    for (const Indexes& one : slots_) {
      bytes += one.longest.memory_bytes() + one.shortest.memory_bytes();
    }
    return bytes;
  }

 private:
  struct Indexes {
    Indexes(int32_t min_n, int32_t max_n) : longest(max_n), shortest(min_n) {}

    NgramIndex longest;
    NgramIndex shortest;  // unused if both have one length
  };

  static void follow(std::span<const TokenId> known,
                     NgramIndex::Match match,
                     int32_t max,
                     Draft& draft) {
    const int32_t length = match_length(known, match.latest);
    Agreement agreement = match.previous == 0 ? kOnlyOnce : kAgrees;
    for (int32_t j = 0; j < max; ++j) {
      const auto token_at = [&](size_t begin) {
        const size_t at = begin + static_cast<size_t>(j);
        return at < known.size() ? known[at] : draft.tokens[at - known.size()];
      };
      const TokenId token = token_at(match.latest);
      if (agreement == kAgrees && token_at(match.previous) != token) agreement = kDisagrees;
      draft.push(token, confidence_bin(length, agreement));
    }
  }

  int32_t min_n_;
  int32_t max_n_;
  std::vector<Indexes> slots_;
};

}  // namespace

std::unique_ptr<Proposer> make_ngram_proposer(int32_t min_n, int32_t max_n) {
  return std::make_unique<NgramProposer>(min_n, max_n);
}

int64_t ngram_max_bytes(int32_t num_requests, int64_t max_length) {
  const auto own = static_cast<int64_t>(2 * sizeof(NgramIndex));
  return num_requests * 2 * (own + NgramIndex::max_memory_bytes(max_length));
}

}  // namespace sluice
