// SPDX-License-Identifier: Apache-2.0
// How often drafted tokens are accepted: by source, confidence bin and depth, for all requests
// together, and by how much a single request differs. Only tokens that were judged count, which are
// those behind accepted ones. Older evidence fades, half of it in 2000 drafts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/draft.h"

namespace sluice {

// One request's part; the scheduler keeps it beside the request.
struct RequestAcceptance {
  double factor = 1;  // times the acceptance that all requests have

  // A step without a draft: what was learned of the request fades.
  void forget() { factor += (1 - factor) / 512; }
};

class DraftSurvival {
 public:
  DraftSurvival();

  // That a token of `request` is accepted whose predecessors in the draft all were. `depth`: 0 is
  // the first.
  [[nodiscard]] double acceptance(DraftSource source,
                                  uint8_t bin,
                                  int32_t depth,
                                  const RequestAcceptance& request) const;

  // How many tokens of a draft are expected to be accepted.
  [[nodiscard]] double expected(DraftSource source,
                                std::span<const uint8_t> bins,
                                const RequestAcceptance& request) const;

  // A draft with these bins was judged: its first `num_accepted` tokens were accepted.
  void observe(DraftSource source,
               std::span<const uint8_t> bins,
               int32_t num_accepted,
               RequestAcceptance& request);

 private:
  static constexpr size_t kNumDepths = 12;  // the last: this deep and deeper

  struct Counter {
    double accepted = 0;
    double judged = 0;
    double acceptance = 0;  // their ratio, with the prior
  };

  static DraftSource source_at(size_t index);
  static size_t index_of(DraftSource source, uint8_t bin, int32_t depth);
  void fade();

  std::array<Counter, kNumDraftSources * kNumConfidenceBins * kNumDepths> counters_;
  uint64_t num_drafts_ = 0;
};

}  // namespace sluice
