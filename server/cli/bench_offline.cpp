// SPDX-License-Identifier: Apache-2.0
// `sluice bench throughput`: a data set at the engine's full speed. `sluice bench latency`: batches
// of one size, one after the other. Both run without HTTP, with the data sets and the output of
// `bench serve`, plus the lines and JSON keys of `vllm bench throughput` and `latency`. Answers
// have their full length, like vLLM's: their contents are not measured.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/core/times.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/front/choice_seed.h"
#include "server/cli/bench_report.h"
#include "server/cli/command.h"
#include "server/cli/offline_run.h"
#include "server/json/json_writer.h"
#include "server/load/request_format.h"

namespace sluice {
namespace {

using Time = OfflineAnswer::Time;
using Json = nlohmann::ordered_json;

// Returns ids of common words, which `bench serve` asks a server for.
Expected<load::PromptVocabulary> prompt_vocabulary(const Tokenizer& tokenizer, int32_t vocab_size) {
  load::PromptVocabulary vocabulary;
  vocabulary.vocab_size = vocab_size;
  if (vocab_size == 0) {
    SLUICE_TRY_VOID(tokenizer.encode(load::kPromptWords, SpecialText::kText, vocabulary.ids));
  }
  return vocabulary;
}

class OfflineLoad {
 public:
  // Makes `num_choices` conversations with each sample of `data`.
  static Expected<OfflineLoad> create(Engine& engine,
                                      const Invocation& invocation,
                                      load::DatasetOptions data) {
    const BenchOfflineOptions& options = invocation.bench_offline;
    SLUICE_TRY(data.vocabulary,
               prompt_vocabulary(engine.tokenizer(), options.data.vocab_size));
    OfflineLoad offline(engine, options, data.seed);
    SLUICE_TRY(offline.dataset_, load::create_dataset(data));
    return offline;
  }

  [[nodiscard]] size_t num_conversations() const {
    return dataset_->size() * static_cast<size_t>(options_->num_choices);
  }

  // Runs conversations [first, first + count) into records whose times count from `epoch`.
  Expected<std::vector<load::Record>> run(size_t first,
                                          size_t count,
                                          Time epoch,
                                          const OfflineOptions& how) {
    const auto source = [this, first](size_t index, const Conversation& before) {
      return next_turn(first + index, before);
    };
    SLUICE_TRY(const auto conversations, run_offline(*engine_, count, source, how));
    std::vector<load::Record> records;
    for (size_t i = 0; i < count; ++i) {
      for (size_t turn = 0; turn < conversations[i].size(); ++turn) {
        records.push_back(to_record(conversations[i][turn], epoch));
        records.back().sample = static_cast<int32_t>(first + i);
        records.back().turn = static_cast<int32_t>(turn);
      }
    }
    return records;
  }

 private:
  OfflineLoad(Engine& engine, const BenchOfflineOptions& options, uint64_t seed)
      : engine_(&engine), options_(&options), seed_(seed) {}

  // Continues a conversation with its ids: earlier questions and answers, then the next text.
  Expected<std::optional<OfflineRequest>> next_turn(size_t index, const Conversation& before) {
    const load::Sample sample =
        dataset_->sample(index / static_cast<size_t>(options_->num_choices));
    if (before.size() == sample.turns.size()) return std::nullopt;
    const load::Turn& turn = sample.turns[before.size()];
    const Tokenizer& tokenizer = engine_->tokenizer();
    OfflineRequest request;
    request.sampling = options_->sampling;
    request.sampling.max_tokens = turn.output_len;
    request.sampling.ignore_eos = true;
    request.sampling.seed = choice_seed(seed_, index + 1);
    std::string text = turn.text;
    if (!before.empty()) {
      const OfflineAnswer& last = before.back();
      request.prompt = last.prompt;
      request.prompt.insert(request.prompt.end(), last.tokens.begin(), last.tokens.end());
      if (!text.empty()) text.insert(0, "\n");
    } else if (!text.empty()) {
      request.prompt = tokenizer.prefix_tokens();
    }
    SLUICE_TRY_VOID(tokenizer.encode(text, SpecialText::kParse, request.prompt));
    request.prompt.insert(request.prompt.end(), turn.token_ids.begin(), turn.token_ids.end());
    return request;
  }

