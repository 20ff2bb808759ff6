// SPDX-License-Identifier: Apache-2.0
#include "server/load/summary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/load/result.h"

namespace sluice::load {
namespace {

// Sent `queue` after its intended start; `tokens` tokens, the first after `ttft`, then each `gap`.
Record make_record(double intended, double queue, double ttft, double gap, int tokens) {
  Record record;
  record.intended = intended;
  record.sent = intended + queue;
  record.first_chunk = record.sent + ttft / 2;
  record.first_token = record.sent + ttft;
  record.gaps.assign(static_cast<size_t>(tokens - 1), static_cast<float>(gap));
  record.last_token = record.first_token + gap * (tokens - 1);
  record.end = record.last_token + 0.001;
  record.completion_tokens = record.num_text_chunks = record.requested_tokens = tokens;
  record.prompt_tokens = 10;
  record.is_finished = record.is_done = true;
  return record;
}

Record make_failure(double intended, ErrorKind kind) {
  Record record;
  record.intended = record.sent = intended;
  record.end = intended + 1;
  record.error = kind;
  record.error_message = "why";
  return record;
}

TEST(Distribution, PercentilesAreThoseOfNumpy) {
  // numpy.percentile([1, 2, 4, 8, 16], [25, 50, 90, 99.9]) and numpy.std of the same.
  const Distribution d = describe({16, 1, 8, 2, 4}, {25, 50, 90, 99.9});
  EXPECT_DOUBLE_EQ(d.percentiles[0].second, 2);
  EXPECT_DOUBLE_EQ(d.percentiles[1].second, 4);
  EXPECT_DOUBLE_EQ(d.percentiles[2].second, 12.8);
  EXPECT_DOUBLE_EQ(d.percentiles[3].second, 15.968);
  EXPECT_DOUBLE_EQ(d.std, 5.455272678794342);
  EXPECT_EQ(describe({}, {99}).percentiles[0].second, 0);
}

TEST(Summary, FiguresFollowTheirDefinitions) {
  SummaryOptions options;
  options.request_rate = 1;
  options.goal.ttft = 150;
  options.goal.tpot = 25;
  const std::vector<Record> records = {make_record(0, 0, 0.1, 0.02, 11),
                                       make_record(1, 2, 0.1, 0.04, 6),
                                       make_failure(2, ErrorKind::kDied)};
  const Summary s = summarize(records, 5, options);
  EXPECT_EQ(s.completed, 2U);
  EXPECT_EQ(s.failed, 1U);
  EXPECT_EQ(s.errors.at(ErrorKind::kDied), 1U);
  EXPECT_EQ(s.total_input_tokens, 20);
  EXPECT_EQ(s.total_output_tokens, 17);
  EXPECT_DOUBLE_EQ(s.request_throughput, 0.4);
  EXPECT_DOUBLE_EQ(s.output_throughput, 17.0 / 5);
  EXPECT_DOUBLE_EQ(s.total_token_throughput, 37.0 / 5);
  EXPECT_NEAR(s.find("ttft")->ms.mean, 100, 1e-6);
  EXPECT_NEAR(s.find("tpot")->ms.mean, 30, 1e-6);
  EXPECT_NEAR(s.find("itl")->ms.mean, (10 * 20 + 5 * 40) / 15.0, 1e-4);
  EXPECT_NEAR(s.find("e2el")->ms.mean, 300, 1e-6);
  EXPECT_NEAR(s.find("client_queue_time")->ms.mean, 1000, 1e-6);
  EXPECT_NEAR(s.find("ttft_including_client_queue")->ms.mean, 1100, 1e-6);
  EXPECT_NEAR(s.find("e2el_including_client_queue")->ms.mean, 1300, 1e-6);
  EXPECT_NEAR(s.find("first_chunk")->ms.mean, 50, 1e-6);
  EXPECT_DOUBLE_EQ(*s.request_goodput, 1.0 / 5);
  EXPECT_DOUBLE_EQ(*s.request_goodput_including_client_queue, 1.0 / 5);
  EXPECT_EQ(s.max_concurrent_requests, 1U);
  EXPECT_NEAR(s.max_output_tokens_per_s, 11, 1e-9);
}

TEST(Summary, CountsWhatDoesNotAddUp) {
  Record no_usage = make_record(0, 0, 0.1, 0.01, 4);
  no_usage.completion_tokens = -1;
  Record coalesced = make_record(0, 0, 0.1, 0.01, 4);
  coalesced.completion_tokens = 8;
  coalesced.requested_tokens = 9;
  const Summary s = summarize({no_usage, coalesced}, 1, {});
  EXPECT_EQ(s.without_usage, 1U);
  EXPECT_EQ(s.chunk_disagreements, 1U);
  EXPECT_EQ(s.short_answers, 1U);
  EXPECT_EQ(s.total_output_tokens, 12);
}

TEST(Summary, TheSteadyWindowLeavesOutBothEnds) {
  SummaryOptions options;
  options.request_rate = 1;
  options.warmup_s = 3;
  options.cooldown_s = 2;
  std::vector<Record> records;
  // Slow at the beginning and at the end: neither may show.
  for (int i = 0; i <= 10; ++i) {
    records.push_back(make_record(i, 0, i < 3 || i >= 8 ? 0.9 : 0.1, 0, 2));
  }
  const Summary s = summarize(records, 12, options);
  EXPECT_EQ(s.completed, 5U);
  EXPECT_DOUBLE_EQ(s.duration_s, 5);
  EXPECT_DOUBLE_EQ(s.request_throughput, 1);
  EXPECT_NEAR(s.find("ttft")->ms.max, 100, 1e-6);
  EXPECT_NEAR(s.output_throughput, 2, 1e-9);
}

// The keys that vLLM 0.1x's `vllm bench serve --save-result --save-detailed` writes.
TEST(ResultJson, HasEveryKeyOfVllm) {
  Result result;
  result.options.percentiles = {50, 99.9};
  result.labels.max_concurrency = 4;
  result.run.records = {make_record(0, 0, 0.1, 0.02, 11), make_failure(1, ErrorKind::kTimeout)};
  result.run.records[0].text = R"(a\u00e9 \"b\")";
  result.summary = summarize(result.run.records, 2, result.options);
  const auto json = nlohmann::json::parse(result_json(result, Detail::kRequests).dump());
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "latencies",
                          "start_times",
                          "queue_times",
                          "generated_texts",
                          "errors",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p50_ttft_ms",
                          "p99.9_ttft_ms",
                          "mean_tpot_ms",
                          "p99.9_tpot_ms",
                          "mean_itl_ms",
                          "p99.9_itl_ms",
                          "mean_e2el_ms",
                          "p99.9_e2el_ms",
                          "mean_client_queue_time_ms",
                          "p99.9_e2el_including_client_queue_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["generated_texts"][0], "a\u00e9 \"b\"");
  EXPECT_EQ(json["errors"][0], "");
  EXPECT_EQ(json["errors"][1], "timeout: why");
  EXPECT_EQ(json["error_kinds"]["timeout"]["count"], 1);
  EXPECT_EQ(json["itls"][0].size(), 10U);
  for (const char* key : {"ttfts", "itls", "errors", "generated_texts"}) {
    EXPECT_EQ(json[key].size(), 2U);
    EXPECT_FALSE(result_json(result, Detail::kSummary).contains(key));
  }
}

TEST(ConsoleBlock, HasTheLinesThatScriptsLookFor) {
  Result result;
  result.options.request_rate = 10;
  result.options.goal.ttft = 100;
  result.labels.max_concurrency = 8;
  result.run.records = {make_record(0, 0.5, 0.0251, 0.02, 11),
                        make_failure(1, ErrorKind::kHalfFrame)};
  result.summary = summarize(result.run.records, 2, result.options);
  const std::string text = console_block(result);
  for (const char* line : {"============ Serving Benchmark Result ============\n",
                           "Successful requests:                     1         \n",
                           "Failed requests:                         1         \n",
                           "Maximum request concurrency:             8         \n",
                           "Request rate configured (RPS):           10.00     \n",
                           "Benchmark duration (s):                  2.00      \n",
                           "Total input tokens:                      10        \n",
                           "Total generated tokens:                  11        \n",
                           "Request throughput (req/s):              0.50      \n",
                           "Request goodput (req/s):                 0.50      \n",
                           "Output token throughput (tok/s):         5.50      \n",
                           "Peak output token throughput (tok/s):    11.00     \n",
                           "Peak concurrent requests:                1.00      \n",
                           "Total token throughput (tok/s):          10.50     \n",
                           "---------------Time to First Token----------------\n",
                           "Mean TTFT (ms):                          25.10     \n",
                           "Median TTFT (ms):                        25.10     \n",
                           "P99 TTFT (ms):                           25.10     \n",
                           "-----Time per Output Token (excl. 1st token)------\n",
                           "---------------Inter-token Latency----------------\n",
                           "---------------Client-side Queueing---------------\n",
                           "--------Queue-inclusive End-to-end Latency--------\n",
                           "Failed, half_frame:                      1         \n",
                           "==================================================\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(text.find("End-to-end Latency-----------------\n"), std::string::npos);
}

// Only a server that drafted has the block.
TEST(ConsoleBlock, ShowsWhatDraftsCameTo) {
  Result result;
  EXPECT_EQ(console_block(result).find("Speculative"), std::string::npos);
  const std::string stem = "vllm:spec_decode_num_";
  result.server_metrics = {{stem + "drafts_total", 0, 10},
                           {stem + "draft_tokens_total", 0, 40},
                           {stem + "accepted_tokens_total", 0, 12},
                           {stem + "accepted_tokens_per_pos_total", 0, 12},
                           {stem + "accepted_tokens_per_pos_total{position=\"0\"}", 0, 8},
                           {stem + "accepted_tokens_per_pos_total{position=\"1\"}", 0, 4}};
  const std::string text = console_block(result);
  for (const char* line : {"---------------Speculative Decoding---------------\n",
                           "Acceptance rate (%):                     30.00     \n",
                           "Acceptance length:                       2.20      \n",
                           "  Position 0:                            80.00     \n",
                           "  Position 1:                            40.00     \n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  const auto json = nlohmann::json::parse(result_json(result, Detail::kSummary).dump());
  EXPECT_EQ(json["spec_decode_acceptance_length"], 2.2);
  EXPECT_EQ(json["spec_decode_per_position_acceptance_rates"], (nlohmann::json{0.8, 0.4}));
}

TEST(ConsoleBlock, HoldsWhenEverythingFailed) {
  Result result;
  result.run.records = {make_failure(0, ErrorKind::kConnect)};
  result.summary = summarize(result.run.records, 0, result.options);
  EXPECT_NE(console_block(result).find("Mean TTFT (ms):                          0.00"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice::load
