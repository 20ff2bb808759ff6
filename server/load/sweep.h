// SPDX-License-Identifier: Apache-2.0
// Finds the highest rate that a server sustains: all requests at once first, which gives the
// capacity C; then rates up to above C; then rates between the highest sustained one and the next
// one above it.
#pragma once

#include <functional>
#include <vector>

#include "engine/core/status.h"
#include "server/load/report_html.h"
#include "server/load/result.h"

namespace sluice::load {

// Tells whether a server keeps up: nothing fails, at least kMetShare of its answers meet the goal
// (counted from the intended starts), at least kAnsweredShare of the offered rate is answered over
// the whole run, and the rate and the latency of an idle server explain the requests under way at
// the last arrival, give or take kBacklogShare of all requests. So a run must last at least ten
// times as long as an answer.
inline constexpr double kMetShare = 0.95;
inline constexpr double kAnsweredShare = 0.9;
inline constexpr double kBacklogShare = 0.03;

bool keeps_up(const Result& result, double idle_latency_s);

struct SweepResult {
  std::vector<SweepPoint> points;  // in the order of the runs
  Result best;                     // the highest sustained rate, or the lowest tried
};

// Calls `measure` at each rate; `num_rates` are between the two ends.
Expected<SweepResult> sweep_rates(int num_rates,
                                  const std::function<Expected<Result>(double rate)>& measure);

}  // namespace sluice::load