  // Makes a record in which each token is an event.
  load::Record to_record(const OfflineAnswer& answer, Time epoch) const {
    load::Record record;
    record.sent = seconds_between(epoch, answer.submitted);
    record.intended = record.sent;
    record.end = seconds_between(epoch, answer.ended);
    record.requested_tokens = answer.max_tokens;
    record.prompt_tokens = static_cast<int64_t>(answer.prompt.size());
    record.completion_tokens = static_cast<int64_t>(answer.tokens.size());
    record.cached_tokens = answer.num_cached_tokens;
    record.num_text_chunks = static_cast<int32_t>(answer.tokens.size());
    if (!answer.times.empty()) {
      record.first_chunk = record.first_token = seconds_between(epoch, answer.times.front());
      record.last_token = seconds_between(epoch, answer.times.back());
    }
    for (size_t i = 1; i < answer.times.size(); ++i) {
      record.gaps.push_back(
          static_cast<float>(seconds_between(answer.times[i - 1], answer.times[i])));
    }
    record.is_finished = record.is_done = answer.finish_reason == FinishReason::kLength;
    if (!record.is_done) {
      record.error = load::ErrorKind::kServerError;
      record.error_message = std::string(to_string(answer.finish_reason)) + " " + answer.error;
    }
    if (options_->result.save_detailed) {
      std::string text;
      for (const TokenId id : answer.tokens) text += engine_->tokenizer().token_bytes(id);
      record.text = load::json_escaped(to_valid_utf8(text));
    }
    return record;
  }

