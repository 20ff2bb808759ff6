// SPDX-License-Identifier: Apache-2.0
// A run in the form of `vllm bench serve`: its console block and its JSON keys, and more beside
// them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/load/load_run.h"
#include "server/load/server_metrics.h"
#include "server/load/summary.h"

namespace sluice::load {

// The options of a run, under the names of the result.
struct ResultLabels {
  std::string title = "Serving Benchmark Result";
  std::string date;  // "20261121-153000"
  std::string backend;
  std::string label;  // empty: none
  std::string model_id;
  std::string tokenizer_id;
  std::string dataset;
  std::string base_url;
  size_t num_prompts = 0;
  double burstiness = 1;
  std::optional<size_t> max_concurrency;
  std::string ramp_strategy;  // empty: none
  double ramp_start = 0;
  double ramp_end = 0;
  uint64_t seed = 0;
  std::vector<std::pair<std::string, std::string>> metadata;
};

struct Result {
  ResultLabels labels;
  SummaryOptions options;
  std::vector<std::string> shown_metrics = {"ttft", "tpot", "itl"};
  Summary summary;
  RunResult run;
  std::vector<MetricChange> server_metrics;
};

std::string console_block(const Result& result);

enum class Detail : uint8_t { kSummary, kRequests };

nlohmann::ordered_json result_json(const Result& result, Detail detail);

// Returns "99", "99.9": the spelling of keys and labels.
std::string percentile_word(double p);

}  // namespace sluice::load
