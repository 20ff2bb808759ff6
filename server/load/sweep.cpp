// SPDX-License-Identifier: Apache-2.0
#include "server/load/sweep.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::load {
namespace {

constexpr double kHighestShare = 1.15;  // of the capacity measured with all requests at once
constexpr int kRefinements = 2;

class Sweep {
 public:
  Sweep(int num_rates, const std::function<Expected<Result>(double)>& measure)
      : num_rates_(num_rates), measure_(measure) {}

  Expected<SweepResult> run() {
    SLUICE_TRY(Result burst, measure_(std::numeric_limits<double>::infinity()));
    const double capacity = burst.summary.request_throughput;
    const bool usable = capacity > 0 && burst.summary.failed == 0 && !burst.run.is_interrupted;
    result_.points.push_back(
        {std::numeric_limits<double>::infinity(), /*is_sustained=*/false, burst.summary});
    result_.best = std::move(burst);
    if (!usable) return std::move(result_);  // its errors are the report
    for (int i = 1; i <= num_rates_; ++i) {
      SLUICE_TRY(const bool goes_on, try_rate(capacity * kHighestShare * i / num_rates_));
      if (!goes_on) return std::move(result_);
      if (first_lost_ < std::numeric_limits<double>::infinity()) break;
    }
    for (int i = 0; i < kRefinements && last_kept_ > 0; ++i) {
      if (first_lost_ == std::numeric_limits<double>::infinity()) break;
      SLUICE_TRY(const bool goes_on, try_rate((last_kept_ + first_lost_) / 2));
      if (!goes_on) break;
    }
    return std::move(result_);
  }

 private:
  // Returns false if interrupted.
  Expected<bool> try_rate(double rate) {
    SLUICE_TRY(Result at_rate, measure_(rate));
    const bool is_first = result_.points.size() == 1;
    if (is_first) idle_latency_s_ = at_rate.summary.find("e2el")->ms.median / 1e3;
    const bool kept = keeps_up(at_rate, idle_latency_s_);
    const bool goes_on = !at_rate.run.is_interrupted;
    result_.points.push_back({rate, kept, at_rate.summary});
    if (!kept) first_lost_ = std::min(first_lost_, rate);
    if (is_first || (kept && rate > last_kept_)) result_.best = std::move(at_rate);
    if (kept) last_kept_ = std::max(last_kept_, rate);
    return goes_on;
  }

  const int num_rates_;
  const std::function<Expected<Result>(double)>& measure_;
  double idle_latency_s_ = 0;
  double last_kept_ = 0;
  double first_lost_ = std::numeric_limits<double>::infinity();
  SweepResult result_;
};

}  // namespace

bool keeps_up(const Result& result, double idle_latency_s) {
  const Summary& summary = result.summary;
  if (summary.failed > 0 || summary.completed == 0 || result.run.is_interrupted) return false;
  if (summary.request_goodput_including_client_queue &&
      *summary.request_goodput_including_client_queue < kMetShare * summary.request_throughput) {
    return false;
  }
  // A queue that the latency of an idle server explains can still grow with every request.
  const double offered = result.options.request_rate;
  if (!std::isinf(offered) && summary.request_throughput < kAnsweredShare * offered) return false;
  double last = 0;
  for (const Record& record : result.run.records) last = std::max(last, record.intended);
  double under_way = 0;
  for (const Record& record : result.run.records) under_way += record.end > last ? 1 : 0;
  const double explained = offered * idle_latency_s;
  const auto count = static_cast<double>(result.run.records.size());
  return under_way <= 1.5 * explained + kBacklogShare * count + 1;
}

Expected<SweepResult> sweep_rates(int num_rates,
                                  const std::function<Expected<Result>(double rate)>& measure) {
  return Sweep(num_rates, measure).run();
}

}  // namespace sluice::load
