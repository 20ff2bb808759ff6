// SPDX-License-Identifier: Apache-2.0
// Options of the commands `sluice bench ...`. The names are those of `vllm bench` if it has the
// flag.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/kv_links.h"
#include "server/load/dataset.h"
#include "server/load/request_format.h"
#include "server/load/summary.h"
#include "server/mock/mock_server.h"

namespace sluice {

struct BenchOptions {
  std::vector<int32_t> prefill_lens = {128, 512};  // tokens; one request each
  std::vector<int32_t> concurrencies = {1, 2, 4, 8};
  int32_t context = 0;      // tokens before a decode request's prompt, computed beforehand
  int32_t prompt_len = 32;  // tokens of that prompt
  int32_t output_len = 64;  // tokens that a request generates
  int32_t rounds = 5;       // measured ones; one before them is not
  std::string json_path;    // empty: the table only
};

struct BenchDataOptions {
  load::DatasetOptions dataset;
  std::optional<int32_t> input_len;  // for any data set
  std::optional<int32_t> output_len;
  std::optional<int32_t> file_output_len;
  int32_t vocab_size = 0;  // 0: the tokenizer's ids of known words
};

struct BenchResultOptions {
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

struct BenchServeOptions {
  std::string backend = "openai";
  std::string base_url;  // empty: from host and port
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  bool insecure = false;
  std::string endpoint;   // empty: by backend
  std::string tokenizer;  // only named in the result
  load::RequestOptions request;
  std::vector<std::string> headers;  // NAME=VALUE
  BenchDataOptions data;

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
  BenchResultOptions result;
};

// `sluice bench throughput` and `sluice bench latency`: the engine in this process.
struct BenchOfflineOptions {
  BenchDataOptions data;
  SamplingParams sampling;                // lengths and seeds are the data set's
  int32_t num_choices = 1;                // answers to each prompt
  std::optional<size_t> max_concurrency;  // throughput: requests under way; none: all
  int32_t num_warmup_requests = 0;        // throughput: not measured
  int32_t input_len = 32;                 // latency: tokens
  int32_t output_len = 128;
  int32_t batch_size = 8;
  int32_t num_warmups = 10;     // batches that are not measured
  int32_t num_iterations = 30;  // batches that are measured
  BenchResultOptions result;
};

struct BenchMockOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  mock::MockScript script;
  std::string fault = "none";
  double ttft_ms = 0;
  double itl_ms = 0;
};

struct BenchCompareOptions {
  std::string before;  // files of results
  std::string after;
  std::optional<double> threshold;  // percent; none: nothing is too bad
};

struct BenchKvTransferOptions {
  KvLinkOptions link;
  std::string json_path;  // empty: none
};

}  // namespace sluice
