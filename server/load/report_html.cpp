// SPDX-License-Identifier: Apache-2.0
#include "server/load/report_html.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/json/json_writer.h"

namespace sluice::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCurvePoints = 240;
constexpr size_t kMinTimeSteps = 24;
constexpr size_t kMaxTimeSteps = 240;
constexpr size_t kEventsPerStep = 8;    // minimum, or the timeline would show single events
constexpr size_t kShownRequests = 300;  // bars of the request chart
constexpr size_t kShownDots = 2000;

// Rounds to six digits, which are enough for a screen.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10, 5 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json rounded_list(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(rounded(value));
  return list;
}

std::vector<const Record*> evenly(const std::vector<const Record*>& records, size_t count) {
  if (records.size() <= count) return records;
  std::vector<const Record*> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(records[i * records.size() / count]);
  return chosen;
}

// Returns values at even quantiles, and at the rarest ones for the tails.
Json curve(const char* label, std::vector<double> values) {
  std::vector<double> quantiles;
  for (size_t i = 0; i <= kCurvePoints; ++i) {
    quantiles.push_back(100.0 * static_cast<double>(i) / kCurvePoints);
  }
  for (const double p : {99.7, 99.9, 99.97, 99.99}) quantiles.push_back(p);
  std::sort(quantiles.begin(), quantiles.end());
  Json points = Json::array();
  for (const auto& [p, value] : describe(std::move(values), quantiles).percentiles) {
    points.push_back({rounded(value), rounded(p)});
  }
  return {{"label", label}, {"points", std::move(points)}};
}

Json curves(const std::vector<const Record*>& done) {
  Json list = Json::array();
  if (done.empty()) return list;
  const auto add = [&](const char* label, auto value_of) {
    std::vector<double> values;
    for (const Record* record : done) values.push_back(1e3 * value_of(*record));
    list.push_back(curve(label, std::move(values)));
  };
  add("TTFT", [](const Record& r) { return r.ttft(); });
  add("TTFT, from the intended start", [](const Record& r) { return r.ttft() + r.queue_time(); });
  add("E2E", [](const Record& r) { return r.latency(); });
  add("E2E, from the intended start", [](const Record& r) { return r.latency() + r.queue_time(); });
  return list;
}

struct Timeline {
  Timeline(double duration, size_t count)
      : num_steps(count),
        step(std::max(duration, 1e-3) / static_cast<double>(count)),
        tokens(count),
        active(count),
        waiting(count),
        failed(count) {}

  [[nodiscard]] size_t at(double t) const {
    return static_cast<size_t>(std::clamp(t / step, 0.0, static_cast<double>(num_steps - 1)));
  }

  // Adds the share of each step in [from, to).
  void add_interval(std::vector<double>& values, double from, double to) const {
    for (size_t i = at(from); i <= at(to); ++i) {
      const double begin = static_cast<double>(i) * step;
      values[i] += std::max(0.0, std::min(to, begin + step) - std::max(from, begin)) / step;
    }
  }

  size_t num_steps;
  double step;
  std::vector<double> tokens, active, waiting, failed;
};

Json timeline(const Result& result) {
  const auto num_events = static_cast<size_t>(result.summary.total_text_chunks);
  Timeline line(result.run.duration_s,
                std::clamp(num_events / kEventsPerStep, kMinTimeSteps, kMaxTimeSteps));
  for (const Record& record : result.run.records) {
    if (record.sent < 0) continue;
    line.add_interval(line.waiting, record.intended, record.sent);
    line.add_interval(line.active, record.sent, record.end);
    if (!record.is_ok()) line.failed[line.at(record.end)] += 1;
    if (record.first_token < 0 || record.num_text_chunks == 0) continue;
    const double weight = static_cast<double>(record.output_len()) / record.num_text_chunks;
    double at = record.first_token;
    line.tokens[line.at(at)] += weight;
    for (const float gap : record.gaps) {
      at += static_cast<double>(gap);
      line.tokens[line.at(at)] += weight;
    }
  }
  for (double& tokens : line.tokens) tokens /= line.step;
  return {{"step", line.step},
          {"tokens", rounded_list(line.tokens)},
          {"active", rounded_list(line.active)},
          {"waiting", rounded_list(line.waiting)},
          {"failed", rounded_list(line.failed)}};
}

Json bars(const std::vector<const Record*>& sent) {
  Json list = Json::array();
  for (const Record* record : evenly(sent, kShownRequests)) {
    const double first = record->first_token >= 0 ? record->first_token : record->end;
    list.push_back({rounded(record->intended),
                    rounded(record->sent),
                    rounded(first),
                    rounded(record->end),
                    std::string(to_string(record->error))});
  }
  return list;
}

