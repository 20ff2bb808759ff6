// SPDX-License-Identifier: Apache-2.0
// `sluice bench serve`: asks the server what it must know, runs the load, shows and saves what came
// of it. A run with failed requests ends with an error, after its report.
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/cli/command.h"
#include "server/load/arrivals.h"
#include "server/load/load_run.h"
#include "server/load/report_html.h"
#include "server/load/result.h"
#include "server/load/sweep.h"

namespace sluice {
namespace {

using load::fetch;
using load::Server;

constexpr double kAskTimeout = 10;  // seconds, for what is asked before and after the run
constexpr int kRetryMs = 500;

std::atomic<bool> g_stop = false;  // set by the signal handler, which can reach nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

// The second Ctrl-C ends the process.
void on_interrupt(int) {
  g_stop = true;
  std::signal(SIGINT, SIG_DFL);
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &parts);
  return text;
}

struct NamedValue {
  std::string name;
  std::string value;
};

Expected<NamedValue> split_at(const std::string& text, char separator, const char* flag) {
  const size_t at = text.find(separator);
  if (at == std::string::npos || at == 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        std::string(flag) + " must be NAME" + separator + "VALUE, got \"" + text + "\"");
  }
  return NamedValue{text.substr(0, at), text.substr(at + 1)};
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
                        "--goodput takes ttft:MS, tpot:MS and e2el:MS, got \"" + pair + "\"");
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
                      "--percentile-metrics knows" + list + "; got \"" + name + "\"");
  }
  return {};
}

class BenchServe {
 public:
  explicit BenchServe(const BenchServeOptions& options) : options_(options) {}

  Expected<void> run() {
    SLUICE_TRY_VOID(prepare());
    SLUICE_TRY_VOID(warm_up());
    std::signal(SIGINT, on_interrupt);
    if (options_.sweep > 0) return run_sweep();
    SLUICE_TRY(const load::Result result, measure(options_.request_rate, *dataset_));
    SLUICE_TRY_VOID(show(result, {}));
    return verdict(result);
  }

