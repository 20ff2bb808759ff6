// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "server/cli/command.h"
#include "server/cli/help_text.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

ParsedCommandLine parse(std::vector<const char*> words) {
  words.insert(words.begin(), "sluice");
  return parse_command_line(static_cast<int>(words.size()), words.data());
}

// The line on stderr of a command line that must be refused with exit code 2.
std::string refusal(std::vector<const char*> words) {
  ::testing::internal::CaptureStderr();
  const ParsedCommandLine parsed = parse(std::move(words));
  std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(parsed.invocation.has_value());
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "more than one line: " << line;
  return line;
}

TEST(CommandLine, FlagsOfEveryKindReachTheConfig) {
  const auto parsed = parse({"serve",
                             "model.gguf",
                             "--port=9001",
                             "--max_num_seqs",
                             "8",
                             "--no-enable-prefix-caching",
                             "--api-key",
                             "k,1",
                             "--api-key",
                             "c_d",
                             "--max-model-len",
                             "-1",
                             "--kv-cache-memory",
                             "1Gi",
                             "--isa",
                             "scalar"});
  ASSERT_TRUE(parsed.invocation);
  const Config& config = parsed.invocation->config;
  EXPECT_EQ(parsed.invocation->command, Command::kServe);
  EXPECT_EQ(config.model, "model.gguf");
  EXPECT_EQ(config.port, 9001);
  EXPECT_EQ(config.max_num_seqs, 8);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.api_key, (std::vector<std::string>{"k,1", "c_d"}));
  EXPECT_EQ(config.max_model_len, 0);
  EXPECT_EQ(config.kv_cache_memory, int64_t{1} << 30);
  EXPECT_EQ(config.isa, "scalar");
}

