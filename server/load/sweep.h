// SPDX-License-Identifier: Apache-2.0
// Finds the highest rate that a server keeps up with: all requests at once first, which gives the
// capacity C; then rates up to above C; then between the highest rate that was kept up with and the
// one above it.
#pragma once

#include <functional>
#include <vector>

#include "engine/core/status.h"
#include "server/load/report_html.h"
#include "server/load/result.h"

namespace sluice::load {

// A server keeps up when nothing fails, at least kMetShare of its answers meet the goal (counted
// from the intended starts), and what is under way at the last arrival is what the rate and the
// latency of an idle server explain, give or take kBacklogShare of all requests.
inline constexpr double kMetShare = 0.95;
inline constexpr double kBacklogShare = 0.03;

bool keeps_up(const Result& result, double idle_latency_s);

struct SweepResult {
  std::vector<SweepPoint> points;  // in the order they were run
  Result best;                     // the highest rate kept up with, or the lowest tried
};

// `measure` runs the load at a rate; `num_rates` of them between the two ends.
Expected<SweepResult> sweep_rates(int num_rates,
                                  const std::function<Expected<Result>(double rate)>& measure);

}  // namespace sluice::load
