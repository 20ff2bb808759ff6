// SPDX-License-Identifier: Apache-2.0
// How often drafted tokens are accepted, by source, confidence bin and depth over all requests, and
// by how much a single request differs. Only judged tokens count: those whose predecessors in the
// draft were all accepted. All evidence is halved every 1000 drafts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/draft.h"

namespace sluice {

// One request's state, which the scheduler keeps beside the request.
struct RequestAcceptance {
  double factor = 1;  // multiplies the acceptance measured over all requests

  // Moves the factor towards 1 after a step without a draft.
  void forget() { factor += (1 - factor) / 512; }
};

class DraftSurvival {
 public:
  DraftSurvival();

  // Returns the probability that a token of `request` is accepted, given that all its predecessors
  // in the draft were. `depth` 0 is the first token.
  [[nodiscard]] double acceptance(DraftSource source,
                                  uint8_t bin,
                                  int32_t depth,
                                  const RequestAcceptance& request) const;

  // Returns the probability over all requests and bins for the drafts of models; `expected` where
  // nothing was judged lately.
  [[nodiscard]] double of_models(int32_t depth, double expected) const;

  // Returns the expected number of accepted tokens of a draft.
  [[nodiscard]] double expected(DraftSource source,
                                std::span<const uint8_t> bins,
                                const RequestAcceptance& request) const;

  // Learns that a draft with these bins was judged and its first `num_accepted` tokens accepted.
  void observe(DraftSource source,
               std::span<const uint8_t> bins,
               int32_t num_accepted,
               RequestAcceptance& request);

 private:
  static constexpr size_t kNumDepths = 12;  // the last one includes all greater depths

  struct Counter {
    double accepted = 0;
    double judged = 0;
    double acceptance = 0;  // accepted / judged, with the prior
  };

  static DraftSource source_at(size_t index);
  static size_t index_of(DraftSource source, uint8_t bin, int32_t depth);
  void halve();

  std::array<Counter, kNumDraftSources * kNumConfidenceBins * kNumDepths> counters_;
  uint64_t num_drafts_ = 0;
};

}  // namespace sluice
