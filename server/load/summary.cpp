// SPDX-License-Identifier: Apache-2.0
#include "server/load/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::load {
namespace {

// Returns a percentile; `sorted` is not empty.
double percentile(const std::vector<double>& sorted, double p) {
  const double rank = p / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

struct Window {
  double begin = 0;
  double end = 0;
  bool is_whole = true;

  [[nodiscard]] bool holds(double t) const { return is_whole || (t >= begin && t < end); }
};

Window steady_window(const std::vector<Record>& records,
                     double duration_s,
                     const SummaryOptions& options) {
  Window window{0, duration_s, options.warmup_s <= 0 && options.cooldown_s <= 0};
  if (window.is_whole) return window;
  window.begin = options.warmup_s;
  if (options.cooldown_s > 0) {
    double last = 0;
    for (const Record& record : records) last = std::max(last, record.intended);
    if (std::isinf(options.request_rate)) last = duration_s;
    window.end = std::max(window.begin, last - options.cooldown_s);
  }
  return window;
}

double tokens_per_chunk(const Record& record) {
  return record.num_text_chunks > 0
             ? static_cast<double>(record.output_len()) / record.num_text_chunks
             : 0;
}

template <typename Visit>
void for_each_chunk(const Record& record, const Visit& visit) {
  if (record.first_token < 0) return;
  double at = record.first_token;
  visit(at);
  for (const float gap : record.gaps) visit(at += static_cast<double>(gap));
}

bool meets(const Goal& goal, double ttft, double tpot, double e2el) {
  return (!goal.ttft || ttft * 1e3 <= *goal.ttft) && (!goal.tpot || tpot * 1e3 <= *goal.tpot) &&
         (!goal.e2el || e2el * 1e3 <= *goal.e2el);
}

void note_error(const Record& record, Summary& summary) {
  ++summary.failed;
  ++summary.errors[record.error];
  summary.error_examples.try_emplace(record.error, record.error_message);
  if (record.status != 0 && record.status != 200) ++summary.statuses[record.status];
  if (record.retry_after >= 0) {
    ++summary.rate_limited_with_retry_after;
    summary.max_retry_after_s = std::max(summary.max_retry_after_s, record.retry_after);
  }
}

void note_checks(const Record& record, Summary& summary) {
  summary.total_text_chunks += record.num_text_chunks;
  summary.total_cached_tokens += std::max<int64_t>(0, record.cached_tokens);
  if (record.completion_tokens < 0) {
    ++summary.without_usage;
  } else if (record.completion_tokens != record.num_text_chunks) {
    ++summary.chunk_disagreements;
  }
  if (record.output_len() < record.requested_tokens) ++summary.short_answers;
}

// Finds vLLM's peaks: tokens in whole seconds from the first start; concurrent requests.
void find_peaks(const std::vector<const Record*>& done, Summary& summary) {
  if (done.empty()) return;
  double begin = done.front()->sent;
  for (const Record* record : done) begin = std::min(begin, record->sent);
  std::map<int64_t, double> tokens;
  std::vector<std::pair<double, int>> steps;
  for (const Record* record : done) {
    const double weight = tokens_per_chunk(*record);
    for_each_chunk(*record, [&](double at) { tokens[static_cast<int64_t>(at - begin)] += weight; });
    steps.emplace_back(record->sent, 1);
    steps.emplace_back(record->sent + record->latency(), -1);
  }
  for (const auto& [second, count] : tokens) {
    summary.max_output_tokens_per_s = std::max(summary.max_output_tokens_per_s, count);
  }
  std::sort(steps.begin(), steps.end());
  int64_t under_way = 0;
  for (const auto& [at, step] : steps) {
    under_way += step;
    summary.max_concurrent_requests = std::max(
        summary.max_concurrent_requests, static_cast<size_t>(std::max<int64_t>(0, under_way)));
  }
}

struct Samples {
  std::vector<double> ttft, tpot, itl, e2el, queue, queued_ttft, queued_e2el, first_chunk;
  size_t good = 0;
  size_t good_with_queue = 0;
};

void collect(const Record& record, const Goal& goal, Samples& samples) {
  const double ttft = record.ttft();
  const double e2el = record.latency();
  const double queue = record.queue_time();
  double tpot = 0;
  if (record.output_len() > 1) {
    tpot = (e2el - ttft) / static_cast<double>(record.output_len() - 1);
    samples.tpot.push_back(tpot * 1e3);
  }
  samples.ttft.push_back(ttft * 1e3);
  samples.e2el.push_back(e2el * 1e3);
  samples.queue.push_back(queue * 1e3);
  samples.queued_ttft.push_back((ttft + queue) * 1e3);
  samples.queued_e2el.push_back((e2el + queue) * 1e3);
  if (record.first_chunk >= 0) {
    samples.first_chunk.push_back((record.first_chunk - record.sent) * 1e3);
  }
  for (const float gap : record.gaps) samples.itl.push_back(static_cast<double>(gap) * 1e3);
  if (meets(goal, ttft, tpot, e2el)) ++samples.good;
  if (meets(goal, ttft + queue, tpot, e2el + queue)) ++samples.good_with_queue;
}

void add_metrics(Samples samples, const std::vector<double>& percentiles, Summary& summary) {
  const auto add =
      [&](const char* name, const char* label, const char* header, std::vector<double> values) {
        summary.metrics.push_back({name, label, header, describe(std::move(values), percentiles)});
      };
  add("ttft", "TTFT", "Time to First Token", std::move(samples.ttft));
  add("tpot", "TPOT", "Time per Output Token (excl. 1st token)", std::move(samples.tpot));
  add("itl", "ITL", "Inter-token Latency", std::move(samples.itl));
  add("e2el", "E2EL", "End-to-end Latency", std::move(samples.e2el));
  add("client_queue_time", "Client Queue Time", "Client-side Queueing", std::move(samples.queue));
  add("ttft_including_client_queue",
      "TTFT incl. Client Queue",
      "Queue-inclusive Time to First Token",
      std::move(samples.queued_ttft));
  add("e2el_including_client_queue",
      "E2EL incl. Client Queue",
      "Queue-inclusive End-to-end Latency",
      std::move(samples.queued_e2el));
  add("first_chunk", "First Chunk", "Time to First Chunk", std::move(samples.first_chunk));
}

}  // namespace

Distribution describe(std::vector<double> values, const std::vector<double>& percentiles) {
  Distribution result;
  result.count = values.size();
  if (values.empty()) {
    for (const double p : percentiles) result.percentiles.emplace_back(p, 0);
    return result;
  }
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  result.std = std::sqrt(squares / count);
  result.median = percentile(values, 50);
  result.min = values.front();
  result.max = values.back();
  for (const double p : percentiles) result.percentiles.emplace_back(p, percentile(values, p));
  return result;
}

const Metric* Summary::find(std::string_view name) const {
  for (const Metric& metric : metrics) {
    if (name == metric.name) return &metric;
  }
  return nullptr;
}

Summary summarize(const std::vector<Record>& records,
                  double duration_s,
                  const SummaryOptions& options) {
  Summary summary;
  const Window window = steady_window(records, duration_s, options);
  summary.duration_s = window.end - window.begin;
  std::vector<const Record*> done;
  Samples samples;
  double tokens_in_window = 0;
  for (const Record& record : records) {
    const bool begins_inside =
        window.holds(std::isinf(options.request_rate) ? record.sent : record.intended);
    if (!record.is_ok()) {
      if (begins_inside) note_error(record, summary);
      continue;
    }
    if (!window.is_whole) {
      const double weight = tokens_per_chunk(record);
      for_each_chunk(record, [&](double at) { tokens_in_window += window.holds(at) ? weight : 0; });
    }
    if (!begins_inside) continue;
    ++summary.completed;
    summary.total_input_tokens += record.input_len();
    summary.total_output_tokens += record.output_len();
    note_checks(record, summary);
    collect(record, options.goal, samples);
    done.push_back(&record);
  }
  find_peaks(done, summary);
  const double seconds = std::max(summary.duration_s, 1e-9);
  summary.request_throughput = static_cast<double>(summary.completed) / seconds;
  // A window counts tokens of streams that began before it, and none that arrive after it.
  summary.output_throughput =
      (window.is_whole ? static_cast<double>(summary.total_output_tokens) : tokens_in_window) /
      seconds;
  summary.total_token_throughput =
      static_cast<double>(summary.total_input_tokens) / seconds + summary.output_throughput;
  if (options.goal.any()) {
    summary.request_goodput = static_cast<double>(samples.good) / seconds;
    summary.request_goodput_including_client_queue =
        static_cast<double>(samples.good_with_queue) / seconds;
  }
  add_metrics(std::move(samples), options.percentiles, summary);
  return summary;
}

}  // namespace sluice::load
