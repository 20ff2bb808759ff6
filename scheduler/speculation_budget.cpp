// SPDX-License-Identifier: Apache-2.0
#include "scheduler/speculation_budget.h"

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {

namespace {

// Drafting turns on at a predicted gain above this, and so small a measured loss does not count.
constexpr double kHysteresis = 0.01;
constexpr double kMaxStretch = 1.25;  // bound on the step's stretch while not every request drafts
constexpr double kMaxLoss = 16;       // undrafted steps: so much measured loss turns drafting off
constexpr uint64_t kMaxPeriod = 256;  // steps from one probe to the next, at most

}  // namespace

SpeculationBudget::SpeculationBudget(const Options& options)
    : options_(options), next_probe_(kMaxPeriod) {
  CHECK_GE(options.max_tokens, 1);
  CHECK_LE(options.max_tokens, kMaxDraftTokens);
}

bool SpeculationBudget::offers_wanted() const {
  if (options_.is_fixed) return true;
  return is_probe() ? !is_on_ : !has_lost_;
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
      const size_t bin = std::min(static_cast<size_t>(product * kNumBins), kNumBins - 1);
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
    if (!stretches || i == 1) choice.num_probed = sizes[i];
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
  if (ranking_.num_rows == 0) return decision;
  const size_t bucket = RowTimes::bucket_of(limits.shape.num_rows());
  if (!times_.is_known(bucket)) return decision;  // undrafted steps are first
  const Choice choice = best_rows(cost, limits);
  const bool probes = is_probe() && !is_on_;
  decision.predicted_gain = choice.gain;
  is_on_ = !has_lost_ && choice.gain > (is_on_ ? 1 : 1 + kHysteresis);
  if (is_on_) decision.num_rows = choice.num_rows;
  if (probes && !is_on_) decision.num_rows = std::max(choice.num_rows, choice.num_probed);
  if (decision.num_rows > 0) {
    grant(offers, decision.num_rows, granted);
  } else {
    decision.off = has_lost_                ? DraftsOff::kGuard
                   : choice.num_probed == 0 ? DraftsOff::kLoad
                                            : DraftsOff::kAcceptance;
  }
  return decision;
}

void SpeculationBudget::observe_passes(int32_t num_requests, int32_t depth, double ms) {
  CHECK_GE(depth, 1);
  const StepShape shape = {.num_decode_tokens = num_requests};
  pass_cost_.observe(shape, ms / depth);
  pass_times_.observe(shape, ms / depth);
}

int32_t SpeculationBudget::draft_depth(const CostModel& cost,
                                       const StepShape& plain,
                                       int32_t most) const {
  const int64_t num_requests = plain.num_decode_tokens;
  if (options_.is_fixed || most < 1 || num_requests == 0) return most;
  std::array<StepShape, RowTimes::kMaxShapes> shapes;
  std::array<double, RowTimes::kMaxShapes> ms;
  const size_t count =
      std::min(static_cast<size_t>(std::min(most, options_.max_tokens)), shapes.size());
  for (size_t k = 0; k < count; ++k) {
    shapes[k] = plain;
    shapes[k].add(/*decode=*/true,
                  plain.num_decode_pairs / num_requests,
                  num_requests * static_cast<int64_t>(k + 1));
  }
  times_.predict(cost, {shapes.data(), count}, {ms.data(), count});
  const double pass_ms = pass_times_.predict(pass_cost_, {.num_decode_tokens = num_requests});
  double acceptance = 0.5;
  double product = 1;
  double tokens = 1;
  double best_rate = 0;
  size_t best = 1;
  for (size_t k = 0; k < count; ++k) {
    acceptance = survival_.of_models(static_cast<int32_t>(k), acceptance);
    product *= acceptance;
    tokens += product;
    const double rate = tokens / (ms[k] + pass_ms * static_cast<double>(k + 1));
    if (rate > best_rate) {
      best_rate = rate;
      best = k + 1;
    }
  }
  return static_cast<int32_t>(best);
}

void SpeculationBudget::observe_step(const CostModel& cost, const DraftedStep& step) {
  ++num_steps_;
  if (!(step.ms > 0) || options_.is_fixed) return;
  const double plain_ms = times_.predict(cost, step.plain);
  times_.observe(step.shape, step.ms);
  if (step.num_decodes == 0) return;
  const bool drafted = step.num_draft_rows > 0;
  // A proposer that is asked for a probe, and whose drafts find no room, is asked less often, too.
  const bool asked_in_vain = step.draft_ms > kHysteresis * plain_ms;
  if (!drafted && is_probe() && (is_on_ || asked_in_vain)) set_period(2 * period_);
  double loss = step.draft_ms / plain_ms;
  if (drafted) {
    loss += step.ms / plain_ms - static_cast<double>(step.num_committed) / step.num_decodes;
  }
  if (drafted || step.draft_ms > 0) judge(loss, drafted && !is_on_);
}

void SpeculationBudget::set_period(uint64_t period) {
  period_ = std::min(period, kMaxPeriod);
  next_probe_ = num_steps_ + period_ - 1;
}

// Takes a step's measured loss, in undrafted steps; one disturbed step counts as one that was lost.
// Past gains are not saved up, and drafting that has lost must win it back in probes.
void SpeculationBudget::judge(double loss, bool was_probe) {
  loss_ = std::clamp(loss_ + std::min(loss, 1.0) - kHysteresis, 0.0, kMaxLoss);
  if (loss_ == 0) has_lost_ = false;
  if (loss_ == kMaxLoss && !has_lost_) {
    has_lost_ = true;
    is_on_ = false;
    set_period(1);
  } else if (was_probe) {
    set_period(loss < 0 ? 1 : 2 * period_);
  }
}

}  // namespace sluice
