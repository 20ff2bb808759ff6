// SPDX-License-Identifier: Apache-2.0
#include "server/cli/bench_flags.h"

#include <CLI/CLI.hpp>

namespace sluice {
namespace {

const auto kPositive = CLI::Range(1, 1 << 24);
const auto kSeconds = CLI::Range(0.0, 1e9);

// The options under one heading of --help.
class Group {
 public:
  Group(CLI::App& app, const char* heading) : app_(app), heading_(heading) {}

  template <typename T>
  CLI::Option* option(const char* name, T& value, const char* help, const char* type) {
    return app_.add_option(name, value, help)->type_name(type)->group(heading_);
  }

  void flag(const char* name, bool& value, const char* help) {
    app_.add_flag(name, value, help)->group(heading_);
  }

 private:
  CLI::App& app_;
  const char* heading_;
};

void add_server_flags(CLI::App& app, BenchServeOptions& options) {
  auto& request = options.request;
  Group group(app, "Server");
  group.option("--backend", options.backend, "API to speak [openai]", "NAME")
      ->check(CLI::IsMember({"openai", "vllm", "sluice", "openai-chat", "openai-embeddings"}));
  group.option("--base-url", options.base_url, "Server, instead of --host and --port", "URL");
  group.option("--host", options.host, "Server's address [127.0.0.1]", "TEXT");
  group.option("--port", options.port, "Server's port [8000]", "N")->check(CLI::Range(1, 65535));
  group.option("--endpoint",
               options.endpoint,
               "Path [/v1/completions; openai-chat: /v1/chat/completions; openai-embeddings: "
               "/v1/embeddings]",
               "PATH");
  group.option("--model", request.model, "Model to ask for [the server's first]", "NAME");
  group.option("--served-model-name", request.model, "The same as --model", "NAME");
  group.option(
      "--tokenizer", options.tokenizer, "Name for the result; lengths are the server's", "NAME");
  group.option("--header", options.headers, "More headers of each request", "NAME=VALUE...");
  group
      .option("--ready-check-timeout-sec",
              options.ready_timeout_s,
              "Wait so long for the server [0]",
              "s")
      ->check(kSeconds);
  group
      .option("--timeout-s",
              options.timeout_s,
              "A request without a byte for so long has failed [600]",
              "s")
      ->check(CLI::Range(0.1, 1e9));
  group.flag("--insecure", options.insecure, "Do not verify the server's certificate");
}

// Adds the flags of loads on a server and on an engine in this process.
void add_data_flags(CLI::App& app, BenchDataOptions& options) {
  auto& data = options.dataset;
  Group group(app, "Data");
  std::vector<std::string> names(std::begin(load::kDatasetNames), std::end(load::kDatasetNames));
  group.option("--dataset-name", data.name, "What to ask [random]", "NAME")
      ->check(CLI::IsMember(names));
  group.option("--dataset-path", data.path, "File of the data set", "FILE");
  group.option("--num-prompts", data.num_prompts, "Requests, or conversations [1000]", "N")
      ->check(kPositive);
  group.option("--input-len", options.input_len, "Prompt tokens, whatever the data set", "N")
      ->check(kPositive);
  group.option("--output-len", options.output_len, "Answer tokens, whatever the data set", "N")
      ->check(kPositive);
  group.option("--random-input-len", data.input_len, "Prompt tokens [1024]", "N")->check(kPositive);
  group.option("--random-output-len", data.output_len, "Answer tokens [128]", "N")
      ->check(kPositive);
  group.option("--random-range-ratio", data.range_ratio, "Lengths vary by so much [0]", "0..1")
      ->check(CLI::Range(0.0, 1.0));
  group.option("--random-prefix-len", data.prefix_len, "Tokens that all prompts share [0]", "N")
      ->check(CLI::Range(0, 1 << 24));
  group
      .option(
          "--prefix-repetition-prefix-len", data.repetition_prefix_len, "Of a prefix [256]", "N")
      ->check(kPositive);
  group
      .option(
          "--prefix-repetition-suffix-len", data.repetition_suffix_len, "Of a suffix [256]", "N")
      ->check(kPositive);
  group
      .option(
          "--prefix-repetition-num-prefixes", data.repetition_num_prefixes, "Prefixes [10]", "N")
      ->check(kPositive);
  group
      .option(
          "--prefix-repetition-output-len", data.repetition_output_len, "Answer tokens [128]", "N")
      ->check(kPositive);
  group.option("--sharegpt-output-len", options.file_output_len, "Answer tokens [the file's]", "N")
      ->check(kPositive);
  group
      .option(
          "--custom-output-len", options.file_output_len, "Answer tokens [the file's, or 256]", "N")
      ->check(kPositive);
  group.option("--multi-turn-num-turns", data.num_turns, "Turns of a conversation [4]", "N")
      ->check(kPositive);
  group
      .option(
          "--vocab-size", options.vocab_size, "Random ids are below it [ids of common words]", "N")
      ->check(kPositive);
}

void add_load_flags(CLI::App& app, BenchServeOptions& options) {
  Group group(app, "Load");
  auto& data = options.data.dataset;
  group.option("--seed", data.seed, "Fixes prompts, lengths and arrivals [0]", "N");
  group
      .option(
          "--multi-turn-delay-s", data.turn_delay_s, "Between an answer and the next turn [0]", "s")
      ->check(kSeconds);
  group
      .option("--trace-speedup", data.trace_speedup, "Plays a trace so many times faster [1]", "X")
      ->check(CLI::Range(1e-6, 1e6));
  group
      .option("--request-rate",
              options.request_rate,
              "Arrivals per second; inf: all at once [inf]",
              "X")
      ->check(CLI::Range(1e-9, std::numeric_limits<double>::infinity()))
      ->each([&options](const std::string&) { options.has_request_rate = true; });
  group.option("--burstiness", options.burstiness, "Shape of the gamma gaps; 1: Poisson [1]", "X")
      ->check(CLI::Range(1e-9, std::numeric_limits<double>::infinity()));
  group.option("--max-concurrency", options.max_concurrency, "Requests under way at most", "N")
      ->check(kPositive);
  group.option("--ramp-up-strategy", options.ramp_strategy, "The rate grows", "linear|exponential")
      ->check(CLI::IsMember({"linear", "exponential"}));
  group.option("--ramp-up-start-rps", options.ramp_start, "Rate of the first requests", "X")
      ->check(CLI::Range(1e-9, 1e9));
  group.option("--ramp-up-end-rps", options.ramp_end, "Rate of the last ones", "X")
      ->check(CLI::Range(1e-9, 1e9));
  group.option("--num-warmups", options.num_warmups, "Requests before the measurement [0]", "N")
      ->check(CLI::Range(0, 1 << 24));
  group.option("--warmup-time-s", options.warmup_s, "Starts left out at the beginning [0]", "s")
      ->check(kSeconds);
  group.option("--cooldown-time-s", options.cooldown_s, "Left out before the last start [0]", "s")
      ->check(kSeconds);
  group
      .option(
          "--sweep", options.sweep, "Finds the highest rate kept up with, by so many [0: no]", "N")
      ->check(CLI::Range(2, 64));
}

void add_sampling_flags(CLI::App& app, load::RequestOptions& request) {
  Group group(app, "Request");
  group.flag("--ignore-eos", request.ignore_eos, "Answers have their full length");
  group.option("--temperature", request.temperature, "[the server's]", "X");
  group.option("--top-p", request.top_p, "[the server's]", "X");
  group.option("--top-k", request.top_k, "[the server's]", "X");
  group.option("--min-p", request.min_p, "[the server's]", "X");
  group.option("--repetition-penalty", request.repetition_penalty, "[the server's]", "X");
  group.option("--presence-penalty", request.presence_penalty, "[the server's]", "X");
  group.option("--frequency-penalty", request.frequency_penalty, "[the server's]", "X");
  group.option("--logprobs", request.logprobs, "Alternatives with each token [none]", "X");
  group.option("--extra-body", request.extra_body, "More members of each request", "JSON");
}

void add_result_flags(CLI::App& app, BenchResultOptions& options) {
  Group group(app, "Result");
  group
      .option(
          "--percentile-metrics", options.percentile_metrics, "Shown [ttft,tpot,itl]", "NAME,...")
      ->delimiter(',');
  group.option("--metric-percentiles", options.metric_percentiles, "[99]", "P,...")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 100.0));
  group.option("--goodput", options.goodput, "Limits in ms of ttft, tpot, e2el", "NAME:MS...");
  group.option("--label", options.label, "Name of the run", "TEXT");
  group.option("--metadata", options.metadata, "More members of the JSON", "NAME=VALUE...");
  group.option("--html", options.html, "Write a report to look at", "FILE");
  group.flag("--save-detailed", options.save_detailed, "Save each request's own figures too");
  group.flag("--disable-tqdm", options.disable_progress, "No progress on standard error");
}

