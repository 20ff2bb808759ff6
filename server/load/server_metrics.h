// SPDX-License-Identifier: Apache-2.0
// The server's own counters before and after a run, from Prometheus's text format.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::load {

// Values by name, summed over labels, without buckets. A metric with a label "position" has an
// entry NAME{position="N"} as well. Unreadable lines are left out.
using MetricValues = std::map<std::string, double>;

MetricValues parse_metrics(std::string_view text);

struct MetricChange {
  std::string name;
  double before = 0;
  double after = 0;
};

// Returns the changed counters that the server had both times; a position that was missing before
// counts as 0.
std::vector<MetricChange> compare_metrics(const MetricValues& before, const MetricValues& after);

// The yield of the server's drafts, by the counters of vLLM's names.
struct Speculation {
  double num_drafts = 0;  // per request and step
  double num_draft_tokens = 0;
  double num_accepted_tokens = 0;
  std::vector<double> accepted_at;  // by position in the draft: share of all drafts

  // Returns the accepted share of drafted tokens, 0 to 1.
  [[nodiscard]] double rate() const { return num_accepted_tokens / num_draft_tokens; }

  // Returns the mean number of tokens of a step that drafted.
  [[nodiscard]] double length() const {
    return num_drafts > 0 ? 1 + num_accepted_tokens / num_drafts : 0;
  }
};

// Returns nothing if nothing was drafted.
std::optional<Speculation> speculation_of(const std::vector<MetricChange>& changes);

}  // namespace sluice::load
