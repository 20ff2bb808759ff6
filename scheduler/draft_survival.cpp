// SPDX-License-Identifier: Apache-2.0
#include "scheduler/draft_survival.h"

#include <algorithm>

namespace sluice {

namespace {

// The assumed acceptance of tokens of which nothing is known, weighted in judged tokens.
struct Prior {
  double accepted = 0;
  double judged = 0;
};

// Clients predict what they expect. Every other source is assumed right half of the time, even a
// grammar's forced text, which has many tokenizations.
constexpr Prior prior_of(DraftSource source) {
  switch (source) {
    case DraftSource::kPrediction:
      return {3, 4};
    case DraftSource::kForced:
    case DraftSource::kSuffix:
    case DraftSource::kNgram:
    case DraftSource::kReplay:
    case DraftSource::kDraftModel:
    case DraftSource::kEagle:
    case DraftSource::kMtp:
      break;
  }
  return {2, 4};
}

constexpr uint64_t kHalfLife = 1000;  // drafts, after which all evidence counts half
constexpr double kStep = 0.02;        // change of a request's factor per judged token
constexpr double kMaxFactor = 4;      // and its inverse is the least

double with_prior(const Prior& prior, double accepted, double judged) {
  return (prior.accepted + accepted) / (prior.judged + judged);
}

}  // namespace

DraftSurvival::DraftSurvival() {
  for (size_t i = 0; i < counters_.size(); ++i) {
    counters_[i].acceptance = with_prior(prior_of(source_at(i)), 0, 0);
  }
}

DraftSource DraftSurvival::source_at(size_t index) {
  return static_cast<DraftSource>(index / (kNumConfidenceBins * kNumDepths));
}

size_t DraftSurvival::index_of(DraftSource source, uint8_t bin, int32_t depth) {
  const size_t at = std::min(static_cast<size_t>(depth), kNumDepths - 1);
  return (static_cast<size_t>(source) * kNumConfidenceBins + bin) * kNumDepths + at;
}

double DraftSurvival::acceptance(DraftSource source,
                                 uint8_t bin,
                                 int32_t depth,
                                 const RequestAcceptance& request) const {
  const double shared = counters_[index_of(source, bin, depth)].acceptance;
  return std::min(request.factor * shared, 1.0);
}

double DraftSurvival::expected(DraftSource source,
                               std::span<const uint8_t> bins,
                               const RequestAcceptance& request) const {
  double product = 1;
  double sum = 0;
  for (size_t j = 0; j < bins.size(); ++j) {
    product *= acceptance(source, bins[j], static_cast<int32_t>(j), request);
    sum += product;
  }
  return sum;
}

void DraftSurvival::observe(DraftSource source,
                            std::span<const uint8_t> bins,
                            int32_t num_accepted,
                            RequestAcceptance& request) {
  const size_t num_judged = std::min(bins.size(), static_cast<size_t>(num_accepted) + 1);
  for (size_t j = 0; j < num_judged; ++j) {
    const double outcome = j < static_cast<size_t>(num_accepted) ? 1 : 0;
    const auto depth = static_cast<int32_t>(j);
    const double surprise = outcome - acceptance(source, bins[j], depth, request);
    request.factor = std::clamp(request.factor + kStep * surprise, 1 / kMaxFactor, kMaxFactor);
    Counter& counter = counters_[index_of(source, bins[j], depth)];
    counter.accepted += outcome;
    counter.judged += 1;
    counter.acceptance = with_prior(prior_of(source), counter.accepted, counter.judged);
  }
  if (++num_drafts_ % kHalfLife == 0) halve();
}

double DraftSurvival::of_models(int32_t depth, double expected) const {
  Prior sum = {4 * expected, 4};
  for (size_t source = 0; source < kNumDraftSources; ++source) {
    if (!is_of_model(static_cast<DraftSource>(source))) continue;
    for (uint8_t bin = 0; bin < kNumConfidenceBins; ++bin) {
      const Counter& counter = counters_[index_of(static_cast<DraftSource>(source), bin, depth)];
      sum.accepted += counter.accepted;
      sum.judged += counter.judged;
    }
  }
  return sum.accepted / sum.judged;
}

void DraftSurvival::halve() {
  for (size_t i = 0; i < counters_.size(); ++i) {
    Counter& counter = counters_[i];
    counter.accepted /= 2;
    counter.judged /= 2;
    counter.acceptance = with_prior(prior_of(source_at(i)), counter.accepted, counter.judged);
  }
}

}  // namespace sluice