void add_result_file_flags(CLI::App& app, BenchResultOptions& options) {
  Group group(app, "Result");
  group.flag("--save-result", options.save_result, "Write the figures to a JSON file");
  group.flag("--append-result", options.append_result, "Add them to the file as one more line");
  group.option("--result-dir", options.result_dir, "Folder of that file", "DIR");
  group.option("--result-filename", options.result_filename, "Name of that file", "FILE");
}

void add_offline_result_flags(CLI::App& app, BenchResultOptions& options) {
  add_result_flags(app, options);
  Group(app, "Result")
      .option("--output-json", options.result_filename, "Write the figures to this file", "FILE");
}

}  // namespace

void add_bench_flags(CLI::App& app, BenchOptions& bench) {
  Group group(app, "Options");
  group.option("--prefill", bench.prefill_lens, "Prompt lengths to prefill [128,512]", "N,...")
      ->delimiter(',')
      ->check(kPositive);
  group
      .option("--concurrency", bench.concurrencies, "Requests decoded together [1,2,4,8]", "N,...")
      ->delimiter(',')
      ->check(kPositive);
  group
      .option("--context",
              bench.context,
              "Tokens before the prompt of a decode request, computed beforehand [0]",
              "tokens")
      ->check(CLI::NonNegativeNumber);
  group.option("--prompt-len", bench.prompt_len, "Prompt of a decode request [32]", "tokens")
      ->check(kPositive);
  group.option("--output-len", bench.output_len, "Tokens it generates [64]", "tokens")
      ->check(CLI::Range(2, 1 << 24));
  group.option("--rounds", bench.rounds, "Measured rounds; medians are shown [5]", "N")
      ->check(CLI::Range(1, 1000));
  group.option("--json", bench.json_path, "Also write the figures to this file", "FILE");
}

