// SPDX-License-Identifier: Apache-2.0
// The subcommands of `sluice`: what the command line asks for, parsed and range-checked, and one
// function for each. Only command_line.cpp knows the parsing library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "engine/quantize.h"
#include "server/cli/bench_options.h"

namespace sluice {

enum class Command : uint8_t {
  kServe,
  kRouter,
  kChat,
  kBench,
  kBenchServe,
  kBenchThroughput,
  kBenchLatency,
  kBenchMock,
  kBenchCompare,
  kBenchKvTransfer,
  kInspect,
  kQuantize,
  kRanksCheck,
  kTokenize,
  kFetch,
  kRender,
  kConfig,
  kHealth,
  kCompletion,
  kManual,
  kVersion
};

struct ChatOptions {
  std::string system;       // empty: no system message
  SamplingParams sampling;  // max_tokens: at most; the context may allow fewer
  std::vector<const SamplingField*> given;  // the fields that flags set; the model has the others
};

struct FileOptions {
  std::string file;     // text (tokenize), template (render); "-" is standard input
  std::string input;    // render: JSON variables
  bool json = false;    // tokenize: one JSON array
  bool special = true;  // tokenize: names of special tokens become them
};

struct QuantizeCommandOptions {
  QuantizeOptions quantize;  // without what the files below have
  std::string recipe_file;
  std::string calibrate_file;
  std::string evaluate_file;
  std::string report_file;  // JSON; empty: none
};

// The command that main() runs. Fields that a command does not use keep their defaults.
struct Invocation {
  Command command = Command::kVersion;
  Config config;
  bool print_config = false;   // serve, router, config
  bool markdown = false;       // config
  bool dry_run = false;        // serve, router
  bool headless = false;       // serve: never node 0
  std::string dist_init_addr;  // serve; empty: not given
  std::string nodes_source;    // which setting chose the nodes, for the log; empty: none
  bool all = false;            // inspect
  std::string report_file;     // fetch; empty: none
  std::string model_name;      // what resolve_model() found the model by; empty: a path was given
  std::vector<std::string> unknown_variables;  // sentences; of commands with knobs
  bool short_version = false;  // version
  std::string url;             // health
  std::string shell;           // completion: bash, zsh, fish
  BenchOptions bench;
  BenchServeOptions bench_serve;
  BenchOfflineOptions bench_offline;
  BenchMockOptions bench_mock;
  BenchCompareOptions bench_compare;
  BenchKvTransferOptions bench_kv_transfer;
  ChatOptions chat;
  FileOptions files;
  QuantizeCommandOptions quantize;
};

// The invocation by defaults, then --config, then the environment, then flags. Without one the
// process is to exit: help was printed (0), or one line that names the mistake (2).
struct ParsedCommandLine {
  std::optional<Invocation> invocation;
  int exit_code = 0;
};

ParsedCommandLine parse_command_line(int argc, const char* const* argv);

// Replaces a model's name ("org/name") by its path, downloading the model if need be; a path stays.
// Commands without a model are left alone. kInvalidArgument: a folder that is not a model; the
// message names the models in it.
Expected<void> resolve_model(Invocation& invocation);

// Each runs its command to the end; an Error becomes one line on stderr and exit code 1.
Expected<void> run_serve(const Invocation& invocation);
Expected<void> run_ranks_check(const Invocation& invocation);
Expected<void> run_router(const Invocation& invocation);
Expected<void> run_chat(const Invocation& invocation);
Expected<void> run_bench(const Invocation& invocation);
Expected<void> run_bench_serve(const Invocation& invocation);
Expected<void> run_bench_throughput(const Invocation& invocation);
Expected<void> run_bench_latency(const Invocation& invocation);
Expected<void> run_bench_mock(const Invocation& invocation);
Expected<void> run_bench_compare(const Invocation& invocation);
Expected<void> run_bench_kv_transfer(const Invocation& invocation);
Expected<void> run_inspect(const Invocation& invocation);
Expected<void> run_quantize(const Invocation& invocation);
Expected<void> run_tokenize(const Invocation& invocation);
Expected<void> run_fetch(const Invocation& invocation);
Expected<void> run_render(const Invocation& invocation);
Expected<void> run_health(const Invocation& invocation);
void print_version(bool number_only);

// Returns the whole file, or standard input for "-". kNotFound names path and reason.
Expected<std::string> read_text_file(const std::string& path);
// kNotFound: the file could not be opened, or not written to its end.
Expected<void> write_text_file(const std::string& path,
                               const std::string& text,
                               bool appends = false);

}  // namespace sluice