 private:
  Expected<void> prepare() {
    SLUICE_TRY(goal_, parse_goal(options_.goodput));
    SLUICE_TRY_VOID(check_metric_names(options_.percentile_metrics));
    const bool ramp = !options_.ramp_strategy.empty();
    if (ramp != (options_.ramp_start > 0) || ramp != (options_.ramp_end > 0)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps belong "
                        "together");
    }
    base_url_ = options_.base_url;
    if (base_url_.empty()) {
      const bool is_v6 = options_.host.find(':') != std::string::npos;
      base_url_ = "http://" + (is_v6 ? "[" + options_.host + "]" : options_.host) + ":" +
                  std::to_string(options_.port);
    }
    SLUICE_TRY(server_.address, load::parse_base_url(base_url_));
    if (options_.insecure) server_.verification = load::Verification::kNone;
    SLUICE_TRY_VOID(make_format());
    SLUICE_TRY_VOID(wait_until_ready());
    SLUICE_TRY_VOID(choose_model());
    SLUICE_TRY(dataset_, make_dataset(options_.dataset.seed, options_.dataset.num_prompts));
    return {};
  }

  Expected<void> make_format() {
    request_ = options_.request;
    const bool chat = options_.backend == "openai-chat";
    request_.api = chat ? load::Api::kChat : load::Api::kCompletions;
    request_.endpoint = !options_.endpoint.empty() ? options_.endpoint
                        : chat                     ? "/v1/chat/completions"
                                                   : "/v1/completions";
    if (!request_.endpoint.starts_with('/')) request_.endpoint.insert(0, "/");
    if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr) request_.api_key = key;
    // Random prompts say nothing that an answer could end with.
    const std::string& name = options_.dataset.name;
    if (name != "sharegpt" && name != "custom") request_.ignore_eos = true;
    for (const std::string& header : options_.headers) {
      SLUICE_TRY(const NamedValue named, split_at(header, '=', "--header"));
      request_.headers.push_back(named.name + ": " + named.value);
    }
    SLUICE_TRY(format_, load::RequestFormat::create(request_, server_.address));
    return {};
  }

  Expected<void> wait_until_ready() {
    if (options_.ready_timeout_s <= 0) return {};
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::duration<double>(options_.ready_timeout_s);
    while (true) {
      const auto answer = fetch(server_, format_->get("/v1/models"), kAskTimeout);
      if (answer) return {};
      if (std::chrono::steady_clock::now() > limit) {
        return make_error(ErrorCode::kUnavailable,
                          base_url_ + " is not ready: " + answer.error().message);
      }
      ::poll(nullptr, 0, kRetryMs);
    }
  }

  Expected<void> choose_model() {
    if (!request_.model.empty()) return {};
    const auto answer = fetch(server_, format_->get("/v1/models"), kAskTimeout);
    if (!answer) {
      return make_error(ErrorCode::kUnavailable,
                        base_url_ + "/v1/models: " + answer.error().message);
    }
    const auto json = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
    const auto pointer = nlohmann::json::json_pointer("/data/0/id");
    if (json.is_discarded() || !json.contains(pointer) || !json[pointer].is_string()) {
      return make_error(ErrorCode::kUnavailable, base_url_ + "/v1/models names no model");
    }
    request_.model = json[pointer].get<std::string>();
    SLUICE_TRY(format_, load::RequestFormat::create(request_, server_.address));
    return {};
  }

  // The server's ids of common words, so that a prompt has exactly the tokens that were asked for.
  // vLLM's and our tokenizer API, then llama-server's; without either prompts are words.
  void learn_vocabulary() {
    if (request_.api == load::Api::kChat || !vocabulary_.ids.empty()) return;
    const nlohmann::json ours = {
        {"model", request_.model}, {"prompt", load::kPromptWords}, {"add_special_tokens", false}};
    for (const auto& body : {ours, nlohmann::json{{"content", load::kPromptWords}}}) {
      const auto answer = fetch(server_, format_->post_json("/tokenize", body.dump()), kAskTimeout);
      if (!answer) continue;
      const auto json = nlohmann::json::parse(*answer, nullptr, /*allow_exceptions=*/false);
      if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) continue;
      for (const auto& id : json["tokens"]) {
        if (id.is_number_integer()) vocabulary_.ids.push_back(id.get<int32_t>());
      }
      if (!vocabulary_.ids.empty()) return;
    }
  }

  Expected<std::unique_ptr<load::Dataset>> make_dataset(uint64_t seed, size_t num_prompts) {
    load::DatasetOptions data = options_.dataset;
    data.seed = seed;
    data.num_prompts = num_prompts;
    if (options_.input_len) {
      data.input_len = *options_.input_len;
      data.repetition_suffix_len = *options_.input_len;
    }
    const auto output_len = options_.output_len ? options_.output_len : options_.file_output_len;
    if (output_len) {
      data.output_len = *output_len;
      data.repetition_output_len = *output_len;
      data.has_output_len = true;
    }
    if (options_.vocab_size > 0 && request_.api == load::Api::kCompletions) {
      vocabulary_.vocab_size = options_.vocab_size;
    } else {
      learn_vocabulary();
    }
    data.vocabulary = vocabulary_;
    return load::create_dataset(data);
  }

  Expected<void> warm_up() {
    if (options_.num_warmups == 0) return {};
    const auto count = static_cast<size_t>(options_.num_warmups);
    // Other prompts than the measured ones: those must not be in the server's cache.
    SLUICE_TRY(const auto dataset, make_dataset(~options_.dataset.seed, count));
    load::RunOptions run;
    run.max_concurrency = options_.max_concurrency.value_or(0);
    run.timeout_s = options_.timeout_s;
    const std::vector<double> arrivals(std::min(count, dataset->size()), 0.0);
    SLUICE_TRY(const auto done, load::run_load(server_, *format_, *dataset, arrivals, run));
    for (const load::Record& record : done.records) {
      if (!record.is_ok()) {
        return make_error(ErrorCode::kUnavailable,
                          "a warm-up request failed: " + record.error_message);
      }
    }
    return {};
  }

  std::vector<double> plan(double rate, const load::Dataset& dataset) const {
    const std::vector<double> own = dataset.arrivals();
    const bool ramp = !options_.ramp_strategy.empty();
    if (!own.empty() && !options_.has_request_rate && !ramp) return own;
    load::ArrivalPlan arrivals;
    arrivals.count = dataset.size();
    arrivals.rate = rate;
    arrivals.burstiness = options_.burstiness;
    arrivals.seed = options_.dataset.seed;
    if (ramp) {
      arrivals.ramp =
          options_.ramp_strategy == "linear" ? load::Ramp::kLinear : load::Ramp::kExponential;
      arrivals.ramp_start = options_.ramp_start;
      arrivals.ramp_end = options_.ramp_end;
    }
    return load::plan_arrivals(arrivals);
  }

  // Each rate asks other prompts, so that none finds those of the one before in the server's cache.
  Expected<void> run_sweep() {
    uint64_t run = 0;
    std::printf("%-22s %12s %12s %14s %10s\n",
                "offered, requests/s",
                "answered",
                "tokens/s",
                "median TTFT ms",
                "kept up");
    const auto at_rate = [&](double rate) -> Expected<load::Result> {
      SLUICE_TRY(const auto dataset,
                 make_dataset(options_.dataset.seed + run++, options_.dataset.num_prompts));
      return measure(rate, *dataset);
    };
    SLUICE_TRY(const load::SweepResult swept, load::sweep_rates(options_.sweep, at_rate));
    for (const load::SweepPoint& point : swept.points) {
      std::printf("%-22.3f %12.3f %12.1f %14.2f %10s\n",
                  point.rate,
                  point.summary.request_throughput,
                  point.summary.output_throughput,
                  point.summary.find("ttft_including_client_queue")->ms.median,
                  point.is_sustained ? "yes" : "no");
    }
    SLUICE_TRY_VOID(show(swept.best, swept.points));
    return verdict(swept.best);
  }

  load::MetricValues server_metrics() {
    const auto answer = fetch(server_, format_->get("/metrics"), kAskTimeout);
    return answer ? load::parse_metrics(*answer) : load::MetricValues{};
  }

  Expected<load::Result> measure(double rate, const load::Dataset& dataset) {
    const std::vector<double> arrivals = plan(rate, dataset);
    load::Result result;
    result.options.percentiles = options_.metric_percentiles;
    result.options.goal = goal_;
    // A trace or a ramp has a rate too, though none that was configured.
    if (!arrivals.empty() && arrivals.back() > 0) {
      result.options.request_rate =
          std::isinf(rate) ? static_cast<double>(arrivals.size()) / arrivals.back() : rate;
    }
    result.options.warmup_s = options_.warmup_s;
    result.options.cooldown_s = options_.cooldown_s;
    result.shown_metrics = options_.percentile_metrics;
    SLUICE_TRY(result.labels, make_labels());
    load::RunOptions run;
    run.max_concurrency = options_.max_concurrency.value_or(0);
    run.timeout_s = options_.timeout_s;
    run.keep_text = options_.save_detailed;
    run.stop = &g_stop;
    if (!options_.disable_progress && isatty(STDERR_FILENO) != 0) run.on_progress = show_progress;
    const load::MetricValues before = server_metrics();
    SLUICE_TRY(result.run, load::run_load(server_, *format_, dataset, arrivals, run));
    if (run.on_progress) std::fputs("\r\033[K", stderr);
    result.server_metrics = load::compare_metrics(before, server_metrics());
    result.summary = load::summarize(result.run.records, result.run.duration_s, result.options);
    return result;
  }

  static void show_progress(const load::Progress& progress) {
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

  Expected<load::ResultLabels> make_labels() const {
    load::ResultLabels labels;
    labels.date = date_now();
    labels.backend = options_.backend;
    labels.label = options_.label;
    labels.model_id = request_.model;
    labels.tokenizer_id = options_.tokenizer.empty() ? request_.model : options_.tokenizer;
    labels.dataset = options_.dataset.name;
    labels.base_url = base_url_;
    labels.num_prompts = options_.dataset.num_prompts;
    labels.burstiness = options_.burstiness;
    labels.max_concurrency = options_.max_concurrency;
    labels.ramp_strategy = options_.ramp_strategy;
    labels.ramp_start = options_.ramp_start;
    labels.ramp_end = options_.ramp_end;
    labels.seed = options_.dataset.seed;
    for (const std::string& item : options_.metadata) {
      SLUICE_TRY(const NamedValue named, split_at(item, '=', "--metadata"));
      labels.metadata.emplace_back(named.name, named.value);
    }
    return labels;
  }

  Expected<void> show(const load::Result& result,
                      const std::vector<load::SweepPoint>& sweep) const {
    std::fputs(load::console_block(result).c_str(), stdout);
    std::fflush(stdout);
    if (!options_.html.empty()) {
      SLUICE_TRY_VOID(write_text_file(options_.html, load::html_report(result, sweep)));
    }
    if (!options_.save_result && !options_.append_result && !options_.save_detailed) return {};
    const auto detail = options_.save_detailed ? load::Detail::kRequests : load::Detail::kSummary;
    SLUICE_TRY(const std::string path, result_path(result));
    auto json = load::result_json(result, detail);
    for (const load::SweepPoint& point : sweep) {
      const load::Summary& summary = point.summary;
      json["sweep"].push_back({{"request_rate",
                                std::isinf(point.rate) ? nlohmann::ordered_json("inf")
                                                       : nlohmann::ordered_json(point.rate)},
                               {"sustained", point.is_sustained},
                               {"failed", summary.failed},
                               {"request_throughput", summary.request_throughput},
                               {"output_throughput", summary.output_throughput},
                               {"median_ttft_including_client_queue_ms",
                                summary.find("ttft_including_client_queue")->ms.median},
                               {"median_tpot_ms", summary.find("tpot")->ms.median}});
    }
    return write_text_file(path, json.dump() + "\n", options_.append_result);
  }

  Expected<std::string> result_path(const load::Result& result) const {
    std::string name = options_.result_filename;
    if (name.empty()) {
      const std::string& model = request_.model;
      char rate[32];
      std::snprintf(rate, sizeof rate, "%g", options_.request_rate);
      name = (options_.label.empty() ? options_.backend : options_.label) + "-" + rate + "qps";
      if (options_.max_concurrency) {
        name += "-concurrency" + std::to_string(*options_.max_concurrency);
      }
      name += "-" + model.substr(model.rfind('/') + 1) + "-" + result.labels.date + ".json";
    }
    if (options_.result_dir.empty()) return name;
    if (::mkdir(options_.result_dir.c_str(), 0777) != 0 && errno != EEXIST) {
      return make_error(ErrorCode::kNotFound, options_.result_dir + ": " + std::strerror(errno));
    }
    return options_.result_dir + "/" + name;
  }

  static Expected<void> verdict(const load::Result& result) {
    const load::Summary& summary = result.summary;
    if (result.run.is_interrupted) {
      return make_error(ErrorCode::kUnavailable, "interrupted before the load had ended");
    }
    if (summary.failed == 0) return {};
    return make_error(
        ErrorCode::kUnavailable,
        std::to_string(summary.failed) + " of " +
            std::to_string(summary.failed + summary.completed) +
            " requests failed, the first with: " + summary.error_examples.begin()->second);
  }

  const BenchServeOptions& options_;
  std::string base_url_;
  Server server_;
  load::RequestOptions request_;
  std::optional<load::RequestFormat> format_;
  load::PromptVocabulary vocabulary_;
  std::unique_ptr<load::Dataset> dataset_;
  load::Goal goal_;
};

}  // namespace

Expected<void> run_bench_serve(const Invocation& invocation) {
  return BenchServe(invocation.bench_serve).run();
}

}  // namespace sluice