void add_bench_serve_flags(CLI::App& app, BenchServeOptions& options) {
  add_server_flags(app, options);
  add_data_flags(app, options.data);
  add_load_flags(app, options);
  add_sampling_flags(app, options.request);
  add_result_flags(app, options.result);
  add_result_file_flags(app, options.result);
  app.footer("OPENAI_API_KEY in the environment is sent as the bearer token.");
}

void add_bench_throughput_flags(CLI::App& app, BenchOfflineOptions& options) {
  add_data_flags(app, options.data);
  Group group(app, "Load");
  group.option("--n", options.num_choices, "Answers to each prompt [1]", "N")->check(kPositive);
  group.option("--max-concurrency", options.max_concurrency, "Requests under way [all]", "N")
      ->check(kPositive);
  group
      .option("--num-warmups",
              options.num_warmup_requests,
              "Requests, with other prompts, before the measurement [0]",
              "N")
      ->check(CLI::Range(0, 1 << 24));
  add_offline_result_flags(app, options.result);
}

void add_bench_latency_flags(CLI::App& app, BenchOfflineOptions& options) {
  Group group(app, "Load");
  group.option("--input-len", options.input_len, "Tokens of each prompt [32]", "N")
      ->check(kPositive);
  group.option("--output-len", options.output_len, "Tokens of each answer [128]", "N")
      ->check(kPositive);
  group.option("--batch-size", options.batch_size, "Prompts together [8]", "N")->check(kPositive);
  group.option("--n", options.num_choices, "Answers to each prompt [1]", "N")->check(kPositive);
  group
      .option("--num-iters-warmup", options.num_warmups, "Batches before the measurement [10]", "N")
      ->check(CLI::Range(0, 1 << 24));
  group.option("--num-iters", options.num_iterations, "Batches measured [30]", "N")
      ->check(kPositive);
  add_offline_result_flags(app, options.result);
}

