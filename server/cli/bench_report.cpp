// SPDX-License-Identifier: Apache-2.0
#include "server/cli/bench_report.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/cli/command.h"

namespace sluice {
namespace {

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

Expected<load::Goal> parse_goal(const std::vector<std::string>& pairs) {
  load::Goal goal;
  for (const std::string& pair : pairs) {
    SLUICE_TRY(const NamedValue named, split_at(pair, ':', "--goodput"));
    double limit = 0;
    const char* end = named.value.data() + named.value.size();
    const auto [stop, error] = std::from_chars(named.value.data(), end, limit);
    std::optional<double>* field = named.name == "ttft"   ? &goal.ttft
                                   : named.name == "tpot" ? &goal.tpot
                                   : named.name == "e2el" ? &goal.e2el
                                                          : nullptr;
    if (field == nullptr || error != std::errc() || stop != end || limit < 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--goodput takes ttft:MS, tpot:MS and e2el:MS, got \"" + pair + "\"",
                        "goodput");
    }
    *field = limit;
  }
  return goal;
}

Expected<void> check_metric_names(const std::vector<std::string>& names) {
  const load::Summary known = load::summarize({}, 1, {});
  for (const std::string& name : names) {
    if (known.find(name) != nullptr) continue;
    std::string list;
    for (const load::Metric& metric : known.metrics) list += std::string(" ") + metric.name;
    return make_error(ErrorCode::kInvalidArgument,
                      "--percentile-metrics knows" + list + "; got \"" + name + "\"",
                      "percentile-metrics");
  }
  return {};
}

void show_progress(const load::Progress& progress) {
  std::fprintf(stderr,
               "\r\033[K%6.1f s  %zu of %zu started, %zu under way, %zu done, %zu failed, %.0f "
               "events/s",
               progress.elapsed_s,
               progress.num_started,
               progress.num_planned,
               progress.num_active,
               progress.num_completed,
               progress.num_failed,
               static_cast<double>(progress.num_chunks) / std::max(progress.elapsed_s, 1e-3));
}

nlohmann::ordered_json sweep_json(const load::SweepPoint& point) {
  const load::Summary& summary = point.summary;
  return {
      {"request_rate",
       std::isinf(point.rate) ? nlohmann::ordered_json("inf") : nlohmann::ordered_json(point.rate)},
      {"sustained", point.is_sustained},
      {"failed", summary.failed},
      {"request_throughput", summary.request_throughput},
      {"output_throughput", summary.output_throughput},
      {"median_ttft_including_client_queue_ms",
       summary.find("ttft_including_client_queue")->ms.median},
      {"median_tpot_ms", summary.find("tpot")->ms.median}};
}

}  // namespace

Expected<NamedValue> split_at(const std::string& text, char separator, const char* flag) {
  const size_t at = text.find(separator);
  if (at == std::string::npos || at == 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        std::string(flag) + " must be NAME" + separator + "VALUE, got \"" + text + "\"",
        flag);
  }
  return NamedValue{text.substr(0, at), text.substr(at + 1)};
}

load::DatasetOptions dataset_options(const BenchDataOptions& options) {
  load::DatasetOptions data = options.dataset;
  if (options.input_len) {
    data.input_len = *options.input_len;
    data.repetition_suffix_len = *options.input_len;
  }
  const auto output_len = options.output_len ? options.output_len : options.file_output_len;
  if (output_len) {
    data.output_len = *output_len;
    data.repetition_output_len = *output_len;
    data.has_output_len = true;
  }
  return data;
}

Expected<BenchReport> BenchReport::create(const BenchResultOptions& options,
                                          const load::DatasetOptions& dataset) {
  BenchReport report(options);
  SLUICE_TRY(report.goal_, parse_goal(options.goodput));
  SLUICE_TRY_VOID(check_metric_names(options.percentile_metrics));
  report.labels_.date = date_now();
  report.labels_.label = options.label;
  report.labels_.dataset = dataset.name;
  report.labels_.num_prompts = dataset.num_prompts;
  report.labels_.seed = dataset.seed;
  for (const std::string& item : options.metadata) {
    SLUICE_TRY(const NamedValue named, split_at(item, '=', "--metadata"));
    report.labels_.metadata.emplace_back(named.name, named.value);
  }
  return report;
}

load::Result BenchReport::make_result() const {
  load::Result result;
  result.labels = labels_;
  result.options.percentiles = options_->metric_percentiles;
  result.options.goal = goal_;
  result.shown_metrics = options_->percentile_metrics;
  return result;
}

std::function<void(const load::Progress&)> BenchReport::progress() const {
  if (options_->disable_progress || isatty(STDERR_FILENO) == 0) return {};
  return show_progress;
}

void BenchReport::clear_progress() {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\033[K", stderr);
}

Expected<void> BenchReport::publish(const load::Result& result,
                                    const std::vector<load::SweepPoint>& sweep,
                                    const std::string& file_stem,
                                    const nlohmann::ordered_json& more) const {
  std::fputs(load::console_block(result).c_str(), stdout);
  std::fflush(stdout);
  if (!options_->html.empty()) {
    SLUICE_TRY_VOID(write_text_file(options_->html, load::html_report(result, sweep)));
  }
  if (!options_->save_result && !options_->append_result && !options_->save_detailed) return {};
  const auto detail = options_->save_detailed ? load::Detail::kRequests : load::Detail::kSummary;
  SLUICE_TRY(const std::string path, json_path(result, file_stem));
  auto json = load::result_json(result, detail);
  json.update(more);
  for (const load::SweepPoint& point : sweep) json["sweep"].push_back(sweep_json(point));
  return write_text_file(path, json.dump() + "\n", options_->append_result);
}

Expected<std::string> BenchReport::json_path(const load::Result& result,
                                             const std::string& file_stem) const {
  std::string name = options_->result_filename;
  if (name.empty()) {
    const std::string& model = result.labels.model_id;
    name = (options_->label.empty() ? result.labels.backend : options_->label) + "-" + file_stem +
           "-" + model.substr(model.rfind('/') + 1) + "-" + result.labels.date + ".json";
  }
  if (options_->result_dir.empty()) return name;
  if (::mkdir(options_->result_dir.c_str(), 0777) != 0 && errno != EEXIST) {
    return make_error(ErrorCode::kNotFound, options_->result_dir + ": " + std::strerror(errno));
  }
  return options_->result_dir + "/" + name;
}

Expected<void> verdict(const load::Result& result) {
  const load::Summary& summary = result.summary;
  if (result.run.is_interrupted) {
    return make_error(ErrorCode::kUnavailable, "interrupted before the load had ended");
  }
  if (summary.failed == 0) return {};
  return make_error(
      ErrorCode::kUnavailable,
      std::to_string(summary.failed) + " of " + std::to_string(summary.failed + summary.completed) +
          " requests failed, the first with: " + summary.error_examples.begin()->second);
}

}  // namespace sluice
