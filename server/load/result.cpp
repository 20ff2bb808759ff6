// SPDX-License-Identifier: Apache-2.0
#include "server/load/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "server/json/json_writer.h"

namespace sluice::load {
namespace {

constexpr size_t kWidth = 50;  // of a header line, and of a label with its value

std::string header(const std::string& title, char fill) {
  const size_t missing = kWidth - std::min(kWidth, title.size());
  return std::string(missing / 2, fill) + title + std::string(missing - missing / 2, fill) + "\n";
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string fixed(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.2f", value);
  return buffer;
}

std::string line(const std::string& label, const std::string& value) {
  return padded(label, 40) + " " + padded(value, 10) + "\n";
}

std::string line(const std::string& label, double value) { return line(label, fixed(value)); }

std::string count_line(const std::string& label, int64_t value) {
  return line(label, std::to_string(value));
}

std::string metric_block(const Metric& metric) {
  const std::string unit = std::string(metric.label) + " (ms):";
  std::string block = header(metric.header, '-');
  block += line("Mean " + unit, metric.ms.mean);
  block += line("Median " + unit, metric.ms.median);
  for (const auto& [p, value] : metric.ms.percentiles) {
    block += line("P" + percentile_word(p) + " " + unit, value);
  }
  return block;
}

bool is_shown(const Result& result, const std::string& name) {
  const auto& shown = result.shown_metrics;
  if (std::find(shown.begin(), shown.end(), name) != shown.end()) return true;
  // Latency added by waiting in the client is always shown if there can be any.
  const bool open_loop = !std::isinf(result.options.request_rate);
  if (name == "client_queue_time") return result.labels.max_concurrency.has_value();
  if (name == "ttft_including_client_queue" || name == "e2el_including_client_queue") {
    return open_loop && result.labels.max_concurrency.has_value();
  }
  return false;
}

std::string speculation_block(const Result& result) {
  const std::optional<Speculation> found = speculation_of(result.server_metrics);
  if (!found) return {};
  std::string block = header("Speculative Decoding", '-');
  block += line("Acceptance rate (%):", 100 * found->rate());
  block += line("Acceptance length:", found->length());
  block += count_line("Drafts:", static_cast<int64_t>(found->num_drafts));
  block += count_line("Draft tokens:", static_cast<int64_t>(found->num_draft_tokens));
  block += count_line("Accepted tokens:", static_cast<int64_t>(found->num_accepted_tokens));
  if (!found->accepted_at.empty()) block += "Per-position acceptance (%):\n";
  for (size_t i = 0; i < found->accepted_at.size(); ++i) {
    block += line("  Position " + std::to_string(i) + ":", 100 * found->accepted_at[i]);
  }
  return block;
}

std::string checks_block(const Result& result) {
  const Summary& summary = result.summary;
  std::string block;
  if (summary.without_usage > 0) {
    block +=
        count_line("Without usage (events counted):", static_cast<int64_t>(summary.without_usage));
  }
  if (summary.chunk_disagreements > 0) {
    block +=
        count_line("Usage differs from events:", static_cast<int64_t>(summary.chunk_disagreements));
  }
  if (summary.short_answers > 0) {
    block += count_line("Shorter than asked for:", static_cast<int64_t>(summary.short_answers));
  }
  for (const auto& [kind, count] : summary.errors) {
    block +=
        count_line("Failed, " + std::string(to_string(kind)) + ":", static_cast<int64_t>(count));
    block += "  e.g. " + to_valid_utf8(summary.error_examples.at(kind)) + "\n";
  }
  if (summary.rate_limited_with_retry_after > 0) {
    block += line("Longest Retry-After (s):", summary.max_retry_after_s);
  }
  return block.empty() ? block : header("Checks", '-') + block;
}

}  // namespace

std::string percentile_word(double p) {
  if (p == std::floor(p)) return std::to_string(static_cast<int>(p));
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.15g", p);
  return buffer;
}

std::string console_block(const Result& result) {
  const Summary& summary = result.summary;
  std::string block = header(" " + result.labels.title + " ", '=');
  block += count_line("Successful requests:", static_cast<int64_t>(summary.completed));
  block += count_line("Failed requests:", static_cast<int64_t>(summary.failed));
  if (result.labels.max_concurrency) {
    block += count_line("Maximum request concurrency:",
                        static_cast<int64_t>(*result.labels.max_concurrency));
  }
  if (!std::isinf(result.options.request_rate)) {
    block += line("Request rate configured (RPS):", result.options.request_rate);
  }
  block += line("Benchmark duration (s):", summary.duration_s);
  block += count_line("Total input tokens:", summary.total_input_tokens);
  block += count_line("Total generated tokens:", summary.total_output_tokens);
  block += line("Request throughput (req/s):", summary.request_throughput);
  if (summary.request_goodput) {
    block += line("Request goodput (req/s):", *summary.request_goodput);
  }
  block += line("Output token throughput (tok/s):", summary.output_throughput);
  block += line("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s);
  block += line("Peak concurrent requests:", static_cast<double>(summary.max_concurrent_requests));
  block += line("Total token throughput (tok/s):", summary.total_token_throughput);
  for (const Metric& metric : summary.metrics) {
    if (is_shown(result, metric.name)) block += metric_block(metric);
  }
  block += speculation_block(result);
  block += checks_block(result);
  return block + std::string(kWidth, '=') + "\n";
}

}  // namespace sluice::load
