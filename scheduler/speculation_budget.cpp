// SPDX-License-Identifier: Apache-2.0
#include "scheduler/speculation_budget.h"

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {

namespace {

constexpr double kLeastSurvival = 0.05;  // rows less likely to be reached are ignored
constexpr double kGainToBegin = 1.03;    // predicted gain
constexpr double kGainToGoOn = 1.00;
constexpr double kMaxStretch = 1.25;  // bound on the step's stretch while not every request drafts
constexpr uint64_t kPeriod = 256;     // steps: one is a baseline or, while drafts are off, a trial
constexpr uint64_t kSooner = 4;       // divisor of the time to the trial after one that gained
constexpr int32_t kIdleChoices = 16;  // after so many fruitless choices, offers are wanted ...
constexpr uint64_t kIdleEvery = 8;    // ... in one of so many steps
constexpr double kMaxDebt = 16;       // steps
constexpr double kMaxLoss = 4;        // steps: the most that one disturbed step counts for
constexpr double kRepayment = 0.01;   // a share of all steps, counted in their committed tokens
constexpr double kDriftStep = 0.01;
constexpr double kMaxDrift = 4;  // bound on one step's ratio, and inverse bound

}  // namespace

SpeculationBudget::SpeculationBudget(const Options& options)
    : options_(options), next_trial_(kPeriod), trial_gap_(kPeriod) {
  CHECK_GE(options.max_tokens, 1);
  CHECK_LE(options.max_tokens, kMaxDraftTokens);
}

// While drafting is off, one step in a period drafts all the same, sooner after one that gained.
bool SpeculationBudget::is_trial() const { return num_steps_ >= next_trial_; }

bool SpeculationBudget::offers_wanted() const {
  if (options_.is_fixed || is_trial()) return true;
  if (is_guarded_) return false;
  if (num_idle_ >= kIdleChoices) return num_steps_ % kIdleEvery == 0;
  const bool is_baseline = num_steps_ % kPeriod == 0;
  return !is_baseline;
}

DraftDecision SpeculationBudget::choose_fixed(const DraftLimits& limits,
                                              std::span<const DraftOffer> offers,
                                              std::span<int32_t> granted) const {
  DraftDecision decision;
  for (size_t i = 0; i < offers.size(); ++i) {
    granted[i] = std::min({static_cast<int32_t>(offers[i].bins.size()),
                           options_.max_tokens,
                           limits.max_draft_rows - decision.num_rows});
    decision.num_rows += granted[i];
  }
  return decision;
}

void SpeculationBudget::rank(std::span<const DraftOffer> offers) {
  const auto most = static_cast<size_t>(options_.max_tokens);
  if (bins_.size() < offers.size() * most) bins_.resize(offers.size() * most);
  const double least = is_trial() ? 0 : kLeastSurvival;
  ranking_ = {};
  int64_t positions = 0;
  for (size_t i = 0; i < offers.size(); ++i) {
    const DraftOffer& offer = offers[i];
    uint8_t* bins = &bins_[i * most];
    double product = 1;
    for (size_t j = 0; j < most; ++j) {
      bins[j] = kNumBins;
      if (j >= offer.bins.size()) break;
      product *= survival_.acceptance(
          offer.source, offer.bins[j], static_cast<int32_t>(j), *offer.request);
      if (product < least) break;
      const auto bin = static_cast<size_t>(product * kNumBins);
      bins[j] = static_cast<uint8_t>(bin);
      ++ranking_.rows[bin];
      ranking_.tokens[bin] += product;
      ++ranking_.num_rows;
      positions += offer.position + static_cast<int64_t>(j);
      if (j == 0) {
        ++ranking_.num_first;
        ranking_.least_first = std::min(ranking_.least_first, bin);
      }
    }
  }
  if (ranking_.num_rows > 0) ranking_.position = positions / ranking_.num_rows;
}

// Compares the sizes at which buckets of rows end, and all available rows.
SpeculationBudget::Choice SpeculationBudget::best_rows(const CostModel& cost,
                                                       const DraftLimits& limits) const {
  const int32_t most = std::min(ranking_.num_rows, limits.max_draft_rows);
  std::array<StepShape, RowTimes::kMaxShapes> shapes;
  std::array<int32_t, RowTimes::kMaxShapes> sizes;
  std::array<double, RowTimes::kMaxShapes> ms;
  shapes[0] = limits.shape;
  sizes[0] = 0;
  size_t count = 1;
  const int64_t num_plain = limits.shape.num_rows();
  for (size_t bucket = RowTimes::bucket_of(num_plain); sizes[count - 1] < most; ++bucket) {
    const bool is_last = bucket + 1 >= RowTimes::kNumBuckets;
    const int64_t end = RowTimes::bucket_end(bucket) - num_plain;
    if (end <= 0 && !is_last) continue;
    sizes[count] = is_last ? most : static_cast<int32_t>(std::min<int64_t>(end, most));
    shapes[count] = limits.shape;
    shapes[count].add(/*decode=*/true, ranking_.position, sizes[count]);
    ++count;
  }
  times_.predict(cost, {shapes.data(), count}, {ms.data(), count});

  int32_t num_all = 0;  // rows with which every request of the step drafts
  for (size_t bin = ranking_.least_first; bin < kNumBins; ++bin) num_all += ranking_.rows[bin];
  const bool may_stretch =
      ranking_.num_first == limits.num_decodes && limits.shape.num_prefill_tokens == 0;

  Choice choice;
  size_t bin = kNumBins;  // bins from here on are counted whole
  int32_t num_whole = 0;
  double tokens_whole = 0;
  for (size_t i = 1; i < count; ++i) {
    while (bin > 0 && num_whole + ranking_.rows[bin - 1] <= sizes[i]) {
      --bin;
      num_whole += ranking_.rows[bin];
      tokens_whole += ranking_.tokens[bin];
    }
    double tokens = tokens_whole;
    if (bin > 0 && sizes[i] > num_whole) {
      tokens += ranking_.tokens[bin - 1] / ranking_.rows[bin - 1] * (sizes[i] - num_whole);
    }
    const double step_ms = ms[i] + limits.draft_ms;
    if (limits.target_ms > 0 && step_ms > limits.target_ms) break;
    const bool stretches = step_ms > kMaxStretch * ms[0];
    if (!stretches || i == 1) choice.num_tried = sizes[i];
    if (stretches && !(may_stretch && sizes[i] >= num_all)) continue;
    const double gain = (limits.num_decodes + tokens) / limits.num_decodes * ms[0] / step_ms;
    if (gain > choice.gain) {
      choice.gain = gain;
      choice.num_rows = sizes[i];
    }
  }
  return choice;
}

// Grants the rows most likely to survive; among equals the requests take turns in coming first.
void SpeculationBudget::grant(std::span<const DraftOffer> offers,
                              int32_t num_rows,
                              std::span<int32_t> granted) {
  auto bin_in_part = static_cast<int>(kNumBins) - 1;  // bins above are taken whole; -1: all are
  int32_t left = num_rows;
  while (bin_in_part >= 0 && ranking_.rows[static_cast<size_t>(bin_in_part)] <= left) {
    left -= ranking_.rows[static_cast<size_t>(bin_in_part--)];
  }
  const auto most = static_cast<size_t>(options_.max_tokens);
  for (size_t n = 0; n < offers.size(); ++n) {
    const size_t i = (n + num_steps_) % offers.size();
    const uint8_t* bins = &bins_[i * most];
    for (size_t j = 0; j < most && bins[j] < kNumBins; ++j) {
      if (bins[j] < bin_in_part || (bins[j] == bin_in_part && left == 0)) break;
      left -= bins[j] == bin_in_part ? 1 : 0;
      ++granted[i];
    }
  }
}

DraftDecision SpeculationBudget::choose(const CostModel& cost,
                                        const DraftLimits& limits,
                                        std::span<const DraftOffer> offers,
                                        std::span<int32_t> granted) {
  CHECK_EQ(offers.size(), granted.size());
  std::ranges::fill(granted, 0);
  if (options_.is_fixed) return choose_fixed(limits, offers, granted);
  rank(offers);
  DraftDecision decision;
  if (ranking_.num_rows == 0) {
    const bool had_offer =
        std::ranges::any_of(offers, [](const DraftOffer& offer) { return !offer.bins.empty(); });
    if (had_offer) decision.off = DraftsOff::kAcceptance;
    return decision;
  }
  const size_t bucket = RowTimes::bucket_of(limits.shape.num_rows());
  if (!times_.is_known(bucket)) return decision;  // undrafted steps are first
  const Choice choice = best_rows(cost, limits);
  const bool gains = choice.gain > (is_on_ ? kGainToGoOn : kGainToBegin);
  decision.predicted_gain = choice.gain;
  is_on_ = gains && !is_guarded_;
  if (is_on_) next_trial_ = num_steps_ + kPeriod;
  decision.num_rows = is_on_ ? choice.num_rows : (is_trial() ? choice.num_tried : 0);
  if (decision.num_rows > 0) {
    num_idle_ = 0;
    grant(offers, decision.num_rows, granted);
    return decision;
  }
  ++num_idle_;
  decision.off = is_guarded_             ? DraftsOff::kGuard
                 : choice.num_tried == 0 ? DraftsOff::kLoad
                                         : DraftsOff::kAcceptance;
  return decision;
}

void SpeculationBudget::observe_draft(DraftSource source,
                                      std::span<const uint8_t> bins,
                                      int32_t num_accepted,
                                      RequestAcceptance& request) {
  survival_.observe(source, bins, num_accepted, request);
  if (is_of_model(source)) {
    depth_.observe_draft(bins.size(), static_cast<size_t>(num_accepted));
  }
}

int32_t SpeculationBudget::draft_depth(const CostModel& cost,
                                       const StepShape& plain,
                                       int32_t most) const {
  if (options_.is_fixed || most < 1) return most;
  return depth_.choose(cost, times_, plain, std::min(most, options_.max_tokens));
}

double SpeculationBudget::plain_ms(const CostModel& cost, const StepShape& plain) const {
  double ms = 0;
  times_.predict(cost, {&plain, 1}, {&ms, 1});
  return ms;
}

void SpeculationBudget::observe_step(const CostModel& cost, const DraftedStep& step) {
  ++num_steps_;
  if (!(step.ms > 0) || options_.is_fixed) return;
  const bool is_known = times_.is_known(RowTimes::bucket_of(step.plain.num_rows()));
  const double plain = plain_ms(cost, step.plain);
  times_.observe(step.shape, step.ms);
  if (step.num_draft_rows == 0 && step.plain.num_prefill_tokens == 0 && is_known) {
    const double seen = std::clamp(step.ms / plain, 1 / kMaxDrift, kMaxDrift);
    drift_ += kDriftStep * (seen - drift_);
  }
  if (step.num_decodes == 0) return;
  const double committed = static_cast<double>(step.num_committed) / step.num_decodes;
  const double loss_of_asking = step.draft_ms / (drift_ * plain);
  if (step.num_draft_rows == 0) debt_ += std::min(loss_of_asking, kMaxLoss);
  if (step.num_draft_rows > 0) {
    const double loss = step.ms / (drift_ * plain) + loss_of_asking - committed;
    debt_ += std::min(loss, kMaxLoss);
    if (!is_on_) {
      trial_gap_ = loss < 0 ? std::max<uint64_t>(trial_gap_ / kSooner, 1) : kPeriod;
      next_trial_ = num_steps_ + trial_gap_;
    }
  }
  debt_ = std::max(0.0, debt_ - kRepayment * committed);
  if (debt_ > kMaxDebt) is_guarded_ = true;
  if (debt_ == 0) is_guarded_ = false;
}

}  // namespace sluice