void add_bench_mock_flags(CLI::App& app, BenchMockOptions& options) {
  mock::MockScript& script = options.script;
  Group group(app, "Options");
  group.option("--host", options.host, "Address to listen on [127.0.0.1]", "TEXT");
  group.option("--port", options.port, "0 takes a free one [8000]", "N")
      ->check(CLI::Range(0, 65535));
  group.option("--ttft-ms", options.ttft_ms, "Until a request's first event [0]", "ms")
      ->check(kSeconds);
  group.option("--itl-ms", options.itl_ms, "Between two events; 0: as fast as it goes [0]", "ms")
      ->check(kSeconds);
  group.option("--tokens-per-event", script.tokens_per_event, "[1]", "N")->check(kPositive);
  group.option("--events-per-write", script.events_per_write, "Sent together [1]", "N")
      ->check(CLI::Range(1, 4096));
  group.option("--slots", script.slots, "Requests served at a time; 0: all [0]", "N")
      ->check(CLI::Range(0, 1 << 24));
  group.option("--stall-at-s", script.stall_at_s, "From the first request on [0]", "s")
      ->check(kSeconds);
  group.option("--stall-for-s", script.stall_for_s, "Nothing is sent for so long [0]", "s")
      ->check(kSeconds);
  group.option(
      "--fault", options.fault, "How requests fail; a wrong name lists all [none]", "NAME");
  group.option("--fault-every", script.fault_every, "Every so many-th request does [1]", "N")
      ->check(kPositive);
}

void add_bench_compare_flags(CLI::App& app, BenchCompareOptions& options) {
  app.add_option("A", options.before, "Result before, as --save-result writes it")
      ->required()
      ->type_name("");
  app.add_option("B", options.after, "Result after")->required()->type_name("");
  Group group(app, "Options");
  group
      .option("--threshold",
              options.threshold,
              "Exit with 1 if a figure is worse by more than so many percent [never]",
              "percent")
      ->check(CLI::NonNegativeNumber);
}

void add_bench_kv_transfer_flags(CLI::App& app, BenchKvTransferOptions& options) {
  KvLinkOptions& link = options.link;
  Group group(app, "Options");
  group.option("--tokens", link.num_tokens, "Of the prompt [4096]", "N")->check(kPositive);
  group.option("--layers", link.num_layers, "[24]", "N")->check(CLI::Range(1, 1024));
  group.option("--kv-heads", link.num_kv_heads, "[2]", "N")->check(CLI::Range(1, 1024));
  group.option("--head-dim", link.head_dim, "[64]", "N")->check(CLI::Range(8, 1024));
  group.option("--block-size", link.block_size, "Tokens in a block [16]", "N")
      ->check(CLI::Range(1, 1024));
  group.option("--slot-bytes", link.slot_bytes, "Of a landing slot [2M]", "bytes")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{4096}, int64_t{1} << 30));
  group.option("--kv-transfer-buffer", link.buffer_bytes, "Of all slots [64M]", "bytes")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{4096}, int64_t{1} << 34));
  group.option("--connections", link.num_connections, "Of TCP [2]", "N")->check(CLI::Range(1, 8));
  group.option("--rounds", link.rounds, "Measured rounds; medians are shown [11]", "N")
      ->check(CLI::Range(1, 1000));
  group.option("--json", options.json_path, "Also write the figures to this file", "FILE");
}

}  // namespace sluice