TEST(CommandLine, TheLastOfARepeatedFlagCounts) {
  const auto parsed = parse({"serve",
                             "m",
                             "--port",
                             "1",
                             "--port",
                             "2",
                             "--no-enable-prefix-caching",
                             "--enable-prefix-caching"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.port, 2);
  EXPECT_TRUE(parsed.invocation->config.enable_prefix_caching);
}

TEST(CommandLine, TheLastOfARepeatedFlagCountsInEveryCommand) {
  auto parsed = parse({"chat", "m", "--temperature", "1", "--temperature", "0.5", "--system", "a",
                       "--system", "b", "--config=x", "--config=/dev/null"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->chat.sampling.temperature, 0.5F);
  EXPECT_EQ(parsed.invocation->chat.system, "b");
  parsed = parse({"tokenize", "--model", "a", "--model", "b", "--file", "c", "--file", "d",
                  "--json", "--json"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.model, "b");
  EXPECT_EQ(parsed.invocation->files.file, "d");
  EXPECT_TRUE(parsed.invocation->files.json);
  parsed = parse({"render", "--template=a", "--template=b", "--input=c", "--input=d"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->files.file, "b");
  EXPECT_EQ(parsed.invocation->files.input, "d");
  parsed = parse({"health", "--url", "a", "--url", "b"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->url, "b");
  parsed = parse({"bench", "mock", "--port", "1", "--port", "2"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->bench_mock.port, 2);
  parsed = parse({"bench", "latency", "m", "--batch-size", "1", "--batch-size", "2"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->bench_offline.batch_size, 2);
  parsed = parse({"bench", "kv-transfer", "--tokens", "64", "--slot-bytes", "1M", "--connections", "4"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->bench_kv_transfer.link.num_tokens, 64);
  EXPECT_EQ(parsed.invocation->bench_kv_transfer.link.slot_bytes, 1 << 20);
  EXPECT_EQ(parsed.invocation->bench_kv_transfer.link.num_connections, 4);
  // Lists have the values of both.
  parsed = parse({"bench", "serve", "--num-prompts", "1", "--num-prompts", "2", "--goodput",
                  "ttft:1", "--goodput", "e2el:2", "--backend", "openai", "--backend", "vllm"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->bench_serve.data.dataset.num_prompts, 2U);
  EXPECT_EQ(parsed.invocation->bench_serve.backend, "vllm");
  EXPECT_EQ(parsed.invocation->bench_serve.result.goodput,
            (std::vector<std::string>{"ttft:1", "e2el:2"}));
}

TEST(CommandLine, KeysAreNeverSplit) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("keys.yaml");
  std::ofstream(path) << "api-key: [\"a,b\", c]\n";
  auto parsed = parse({"serve", "m", "--config", path.c_str()});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.api_key, (std::vector<std::string>{"a,b", "c"}));
  setenv("SLUICE_API_KEY", "k,1\n[\"k2\"]", 1);
  parsed = parse({"serve", "m"});
  unsetenv("SLUICE_API_KEY");
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.api_key, (std::vector<std::string>{"k,1", "[\"k2\"]"}));
  const std::string line = refusal({"serve", "m", "--api-key", "secret", "--api-key", ""});
  EXPECT_NE(line.find("--api-key is empty"), std::string::npos) << line;
  EXPECT_EQ(line.find("secret"), std::string::npos) << line;
}

TEST(CommandLine, RefusesFlagsThatExcludeEachOther) {
  std::string line = refusal({"serve", "a.gguf", "--model", "b.gguf"});
  EXPECT_NE(line.find("MODEL is a.gguf and --model is b.gguf"), std::string::npos) << line;
  EXPECT_TRUE(parse({"serve", "a.gguf", "--model", "a.gguf"}).invocation);
  line = refusal({"serve", "m", "--uds", "/tmp/s", "--port", "80", "--dry-run"});
  EXPECT_NE(line.find("--uds and --port exclude each other"), std::string::npos) << line;
  line = refusal({"router", "--workers", "w:1", "--uds=/tmp/s", "--host=::"});
  EXPECT_NE(line.find("--uds and --host exclude each other"), std::string::npos) << line;
  setenv("SLUICE_PORT", "80", 1);  // an image's, which a flag wins over
  EXPECT_TRUE(parse({"serve", "m", "--uds", "/tmp/s"}).invocation);
  unsetenv("SLUICE_PORT");
}

size_t longest_line(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(CommandLine, HelpIsAsWideAsTheTerminal) {
  for (const char* command : {"serve", "chat", "config", "bench-serve"}) {
    for (const char* columns : {"80", "120"}) {
      setenv("COLUMNS", columns, 1);
      ::testing::internal::CaptureStdout();
      parse({command, "--help"});
      const std::string help = ::testing::internal::GetCapturedStdout();
      unsetenv("COLUMNS");
      // A list of choices is one word, which may be longer.
      EXPECT_LE(longest_line(help), std::stoul(columns) + 10) << command << " " << columns;
      EXPECT_GT(longest_line(help), std::stoul(columns) * 3 / 4) << command << " " << columns;
    }
  }
}

TEST(CommandLine, WrappedHelpGoesOnInItsColumn) {
  const std::string text = "Usage of it\n  --flag N    one two three four\n  --other     five\n";
  EXPECT_EQ(wrap_help(text, 24, 14),
            "Usage of it\n  --flag N    one two\n              three four\n  --other     five\n");
  EXPECT_EQ(wrap_help(text, 0, 14), text);
  EXPECT_EQ(wrap_help("aaaa bbbb cccc\n", 9, 40), "aaaa bbbb\ncccc\n");
  EXPECT_EQ(wrap_help("aaaaaaaaaaaaaaaa b\n", 9, 40), "aaaaaaaaaaaaaaaa\nb\n");
}

TEST(CommandLine, HelpShowsTheKnobsThatACommandUses) {
  const auto help_of = [](const char* command) {
    ::testing::internal::CaptureStdout();
    parse({command, "--help"});
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string fetch = help_of("fetch");
  EXPECT_NE(fetch.find("--download-dir"), std::string::npos) << fetch;
  EXPECT_EQ(fetch.find("--max-num-batched-tokens"), std::string::npos) << fetch;
  const std::string chat = help_of("chat");
  EXPECT_NE(chat.find("--threads"), std::string::npos) << chat;
  EXPECT_EQ(chat.find("--tool-call-parser"), std::string::npos) << chat;
  EXPECT_NE(help_of("serve").find("--tool-call-parser"), std::string::npos);
  // Still taken, as one set of flags or one file serves several commands.
  EXPECT_TRUE(parse({"fetch", "m", "--max-num-seqs", "4"}).invocation);
}

TEST(CommandLine, HelpNamesDevicesAndCommandsAsTheyAreWritten) {
  ::testing::internal::CaptureStdout();
  parse({"--help"});
  std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(help.find("on CPUs and NVIDIA GPUs"), std::string::npos) << help;
  for (const char* command : {"bench serve ", "bench throughput ", "bench latency ", "bench mock ",
                              "bench kv-transfer "}) {
    EXPECT_NE(help.find(std::string("  ") + command), std::string::npos) << help;
  }
  EXPECT_EQ(help.find("bench-"), std::string::npos) << help;
  ::testing::internal::CaptureStdout();
  parse({"bench", "serve", "--help"});
  help = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(help.find("sluice bench serve [OPTIONS]"), std::string::npos) << help.substr(0, 200);
  EXPECT_EQ(help.find("bench-serve"), std::string::npos);
  EXPECT_NE(refusal({"bench", "serve", "--nope"}).find("sluice bench serve: "), std::string::npos);
}

TEST(CommandLine, FlagsWinOverEnvironmentAndThatOverYaml) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("config.yaml");
  std::ofstream(path) << "port: 1\nmax-num-seqs: 1\nseed: 1\nmodel: from-yaml\n";
  setenv("SLUICE_PORT", "2", 1);
  setenv("SLUICE_MAX_NUM_SEQS", "2", 1);
  const auto parsed = parse({"serve", "--config", path.c_str(), "--port", "3"});
  unsetenv("SLUICE_PORT");
  unsetenv("SLUICE_MAX_NUM_SEQS");
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.port, 3);
  EXPECT_EQ(parsed.invocation->config.max_num_seqs, 2);
  EXPECT_EQ(parsed.invocation->config.seed, 1U);
  EXPECT_EQ(parsed.invocation->config.model, "from-yaml");
}

TEST(CommandLine, AWrongVariableIsNamedOrRefused) {
  setenv("SLUICE_MAX_NUM_SEQ", "2", 1);
  const auto parsed = parse({"serve", "m"});
  const std::string strict = refusal({"serve", "m", "--strict-env"});
  const auto without_knobs = parse({"version"});
  unsetenv("SLUICE_MAX_NUM_SEQ");
  ASSERT_TRUE(parsed.invocation);
  const std::string expected =
      "unknown variable SLUICE_MAX_NUM_SEQ; did you mean SLUICE_MAX_NUM_SEQS?";
  EXPECT_EQ(parsed.invocation->unknown_variables, std::vector<std::string>{expected});
  EXPECT_NE(strict.find(expected), std::string::npos) << strict;
  ASSERT_TRUE(without_knobs.invocation);
  EXPECT_TRUE(without_knobs.invocation->unknown_variables.empty());
  EXPECT_TRUE(parse({"serve", "m", "--strict-env"}).invocation);
}

TEST(CommandLine, AWrongFlagNamesTheNearestRightOne) {
  EXPECT_NE(refusal({"serve", "m", "--prot", "80"}).find("--prot; did you mean --port?"),
            std::string::npos);
  EXPECT_NE(refusal({"serve", "--max_num_seq=8", "m"})
                .find("--max-num-seq; did you mean --max-num-seqs?"),
            std::string::npos);
  EXPECT_NE(refusal({"serve", "m", "--no-enable-prefix-cache"})
                .find("did you mean --no-enable-prefix-caching?"),
            std::string::npos);
  const std::string far = refusal({"serve", "m", "--xyzzy-quux"});
  EXPECT_NE(far.find("unknown flag --xyzzy-quux"), std::string::npos);
  EXPECT_EQ(far.find("did you mean"), std::string::npos);
  EXPECT_NE(refusal({"chat", "m", "--port", "80"}).find("unknown flag --port"), std::string::npos);
}

TEST(CommandLine, AWrongCommandNamesTheNearestRightOne) {
  EXPECT_NE(refusal({"sreve", "m"}).find("unknown command sreve; did you mean serve?"),
            std::string::npos);
  EXPECT_NE(refusal({}).find("needs a command"), std::string::npos);
}

TEST(CommandLine, ValuesOutOfRangeNameFlagRuleAndValue) {
  EXPECT_NE(refusal({"serve", "m", "--port", "70000"})
                .find("--port must be an integer in [0, 65535], got \"70000\""),
            std::string::npos);
  EXPECT_NE(
      refusal({"chat", "m", "--temperature", "3"}).find("temperature must be in [0, 2], got 3."),
      std::string::npos);
  EXPECT_NE(refusal({"chat", "m", "--top-p", "much"}).find("--top-p must be a number"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "m", "--concurrency", "1,0"}).find("0"), std::string::npos);
}

TEST(CommandLine, MissingAndSurplusArgumentsAreRefused) {
  EXPECT_NE(refusal({"serve"}).find("needs a model"), std::string::npos);
  EXPECT_NE(refusal({"serve", "a", "b"}).find("unexpected argument \"b\""), std::string::npos);
  EXPECT_NE(refusal({"serve", "m", "--port"}).find("--port"), std::string::npos);
  EXPECT_NE(refusal({"render", "--template", "t"}).find("--input"), std::string::npos);
  EXPECT_NE(refusal({"serve", "m", "--config", "/nowhere.yaml"}).find("/nowhere.yaml"),
            std::string::npos);
}

TEST(CommandLine, FlagOfTheVersionIsTheCommand) {
  for (const char* word : {"version", "--version", "-V"}) {
    const auto parsed = parse({word});
    ASSERT_TRUE(parsed.invocation.has_value()) << word;
    EXPECT_EQ(parsed.invocation->command, Command::kVersion) << word;
    EXPECT_FALSE(parsed.invocation->short_version) << word;
  }
}

TEST(CommandLine, EveryCommandPrintsHelpAndExitsWithZero) {
  for (const char* command : {"serve", "chat", "bench", "inspect", "quantize", "tokenize",
                              "render", "config", "health", "ranks-check", "version"}) {
    ::testing::internal::CaptureStdout();
    const auto parsed = parse({command, "--help"});
    const std::string help = ::testing::internal::GetCapturedStdout();
    EXPECT_FALSE(parsed.invocation.has_value());
    EXPECT_EQ(parsed.exit_code, 0) << command;
    EXPECT_FALSE(help.empty()) << command;
  }
}

TEST(CommandLine, HelpOfServeShowsEveryKnobInItsGroup) {
  const auto help_of = [](const char* command) {
    ::testing::internal::CaptureStdout();
    parse({command, "--help"});
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string help = help_of("serve");
  const std::string router_help = help_of("router");
  for (const Knob& knob : config_knobs()) {
    const bool is_routers = std::string_view(knob.group) == "router";
    const std::string& shown = is_routers ? router_help : help;
    EXPECT_NE(shown.find(std::string("--") + knob.name), std::string::npos) << knob.name;
  }
  EXPECT_NE(help.find("--cuda-graph-sizes requests,..."), std::string::npos) << help;
  EXPECT_NE(help.find("--served-model-name TEXT..."), std::string::npos);
  for (const char* group : {"Model:", "Cache:", "Scheduler:", "Compute:", "Server:"}) {
    EXPECT_NE(help.find(group), std::string::npos) << group;
  }
}

TEST(CommandLine, OwnFlagsOfTheCommandsArrive) {
  auto parsed = parse({"bench",
                       "m",
                       "--prefill",
                       "16,32",
                       "--concurrency",
                       "4",
                       "--output-len",
                       "8",
                       "--json",
                       "out.json"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->bench.prefill_lens, (std::vector<int32_t>{16, 32}));
  EXPECT_EQ(parsed.invocation->bench.concurrencies, std::vector<int32_t>{4});
  EXPECT_EQ(parsed.invocation->bench.output_len, 8);
  EXPECT_EQ(parsed.invocation->bench.json_path, "out.json");

  parsed = parse({"tokenize", "--model", "m", "--file", "-", "--json", "--no-special"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.model, "m");
  EXPECT_TRUE(parsed.invocation->files.json);
  EXPECT_FALSE(parsed.invocation->files.special);

  parsed = parse({"chat",
                  "m",
                  "--temperature",
                  "0",
                  "--max-tokens",
                  "5",
                  "--seed",
                  "7",
                  "--system",
                  "Be brief."});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->chat.sampling.temperature, 0);
  EXPECT_EQ(parsed.invocation->chat.sampling.max_tokens, 5);
  EXPECT_EQ(parsed.invocation->chat.sampling.seed, 7U);
  EXPECT_EQ(parsed.invocation->chat.system, "Be brief.");

  parsed = parse({"serve", "m", "--dry-run"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_TRUE(parsed.invocation->dry_run);
  parsed = parse({"serve", "--print-config"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_TRUE(parsed.invocation->print_config);
}

TEST(CommandLine, QuantizeTakesTwoPathsAndItsFlags) {
  const auto parsed =
      parse({"quantize", "--exclude", "mlp",         "model",       "--exclude=down", "out",
             "--to",     "int4",      "--no-search", "--no-gptq",   "--target-bits",  "4.5",
             "--verify", "--threads", "3",           "--calibrate", "a.txt",          "--evaluate",
             "b.txt",    "--recipe",  "r.json",      "--report",    "o.json"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->command, Command::kQuantize);
  const QuantizeCommandOptions& command = parsed.invocation->quantize;
  const QuantizeOptions& options = command.quantize;
  EXPECT_EQ(options.input, "model");
  EXPECT_EQ(options.output, "out");
  EXPECT_EQ(options.to, "int4");
  EXPECT_EQ(options.exclude, (std::vector<std::string>{"mlp", "down"}));
  EXPECT_FALSE(options.search);
  EXPECT_FALSE(options.gptq);
  EXPECT_EQ(options.target_bits, 4.5);
  EXPECT_TRUE(options.verify);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(command.calibrate_file, "a.txt");
  EXPECT_EQ(command.evaluate_file, "b.txt");
  EXPECT_EQ(command.recipe_file, "r.json");
  EXPECT_EQ(command.report_file, "o.json");
  EXPECT_NE(refusal({"quantize", "model"}).find("OUT"), std::string::npos);
  EXPECT_NE(refusal({"quantize", "a", "b", "--target-bits", "0.5"}).find("--target-bits"),
            std::string::npos);
}

TEST(CommandLine, BenchServeTakesTheFlagsOfVllm) {
  const auto parsed = parse({"bench",
                             "serve",
                             "--backend",
                             "openai-chat",
                             "--base-url",
                             "http://h:1",
                             "--model",
                             "m",
                             "--dataset-name",
                             "prefix_repetition",
                             "--prefix-repetition-num-prefixes",
                             "3",
                             "--num_prompts",
                             "7",
                             "--request-rate",
                             "inf",
                             "--burstiness",
                             "0.5",
                             "--max-concurrency",
                             "4",
                             "--goodput",
                             "ttft:100",
                             "e2el:2000",
                             "--percentile-metrics",
                             "ttft,e2el",
                             "--metric-percentiles",
                             "50,99.9",
                             "--ignore-eos",
                             "--save-result"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->command, Command::kBenchServe);
  const BenchServeOptions& options = parsed.invocation->bench_serve;
  EXPECT_EQ(options.backend, "openai-chat");
  EXPECT_EQ(options.data.dataset.name, "prefix_repetition");
  EXPECT_EQ(options.data.dataset.num_prompts, 7U);
  EXPECT_EQ(options.burstiness, 0.5);
  EXPECT_EQ(options.max_concurrency, 4U);
  EXPECT_EQ(options.result.goodput, (std::vector<std::string>{"ttft:100", "e2el:2000"}));
  EXPECT_EQ(options.result.percentile_metrics, (std::vector<std::string>{"ttft", "e2el"}));
  EXPECT_EQ(options.result.metric_percentiles, (std::vector<double>{50, 99.9}));
  EXPECT_TRUE(options.request.ignore_eos);
  EXPECT_TRUE(options.result.save_result);
}

TEST(CommandLine, BenchThroughputHasTheDataSetsOfBenchServeAndTheKnobsOfTheEngine) {
  const auto parsed = parse({"bench",
                             "throughput",
                             "m",
                             "--dataset-name",
                             "prefix_repetition",
                             "--num-prompts",
                             "5",
                             "--n",
                             "2",
                             "--temperature",
                             "0",
                             "--max-num-seqs",
                             "4",
                             "--seed",
                             "9",
                             "--output-json",
                             "out.json"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->command, Command::kBenchThroughput);
  EXPECT_EQ(parsed.invocation->config.model, "m");
  EXPECT_EQ(parsed.invocation->config.max_num_seqs, 4);
  EXPECT_EQ(parsed.invocation->config.seed, 9U);
  const BenchOfflineOptions& options = parsed.invocation->bench_offline;
  EXPECT_EQ(options.data.dataset.name, "prefix_repetition");
  EXPECT_EQ(options.data.dataset.num_prompts, 5U);
  EXPECT_EQ(options.num_choices, 2);
  EXPECT_EQ(options.sampling.temperature, 0);
  EXPECT_EQ(options.result.result_filename, "out.json");
  // Nothing arrives later than the rest, so a delay or a rate is refused, not ignored.
  EXPECT_NE(refusal({"bench", "throughput", "m", "--request-rate", "2"}).find("--request-rate"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "throughput", "m", "--max-tokens", "2"}).find("--max-tokens"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "throughput"}).find("needs a model"), std::string::npos);
}

TEST(CommandLine, BenchLatencyTakesTheFlagsOfVllm) {
  const auto parsed = parse({"vllm",
                             "bench",
                             "latency",
                             "--model",
                             "m",
                             "--input-len",
                             "16",
                             "--output-len",
                             "4",
                             "--batch-size",
                             "2",
                             "--n",
                             "3",
                             "--num-iters-warmup",
                             "1",
                             "--num-iters",
                             "5"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->command, Command::kBenchLatency);
  EXPECT_EQ(parsed.invocation->config.model, "m");
  const BenchOfflineOptions& options = parsed.invocation->bench_offline;
  EXPECT_EQ(options.input_len, 16);
  EXPECT_EQ(options.output_len, 4);
  EXPECT_EQ(options.batch_size, 2);
  EXPECT_EQ(options.num_choices, 3);
  EXPECT_EQ(options.num_warmups, 1);
  EXPECT_EQ(options.num_iterations, 5);
}

TEST(CommandLine, AnEmptyKeyDoesNotOpenTheServer) {
  EXPECT_NE(refusal({"serve", "m", "--api-key=", "--port", "1"}).find("--api-key is empty"),
            std::string::npos);
  EXPECT_NE(refusal({"serve", "m", "--api-key", ""}).find("--api-key is empty"),
            std::string::npos);
  EXPECT_NE(refusal({"vllm", "serve", "m", "--api-key=", "--port", "1"}).find("--api-key is empty"),
            std::string::npos);
}

TEST(CommandLine, AnEmptyValueIsNotTheNextFlag) {
  const auto parsed = parse({"serve", "m", "--uds=", "--port", "81", "--dry-run"});
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.uds, "");
  EXPECT_EQ(parsed.invocation->config.port, 81);
  EXPECT_TRUE(parsed.invocation->dry_run);
}

TEST(CommandLine, BenchServeRefusesWhatItDoesNotKnow) {
  EXPECT_NE(refusal({"bench", "serve", "--num-prompt", "1"}).find("--num-prompts"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "serve", "--dataset-name", "sonnet"}).find("sonnet"),
            std::string::npos);
  EXPECT_NE(refusal({"bench", "serve", "--request-rate", "0"}).find("0"), std::string::npos);
}

}  // namespace
}  // namespace sluice