// Returns for each request its stream's tokens per second and its time to first token.
Json dots(const std::vector<const Record*>& done) {
  Json list = Json::array();
  for (const Record* record : evenly(done, kShownDots)) {
    const double span = record->latency() - record->ttft();
    const double speed = span > 0 ? static_cast<double>(record->output_len() - 1) / span : 0;
    list.push_back({rounded(1e3 * (record->ttft() + record->queue_time())), rounded(speed)});
  }
  return list;
}

Json metric_rows(const Summary& summary) {
  Json rows = Json::array();
  for (const Metric& metric : summary.metrics) {
    Json percentiles = Json::array();
    for (const auto& [p, value] : metric.ms.percentiles) {
      percentiles.push_back({percentile_word(p), rounded(value)});
    }
    rows.push_back({{"label", metric.label},
                    {"header", metric.header},
                    {"count", metric.ms.count},
                    {"mean", rounded(metric.ms.mean)},
                    {"median", rounded(metric.ms.median)},
                    {"std", rounded(metric.ms.std)},
                    {"min", rounded(metric.ms.min)},
                    {"max", rounded(metric.ms.max)},
                    {"percentiles", std::move(percentiles)}});
  }
  return rows;
}

Json error_rows(const Summary& summary) {
  Json rows = Json::array();
  for (const auto& [kind, count] : summary.errors) {
    rows.push_back({{"kind", std::string(to_string(kind))},
                    {"count", count},
                    {"example", to_valid_utf8(summary.error_examples.at(kind))}});
  }
  return rows;
}

Json sweep_rows(const std::vector<SweepPoint>& sweep) {
  Json rows = Json::array();
  for (const SweepPoint& point : sweep) {
    const Summary& s = point.summary;
    const auto& ttft = s.find("ttft_including_client_queue")->ms;
    const auto& e2el = s.find("e2el_including_client_queue")->ms;
    rows.push_back({{"rate", std::isinf(point.rate) ? Json(nullptr) : Json(rounded(point.rate))},
                    {"sustained", point.is_sustained},
                    {"failed", s.failed},
                    {"requests", rounded(s.request_throughput)},
                    {"tokens", rounded(s.output_throughput)},
                    {"ttft", {rounded(ttft.median), rounded(ttft.percentiles.back().second)}},
                    {"tpot", rounded(s.find("tpot")->ms.median)},
                    {"e2el", {rounded(e2el.median), rounded(e2el.percentiles.back().second)}},
                    {"p", percentile_word(ttft.percentiles.back().first)}});
  }
  return rows;
}

std::string load_text(const Result& result) {
  const ResultLabels& labels = result.labels;
  char rate[64];
  std::snprintf(rate, sizeof rate, "%.4g requests/s", result.options.request_rate);
  std::string text = std::isinf(result.options.request_rate) ? "all requests at once" : rate;
  if (labels.max_concurrency) {
    text += ", at most " + std::to_string(*labels.max_concurrency) + " at a time";
  }
  return text;
}

}  // namespace

std::string html_report(const Result& result, const std::vector<SweepPoint>& sweep) {
  std::vector<const Record*> done;
  std::vector<const Record*> sent;
  for (const Record& record : result.run.records) {
    if (record.is_ok()) done.push_back(&record);
    if (record.sent >= 0) sent.push_back(&record);
  }
  const Summary& summary = result.summary;
  Json data = {{"model", to_valid_utf8(result.labels.model_id)},
               {"date", result.labels.date},
               {"server", to_valid_utf8(result.labels.base_url)},
               {"dataset", result.labels.dataset},
               {"load", load_text(result)},
               {"seed", result.labels.seed},
               {"duration", rounded(summary.duration_s)},
               {"completed", summary.completed},
               {"failed", summary.failed},
               {"interrupted", result.run.is_interrupted},
               {"requests", rounded(summary.request_throughput)},
               {"tokens", rounded(summary.output_throughput)},
               {"inputTokens", summary.total_input_tokens},
               {"outputTokens", summary.total_output_tokens},
               {"peak", summary.max_concurrent_requests},
               {"cpu", rounded(result.run.cpu_s / std::max(result.run.duration_s, 1e-9))},
               {"goodput",
                summary.request_goodput ? Json(rounded(*summary.request_goodput)) : Json(nullptr)},
               {"withoutUsage", summary.without_usage},
               {"disagree", summary.chunk_disagreements},
               {"short", summary.short_answers},
               {"numRecords", sent.size()}};
  data["metrics"] = metric_rows(summary);
  data["errors"] = error_rows(summary);
  data["curves"] = curves(done);
  data["timeline"] = timeline(result);
  data["bars"] = bars(sent);
  data["dots"] = dots(done);
  data["sweep"] = sweep_rows(sweep);
  std::string json = data.dump();
  // "</script>" in a message would end the element that holds the data.
  for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) {
    json.replace(at, 1, "\\u003c");
  }
  std::string page = kReportPage;
  static constexpr std::string_view kPlace = "{{DATA}}";
  return page.replace(page.find(kPlace), kPlace.size(), json);
}

}  // namespace sluice::load
