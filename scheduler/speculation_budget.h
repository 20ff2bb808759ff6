// SPDX-License-Identifier: Apache-2.0
// Decides how many drafted tokens of each request a step verifies: the number with the most
// expected tokens per predicted millisecond, given measured acceptance (DraftSurvival) and measured
// step times (RowTimes).
//
// Drafting turns on at a predicted gain above a hysteresis. It turns off without a predicted gain,
// and when the steps that draft are measured to lose. A probe does the opposite of the choice for
// one step, to measure what the choice does not show. The period of probes doubles after each one
// and starts anew when drafting turns off for its losses and when drafts gain in a probe.
//
// The scheduler owns it and calls it on its own thread. It reads no clock: equal calls give equal
// decisions. A step:
//   offers_wanted() -> proposers make drafts -> choose() -> the step runs ->
//   observe_draft() for each request with a draft, then observe_step().
// Calls allocate only when there are more requests than ever before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "scheduler/cost_model.h"
#include "scheduler/draft_survival.h"
#include "scheduler/row_times.h"

namespace sluice {

// A draft for a request that decodes. The caller has cut it to what the request's max_tokens, the
// model's length, its blocks and a grammar allow.
struct DraftOffer {
  DraftSource source = DraftSource::kNgram;
  std::span<const uint8_t> bins;  // one per drafted token; empty: no draft
  const RequestAcceptance* request = nullptr;
  int64_t position = 0;  // position of the first drafted token
};

struct DraftLimits {
  StepShape shape;             // the step without drafts
  int32_t num_decodes = 0;     // rows that choose a token without drafts
  int32_t max_draft_rows = 0;  // room left by the step's tokens and rows of logits
  double target_ms = 0;        // bound on the step; 0: no limit
  double draft_ms = 0;         // time that making the drafts took; 0: nothing
};

struct DraftDecision {
  int32_t num_rows = 0;          // total drafted tokens
  double predicted_gain = 1;     // tokens per millisecond, relative to no drafts
  std::optional<DraftsOff> off;  // set when offers were made and none taken
};

// A retired step.
struct DraftedStep {
  StepShape shape;          // includes its drafts
  StepShape plain;          // without them
  int32_t num_decodes = 0;  // see DraftLimits
  int32_t num_draft_rows = 0;
  int32_t num_committed = 0;  // tokens gained by those decodes
  double ms = 0;              // measured; not positive: unknown, ignored
  double draft_ms = 0;        // time spent making its drafts, taken or not
};

class SpeculationBudget {
 public:
  struct Options {
    int32_t max_tokens = 16;  // drafts of one request in one step, at most
    bool is_fixed = false;    // every offer is taken as far as there is room
  };

  explicit SpeculationBudget(const Options& options);

  // False: the coming step drafts nothing and no proposer needs to run.
  [[nodiscard]] bool offers_wanted() const;

  // Returns how many tokens, from 1 to `most`, a model is asked to draft for each request of a step
  // that is `plain` without drafts: each token costs a pass of that model before the step, whether
  // the step verifies it or not.
  [[nodiscard]] int32_t draft_depth(const CostModel& cost,
                                    const StepShape& plain,
                                    int32_t most) const;

  // Records that a model's drafts of `depth` tokens for `num_requests` took `ms` > 0.
  void observe_passes(int32_t num_requests, int32_t depth, double ms);

  // Sets granted[i] to how many leading tokens of offers[i] the step takes. `cost` predicts steps
  // that are not in the table.
  DraftDecision choose(const CostModel& cost,
                       const DraftLimits& limits,
                       std::span<const DraftOffer> offers,
                       std::span<int32_t> granted);

  // Records the judgement of a request's draft: one bin per drafted row in the step, of which the
  // first `num_accepted` were accepted.
  void observe_draft(DraftSource source,
                     std::span<const uint8_t> bins,
                     int32_t num_accepted,
                     RequestAcceptance& request) {
    survival_.observe(source, bins, num_accepted, request);
  }

  void observe_step(const CostModel& cost, const DraftedStep& step);

  [[nodiscard]] const DraftSurvival& survival() const { return survival_; }

  [[nodiscard]] const RowTimes& times() const { return times_; }

  // Whether drafting is off because it was measured to lose; only probes draft.
  [[nodiscard]] bool has_lost() const { return has_lost_; }

 private:
  static constexpr size_t kNumBins = 64;  // classes of survival, by which rows are ranked

  // Drafted rows by survival: their count and expected tokens.
  struct Ranking {
    std::array<int32_t, kNumBins> rows{};
    std::array<double, kNumBins> tokens{};
    int32_t num_rows = 0;
    int32_t num_first = 0;          // first tokens of drafts among them
    size_t least_first = kNumBins;  // the least bin that has a first token
    int64_t position = 0;           // average position of drafted rows
  };

  struct Choice {
    int32_t num_rows = 0;
    double gain = 1;
    int32_t num_probed = 0;  // rows for a probe without gain: they barely stretch the step
  };

  void rank(std::span<const DraftOffer> offers);
  [[nodiscard]] Choice best_rows(const CostModel& cost, const DraftLimits& limits) const;
  void grant(std::span<const DraftOffer> offers, int32_t num_rows, std::span<int32_t> granted);
  [[nodiscard]] DraftDecision choose_fixed(const DraftLimits& limits,
                                           std::span<const DraftOffer> offers,
                                           std::span<int32_t> granted) const;

  [[nodiscard]] bool is_probe() const { return num_steps_ >= next_probe_; }

  void set_period(uint64_t period);
  void judge(double loss, bool was_probe);

  Options options_;
  DraftSurvival survival_;
  RowTimes times_;
  CostModel pass_cost_;  // of a draft model's passes, by number of requests
  RowTimes pass_times_;
  Ranking ranking_;
  std::vector<uint8_t> bins_;  // survival of rows: max_tokens per offer
  uint64_t num_steps_ = 0;     // retired
  uint64_t next_probe_;        // the step that does the opposite of the choice
  uint64_t period_ = 1;        // steps from one probe to the next
  bool is_on_ = false;         // the last choice drafted
  bool has_lost_ = false;
  double loss_ = 0;  // time that drafting has lost and not won back, in undrafted steps
};

}  // namespace sluice
