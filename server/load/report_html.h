// SPDX-License-Identifier: Apache-2.0
// A run as one self-contained HTML file: it sends no request, whatever the server's error messages
// hold. Its size does not grow with the number of requests: curves have a few hundred quantiles,
// the timeline has a few hundred steps, and many requests are sampled evenly.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "server/load/result.h"

namespace sluice::load {

// The outcome of one rate of a sweep.
struct SweepPoint {
  double rate = std::numeric_limits<double>::infinity();  // offered, requests per second
  bool is_sustained = false;  // the server kept up, and met the goal if there is one
  Summary summary;
};

// `sweep` may be empty; `result` is then the only run, else the one of the highest sustained rate.
std::string html_report(const Result& result, const std::vector<SweepPoint>& sweep);

// The page around the data; {{DATA}} is replaced by it.
extern const char* const kReportPage;

}  // namespace sluice::load
