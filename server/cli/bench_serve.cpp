// SPDX-License-Identifier: Apache-2.0
// `sluice bench serve`: asks the server what it must know, runs the load, shows and saves what came
// of it. A run with failed requests ends with an error, after its report.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/cli/bench_report.h"
#include "server/cli/command.h"
#include "server/load/arrivals.h"
#include "server/load/load_run.h"
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

class BenchServe {
 public:
  explicit BenchServe(const BenchServeOptions& options)
      : options_(options), data_(dataset_options(options.data)) {}

  Expected<void> run() {
    SLUICE_TRY_VOID(prepare());
    SLUICE_TRY_VOID(warm_up());
    std::signal(SIGINT, on_interrupt);
    if (options_.sweep > 0) return run_sweep();
    SLUICE_TRY(const load::Result result, measure(options_.request_rate, *dataset_));
    SLUICE_TRY_VOID(publish(result, {}));
    return verdict(result);
  }

 private:
  Expected<void> prepare() {
    SLUICE_TRY(report_, BenchReport::create(options_.result, data_));
    const bool ramp = !options_.ramp_strategy.empty();
    if (ramp != (options_.ramp_start > 0) || ramp != (options_.ramp_end > 0)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps belong "
                        "together",
                        "ramp-up-strategy");
    }
    base_url_ = options_.base_url;
    if (base_url_.empty()) {
      const bool is_v6 = options_.host.find(':') != std::string::npos;
      base_url_ = "http://" + (is_v6 ? "[" + options_.host + "]" : options_.host) + ":" +
                  std::to_string(options_.port);
    }
    SLUICE_TRY(server_.address, client::parse_base_url(base_url_));
    if (options_.insecure) server_.verification = client::Verification::kNone;
    SLUICE_TRY_VOID(make_format());
    SLUICE_TRY_VOID(wait_until_ready());
    SLUICE_TRY_VOID(choose_model());
    SLUICE_TRY(dataset_, make_dataset(data_.seed, data_.num_prompts));
    return {};
  }

  Expected<void> make_format() {
    request_ = options_.request;
    const bool chat = options_.backend == "openai-chat";
    const bool vectors = options_.backend == "openai-embeddings";
    request_.api = chat      ? load::Api::kChat
                   : vectors ? load::Api::kEmbeddings
                             : load::Api::kCompletions;
    request_.endpoint = !options_.endpoint.empty() ? options_.endpoint
                        : chat                     ? "/v1/chat/completions"
                        : vectors                  ? "/v1/embeddings"
                                                   : "/v1/completions";
    if (!request_.endpoint.starts_with('/')) request_.endpoint.insert(0, "/");
    if (const char* key = std::getenv("OPENAI_API_KEY"); key != nullptr) request_.api_key = key;
    // Random prompts say nothing that an answer could end with.
    const std::string& name = data_.name;
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
    load::DatasetOptions data = data_;
    data.seed = seed;
    data.num_prompts = num_prompts;
    if (options_.data.vocab_size > 0 && request_.api == load::Api::kCompletions) {
      vocabulary_.vocab_size = options_.data.vocab_size;
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
    SLUICE_TRY(const auto dataset, make_dataset(~data_.seed, count));
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
    arrivals.seed = data_.seed;
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
      SLUICE_TRY(const auto dataset, make_dataset(data_.seed + run++, data_.num_prompts));
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
    SLUICE_TRY_VOID(publish(swept.best, swept.points));
    return verdict(swept.best);
  }

  load::MetricValues server_metrics() {
    const auto answer = fetch(server_, format_->get("/metrics"), kAskTimeout);
    return answer ? load::parse_metrics(*answer) : load::MetricValues{};
  }

  Expected<load::Result> measure(double rate, const load::Dataset& dataset) {
    const std::vector<double> arrivals = plan(rate, dataset);
    load::Result result = report_->make_result();
    add_labels(result.labels);
    // A trace or a ramp has a rate too, though none that was configured.
    if (!arrivals.empty() && arrivals.back() > 0) {
      result.options.request_rate =
          std::isinf(rate) ? static_cast<double>(arrivals.size()) / arrivals.back() : rate;
    }
    result.options.warmup_s = options_.warmup_s;
    result.options.cooldown_s = options_.cooldown_s;
    load::RunOptions run;
    run.max_concurrency = options_.max_concurrency.value_or(0);
    run.timeout_s = options_.timeout_s;
    run.keep_text = options_.result.save_detailed;
    run.stop = &g_stop;
    run.on_progress = report_->progress();
    const load::MetricValues before = server_metrics();
    SLUICE_TRY(result.run, load::run_load(server_, *format_, dataset, arrivals, run));
    if (run.on_progress) BenchReport::clear_progress();
    result.server_metrics = load::compare_metrics(before, server_metrics());
    result.summary = load::summarize(result.run.records, result.run.duration_s, result.options);
    return result;
  }

  void add_labels(load::ResultLabels& labels) const {
    labels.backend = options_.backend;
    labels.model_id = request_.model;
    labels.tokenizer_id = options_.tokenizer.empty() ? request_.model : options_.tokenizer;
    labels.base_url = base_url_;
    labels.burstiness = options_.burstiness;
    labels.max_concurrency = options_.max_concurrency;
    labels.ramp_strategy = options_.ramp_strategy;
    labels.ramp_start = options_.ramp_start;
    labels.ramp_end = options_.ramp_end;
  }

  Expected<void> publish(const load::Result& result,
                         const std::vector<load::SweepPoint>& sweep) const {
    char rate[32];
    std::snprintf(rate, sizeof rate, "%g", options_.request_rate);
    std::string stem = std::string(rate) + "qps";
    if (options_.max_concurrency) {
      stem += "-concurrency" + std::to_string(*options_.max_concurrency);
    }
    return report_->publish(result, sweep, stem, nlohmann::ordered_json::object());
  }

  const BenchServeOptions& options_;
  const load::DatasetOptions data_;
  std::optional<BenchReport> report_;
  std::string base_url_;
  Server server_;
  load::RequestOptions request_;
  std::optional<load::RequestFormat> format_;
  load::PromptVocabulary vocabulary_;
  std::unique_ptr<load::Dataset> dataset_;
};

}  // namespace

Expected<void> run_bench_serve(const Invocation& invocation) {
  return BenchServe(invocation.bench_serve).run();
}

}  // namespace sluice
