// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "server/json/json_writer.h"
#include "server/load/result.h"

namespace sluice::load {
namespace {

using Json = nlohmann::ordered_json;

void add_labels(const Result& result, Json& json) {
  const ResultLabels& labels = result.labels;
  json["date"] = labels.date;
  json["endpoint_type"] = labels.backend;
  json["backend"] = labels.backend;
  json["label"] = labels.label.empty() ? Json(nullptr) : Json(labels.label);
  json["model_id"] = labels.model_id;
  json["tokenizer_id"] = labels.tokenizer_id;
  json["num_prompts"] = labels.num_prompts;
  for (const auto& [name, value] : labels.metadata) json[name] = value;
  const double rate = result.options.request_rate;
  json["request_rate"] = std::isinf(rate) ? Json("inf") : Json(rate);
  json["burstiness"] = std::isinf(labels.burstiness) ? Json("inf") : Json(labels.burstiness);
  json["max_concurrency"] = labels.max_concurrency ? Json(*labels.max_concurrency) : Json(nullptr);
  if (!labels.ramp_strategy.empty()) {
    json["ramp_up_strategy"] = labels.ramp_strategy;
    json["ramp_up_start_rps"] = labels.ramp_start;
    json["ramp_up_end_rps"] = labels.ramp_end;
  }
}

void add_totals(const Summary& summary, Json& json) {
  json["duration"] = summary.duration_s;
  json["completed"] = summary.completed;
  json["failed"] = summary.failed;
  json["total_input_tokens"] = summary.total_input_tokens;
  json["total_output_tokens"] = summary.total_output_tokens;
  json["request_throughput"] = summary.request_throughput;
  json["request_goodput"] =
      summary.request_goodput ? Json(*summary.request_goodput) : Json(nullptr);
  json["output_throughput"] = summary.output_throughput;
  json["total_token_throughput"] = summary.total_token_throughput;
}

void add_requests(const Result& result, Json& json) {
  Json inputs = Json::array(), outputs = Json::array(), ttfts = Json::array(), itls = Json::array(),
       latencies = Json::array(), starts = Json::array(), queues = Json::array(),
       texts = Json::array(), errors = Json::array(), intended = Json::array();
  for (const Record& record : result.run.records) {
    const bool ok = record.is_ok();
    const bool was_sent = record.sent >= 0;
    inputs.push_back(record.input_len());
    outputs.push_back(ok ? record.output_len() : 0);
    ttfts.push_back(ok ? record.ttft() : 0);
    itls.push_back(record.gaps);
    latencies.push_back(was_sent ? record.latency() : 0);
    starts.push_back(record.sent);
    intended.push_back(record.intended);
    queues.push_back(was_sent ? record.queue_time() : 0);
    texts.push_back(Json::parse("\"" + record.text + "\"", nullptr, /*allow_exceptions=*/false));
    if (texts.back().is_discarded()) texts.back() = to_valid_utf8(record.text);
    errors.push_back(ok ? std::string()
                        : std::string(to_string(record.error)) + ": " +
                              to_valid_utf8(record.error_message));
  }
  json["input_lens"] = std::move(inputs);
  json["output_lens"] = std::move(outputs);
  json["ttfts"] = std::move(ttfts);
  json["itls"] = std::move(itls);
  json["latencies"] = std::move(latencies);
  json["start_times"] = std::move(starts);
  json["intended_start_times"] = std::move(intended);
  json["queue_times"] = std::move(queues);
  json["generated_texts"] = std::move(texts);
  json["errors"] = std::move(errors);
}

void add_metrics(const Summary& summary, Json& json) {
  for (const Metric& metric : summary.metrics) {
    const std::string tail = std::string("_") + metric.name + "_ms";
    json["mean" + tail] = metric.ms.mean;
    json["median" + tail] = metric.ms.median;
    json["std" + tail] = metric.ms.std;
    for (const auto& [p, value] : metric.ms.percentiles) {
      json["p" + percentile_word(p) + tail] = value;
    }
  }
}

// Adds the speculation's figures, if the server speculated.
void add_speculation(const std::vector<MetricChange>& changes, Json& json) {
  const std::optional<Speculation> found = speculation_of(changes);
  if (!found) return;
  json["spec_decode_acceptance_rate"] = 100 * found->rate();
  json["spec_decode_acceptance_length"] = found->length();
  json["spec_decode_num_drafts"] = static_cast<int64_t>(found->num_drafts);
  json["spec_decode_draft_tokens"] = static_cast<int64_t>(found->num_draft_tokens);
  json["spec_decode_accepted_tokens"] = static_cast<int64_t>(found->num_accepted_tokens);
  json["spec_decode_per_position_acceptance_rates"] = found->accepted_at;
}

void add_more(const Result& result, Json& json) {
  const Summary& summary = result.summary;
  json["dataset_name"] = result.labels.dataset;
  json["base_url"] = result.labels.base_url;
  json["seed"] = result.labels.seed;
  json["request_goodput_including_client_queue"] =
      summary.request_goodput_including_client_queue
          ? Json(*summary.request_goodput_including_client_queue)
          : Json(nullptr);
  json["warmup_time_s"] = result.options.warmup_s;
  json["cooldown_time_s"] = result.options.cooldown_s;
  json["total_text_chunks"] = summary.total_text_chunks;
  json["total_cached_tokens"] = summary.total_cached_tokens;
  json["requests_without_usage"] = summary.without_usage;
  json["requests_usage_differs_from_chunks"] = summary.chunk_disagreements;
  json["requests_shorter_than_asked"] = summary.short_answers;
  json["client_cpu_seconds"] = result.run.cpu_s;
  json["interrupted"] = result.run.is_interrupted;
  Json errors = Json::object();
  for (const auto& [kind, count] : summary.errors) {
    errors[std::string(to_string(kind))] = {
        {"count", count}, {"example", to_valid_utf8(summary.error_examples.at(kind))}};
  }
  json["error_kinds"] = std::move(errors);
  Json statuses = Json::object();
  for (const auto& [status, count] : summary.statuses) statuses[std::to_string(status)] = count;
  json["error_statuses"] = std::move(statuses);
  if (summary.rate_limited_with_retry_after > 0) {
    json["max_retry_after_s"] = summary.max_retry_after_s;
  }
  Json metrics = Json::object();
  for (const MetricChange& change : result.server_metrics) {
    metrics[to_valid_utf8(change.name)] = {{"before", change.before}, {"after", change.after}};
  }
  json["server_metrics"] = std::move(metrics);
}

}  // namespace

Json result_json(const Result& result, Detail detail) {
  Json json;
  add_labels(result, json);
  add_totals(result.summary, json);
  if (detail == Detail::kRequests) add_requests(result, json);
  json["max_output_tokens_per_s"] = result.summary.max_output_tokens_per_s;
  json["max_concurrent_requests"] = result.summary.max_concurrent_requests;
  add_speculation(result.server_metrics, json);
  add_metrics(result.summary, json);
  add_more(result, json);
  return json;
}

}  // namespace sluice::load
