// SPDX-License-Identifier: Apache-2.0
// The server's own counters before and after a run, from Prometheus's text format.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::load {

// Values by name; those of one name with different labels are added up, buckets left out. Lines
// that cannot be read are left out too.
using MetricValues = std::map<std::string, double>;

MetricValues parse_metrics(std::string_view text);

struct MetricChange {
  std::string name;
  double before = 0;
  double after = 0;
};

// Those that the server had both times and that changed.
std::vector<MetricChange> compare_metrics(const MetricValues& before, const MetricValues& after);

}  // namespace sluice::load
