// SPDX-License-Identifier: Apache-2.0
// The figures of a run. Definitions (t: seconds of the record):
//   TTFT = first_token - sent; E2EL = last_token - sent; TPOT = (E2EL - TTFT) / (tokens - 1);
//   ITL = gaps between events with text; client queue time = sent - intended;
//   "incl. client queue" = counted from the intended start: the latency for a user of that time.
// Percentiles interpolate linearly between ranks, like numpy's default.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/load/record.h"

namespace sluice::load {

struct Distribution {
  size_t count = 0;
  double mean = 0;
  double median = 0;
  double std = 0;
  double min = 0;
  double max = 0;
  std::vector<std::pair<double, double>> percentiles;  // (p, value), in the requested order
};

// Describes values; zeros if there are none.
Distribution describe(std::vector<double> values, const std::vector<double>& percentiles);

struct Goal {  // milliseconds; an unset one is met
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> e2el;

  [[nodiscard]] bool any() const { return ttft || tpot || e2el; }
};

struct SummaryOptions {
  std::vector<double> percentiles = {99};
  Goal goal;
  double request_rate = std::numeric_limits<double>::infinity();
  double warmup_s = 0;    // left out at the beginning
  double cooldown_s = 0;  // left out before the last start
};

struct Metric {
  const char* name;    // in JSON keys: "ttft"
  const char* label;   // in the console block: "TTFT"
  const char* header;  // "Time to First Token"
  Distribution ms;
};

struct Summary {
  double duration_s = 0;
  size_t completed = 0;
  size_t failed = 0;
  int64_t total_input_tokens = 0;
  int64_t total_output_tokens = 0;
  double request_throughput = 0;
  double output_throughput = 0;
  double total_token_throughput = 0;
  std::optional<double> request_goodput;
  std::optional<double> request_goodput_including_client_queue;
  double max_output_tokens_per_s = 0;
  size_t max_concurrent_requests = 0;
  std::vector<Metric> metrics;

  // Counts of inconsistencies.
  size_t without_usage = 0;        // completed, tokens counted by events
  size_t chunk_disagreements = 0;  // usage differs from the number of events with text
  size_t short_answers = 0;        // fewer tokens than requested
  int64_t total_text_chunks = 0;
  int64_t total_cached_tokens = 0;
  std::map<ErrorKind, size_t> errors;
  std::map<ErrorKind, std::string> error_examples;
  std::map<int32_t, size_t> statuses;  // HTTP, of failed requests
  size_t rate_limited_with_retry_after = 0;
  double max_retry_after_s = 0;

  [[nodiscard]] const Metric* find(std::string_view name) const;
};

Summary summarize(const std::vector<Record>& records,
                  double duration_s,
                  const SummaryOptions& options);

}  // namespace sluice::load
