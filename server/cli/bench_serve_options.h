// SPDX-License-Identifier: Apache-2.0
// What `sluice bench serve` and `sluice bench mock` were asked for. The names are those of `vllm
// bench serve` where it has the flag.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "server/load/dataset.h"
#include "server/load/mock_server.h"
#include "server/load/request_format.h"
#include "server/load/summary.h"

namespace sluice {

struct BenchServeOptions {
  std::string backend = "openai";
  std::string base_url;  // empty: from host and port
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  bool insecure = false;
  std::string endpoint;   // empty: by backend
  std::string tokenizer;  // only named in the result
  load::RequestOptions request;
  load::DatasetOptions dataset;
  std::optional<int32_t> input_len;  // for whatever data set
  std::optional<int32_t> output_len;
  std::optional<int32_t> file_output_len;
  int32_t vocab_size = 0;  // 0: the server's ids of known words

  double request_rate = std::numeric_limits<double>::infinity();
  bool has_request_rate = false;
  double burstiness = 1;
  std::optional<size_t> max_concurrency;
  std::string ramp_strategy;
  double ramp_start = 0;
  double ramp_end = 0;
  int32_t num_warmups = 0;
  double warmup_s = 0;
  double cooldown_s = 0;
  double ready_timeout_s = 0;
  double timeout_s = 600;
  int32_t sweep = 0;  // rates to try; 0: one run

  std::vector<std::string> headers;   // NAME=VALUE
  std::vector<std::string> goodput;   // NAME:MS
  std::vector<std::string> metadata;  // NAME=VALUE
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl"};
  std::vector<double> metric_percentiles = {99};
  std::string label;
  bool save_result = false;
  bool save_detailed = false;
  bool append_result = false;
  std::string result_dir;
  std::string result_filename;
  std::string html;  // file of the report; empty: none
  bool disable_progress = false;
};

struct BenchMockOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  load::MockScript script;
  std::string fault = "none";
  double ttft_ms = 0;
  double itl_ms = 0;
};

}  // namespace sluice
