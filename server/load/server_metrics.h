// SPDX-License-Identifier: Apache-2.0
// The server's own counters before and after a run, from Prometheus's text format.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::load {

// Values by name; those of one name with different labels are added up, buckets left out. One with
// a label "position" is there under NAME{position="N"} as well. Lines that cannot be read are left
// out.
using MetricValues = std::map<std::string, double>;

MetricValues parse_metrics(std::string_view text);

struct MetricChange {
  std::string name;
  double before = 0;
  double after = 0;
};

// Those that the server had both times and that changed; a position that it did not have before
// was 0.
std::vector<MetricChange> compare_metrics(const MetricValues& before, const MetricValues& after);

// What the server's drafts came to, by the counters of vLLM's names.
struct Speculation {
  double num_drafts = 0;  // of a request in a step
  double num_draft_tokens = 0;
  double num_accepted_tokens = 0;
  std::vector<double> accepted_at;  // by position in the draft: share of all drafts

  // Of drafted tokens, 0 to 1.
  [[nodiscard]] double rate() const { return num_accepted_tokens / num_draft_tokens; }

  // Tokens of a step that drafted, on average.
  [[nodiscard]] double length() const {
    return num_drafts > 0 ? 1 + num_accepted_tokens / num_drafts : 0;
  }
};

// None: nothing was drafted.
std::optional<Speculation> speculation_of(const std::vector<MetricChange>& changes);

}  // namespace sluice::load