  Engine* engine_;
  const BenchOfflineOptions* options_;
  uint64_t seed_;
  std::unique_ptr<load::Dataset> dataset_;
};

load::Result make_result(const BenchReport& report, const Engine& engine, const char* title) {
  load::Result result = report.make_result();
  result.labels.title = title;
  result.labels.backend = "in-process";
  result.labels.model_id = engine.model().path;
  result.labels.tokenizer_id = engine.model().path;
  result.labels.base_url = "in process, " + engine.model().backend;
  return result;
}

BenchResultOptions result_options(const BenchOfflineOptions& options) {
  BenchResultOptions result = options.result;
  result.save_result = !result.result_filename.empty();
  return result;
}

Expected<void> show_throughput(const BenchReport& report, const load::Result& result) {
  const load::Summary& summary = result.summary;
  const int64_t num_tokens = summary.total_input_tokens + summary.total_output_tokens;
  SLUICE_TRY_VOID(report.publish(result,
                                 {},
                                 "throughput",
                                 Json{{"elapsed_time", summary.duration_s},
                                      {"num_requests", summary.completed},
                                      {"total_num_tokens", num_tokens},
                                      {"requests_per_second", summary.request_throughput},
                                      {"tokens_per_second", summary.total_token_throughput}}));
  std::printf("Throughput: %.2f requests/s, %.2f total tokens/s, %.2f output tokens/s\n",
              summary.request_throughput,
              summary.total_token_throughput,
              summary.output_throughput);
  std::printf("Total num prompt tokens:  %lld\n",
              static_cast<long long>(summary.total_input_tokens));
  std::printf("Total num output tokens:  %lld\n",
              static_cast<long long>(summary.total_output_tokens));
  return verdict(result);
}

Expected<void> show_latency(const BenchReport& report,
                            const load::Result& result,
                            const std::vector<double>& latencies) {
  const load::Distribution spread = load::describe(latencies, {10, 25, 50, 75, 90, 99});
  Json percentiles = Json::object();
  for (const auto& [p, value] : spread.percentiles) {
    percentiles[load::percentile_word(p)] = value;
  }
  // vLLM's name for the seconds of each batch is the requests' own name in the details.
  SLUICE_TRY_VOID(report.publish(
      result,
      {},
      "latency",
      Json{{"avg_latency", spread.mean}, {"latencies", latencies}, {"percentiles", percentiles}}));
  std::printf("Avg latency: %.6f seconds\n", spread.mean);
  for (const auto& [p, value] : spread.percentiles) {
    std::printf("%s%% percentile latency: %.6f seconds\n", load::percentile_word(p).c_str(), value);
  }
  return verdict(result);
}

}  // namespace

Expected<void> run_bench_throughput(const Invocation& invocation) {
  const BenchOfflineOptions& options = invocation.bench_offline;
  load::DatasetOptions data = dataset_options(options.data);
  data.seed = invocation.config.seed;
  const BenchResultOptions outputs = result_options(options);
  SLUICE_TRY(const BenchReport report, BenchReport::create(outputs, data));
  SLUICE_TRY(const auto engine, create_engine(invocation.config));
  SLUICE_TRY(OfflineLoad offline, OfflineLoad::create(*engine, invocation, data));
  OfflineOptions how;
  how.max_concurrency = options.max_concurrency.value_or(0);
  if (options.num_warmup_requests > 0) {
    load::DatasetOptions others = data;
    others.seed = ~data.seed;
    others.num_prompts = static_cast<size_t>(options.num_warmup_requests);
    SLUICE_TRY(OfflineLoad warm_up, OfflineLoad::create(*engine, invocation, others));
    SLUICE_TRY_VOID(
        warm_up.run(0, warm_up.num_conversations(), std::chrono::steady_clock::now(), how));
  }
  how.on_progress = report.progress();
  load::Result result = make_result(report, *engine, "Offline Throughput Result");
  result.labels.max_concurrency = options.max_concurrency;
  SLUICE_TRY(result.run.records,
             offline.run(0, offline.num_conversations(), std::chrono::steady_clock::now(), how));
  BenchReport::clear_progress();
  for (const load::Record& record : result.run.records) {
    result.run.duration_s = std::max(result.run.duration_s, record.end);
  }
  result.summary = load::summarize(result.run.records, result.run.duration_s, result.options);
  return show_throughput(report, result);
}

Expected<void> run_bench_latency(const Invocation& invocation) {
  const BenchOfflineOptions& options = invocation.bench_offline;
  const auto num_batches =
      static_cast<size_t>(options.num_warmups) + static_cast<size_t>(options.num_iterations);
  load::DatasetOptions data;
  data.seed = invocation.config.seed;
  data.input_len = options.input_len;
  data.output_len = options.output_len;
  // Each batch has its own prompts, so that none finds the previous batch's in the cache.
  data.num_prompts = num_batches * static_cast<size_t>(options.batch_size);
  const BenchResultOptions outputs = result_options(options);
  SLUICE_TRY(const BenchReport report, BenchReport::create(outputs, data));
  SLUICE_TRY(const auto engine, create_engine(invocation.config));
  SLUICE_TRY(OfflineLoad offline, OfflineLoad::create(*engine, invocation, data));
  load::Result result = make_result(report, *engine, "Offline Latency Result");
  const size_t batch = offline.num_conversations() / num_batches;
  OfflineOptions how;
  how.on_progress = report.progress();
  std::optional<Time> epoch;
  std::vector<double> latencies;
  for (size_t i = 0; i < num_batches; ++i) {
    const bool is_measured = i >= static_cast<size_t>(options.num_warmups);
    const Time begin = std::chrono::steady_clock::now();
    if (is_measured && !epoch) epoch = begin;
    SLUICE_TRY(const auto records, offline.run(i * batch, batch, epoch.value_or(begin), how));
    if (!is_measured) continue;
    const Time end = std::chrono::steady_clock::now();
    latencies.push_back(seconds_between(begin, end));
    result.run.duration_s = seconds_between(*epoch, end);
    result.run.records.insert(result.run.records.end(), records.begin(), records.end());
  }
  BenchReport::clear_progress();
  result.summary = load::summarize(result.run.records, result.run.duration_s, result.options);
  return show_latency(report, result, latencies);
}

}  // namespace sluice
