// SPDX-License-Identifier: Apache-2.0
// The program `sluice`. Exit codes: 0 done, 1 failed, 2 wrong use.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <optional>
#include <utility>

#include "engine/core/load_watch.h"
#include "engine/core/log.h"
#include "engine/engine.h"
#include "server/cli/command.h"
#include "server/cli/command_text.h"
#include "server/cli/progress_bar.h"

namespace sluice {
namespace {

LogLevel log_level_of(const std::string& name) {
  if (name == "trace") return LogLevel::kTrace;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

// A flag's value that only the command itself could judge is wrong use too.
int exit_code_of(const Error& error) {
  const bool is_wrong_use = error.code == ErrorCode::kInvalidArgument && !error.param.empty();
  return is_wrong_use ? 2 : 1;
}

Expected<void> print_configuration(const Invocation& invocation) {
  const std::string text =
      invocation.markdown ? config_markdown() : print_config(invocation.config);
  std::fputs(text.c_str(), stdout);
  return {};
}

Expected<void> run(Invocation invocation) {
  if (invocation.print_config) return print_configuration(invocation);
  SLUICE_TRY_VOID(resolve_model(invocation));
  switch (invocation.command) {
    case Command::kServe:
      return run_serve(invocation);
    case Command::kRouter:
      return run_router(invocation);
    case Command::kChat:
      return run_chat(invocation);
    case Command::kBench:
      return run_bench(invocation);
    case Command::kBenchServe:
      return run_bench_serve(invocation);
    case Command::kBenchThroughput:
      return run_bench_throughput(invocation);
    case Command::kBenchLatency:
      return run_bench_latency(invocation);
    case Command::kBenchMock:
      return run_bench_mock(invocation);
    case Command::kBenchCompare:
      return run_bench_compare(invocation);
    case Command::kBenchKvTransfer:
      return run_bench_kv_transfer(invocation);
    case Command::kInspect:
      return run_inspect(invocation);
    case Command::kQuantize:
      return run_quantize(invocation);
    case Command::kRanksCheck:
      return run_ranks_check(invocation);
    case Command::kTokenize:
      return run_tokenize(invocation);
    case Command::kFetch:
      return run_fetch(invocation);
    case Command::kRender:
      return run_render(invocation);
    case Command::kConfig:
      return print_configuration(invocation);
    case Command::kHealth:
      return run_health(invocation);
    case Command::kCompletion:
      std::fputs(completion_script(command_texts(), invocation.shell).c_str(), stdout);
      return {};
    case Command::kManual:
      std::fputs(manual_page(command_texts()).c_str(), stdout);
      return {};
    case Command::kVersion:
      print_version(invocation.short_version);
      return {};
  }
  return {};
}

// Shows how much of the weights is loaded, if the output is a terminal.
class LoadingBar {
 public:
  LoadingBar() {
    if (!bar_.is_terminal()) return;
    watch_loading([this](int64_t done, int64_t all) { bar_.show("weights", done, all); });
  }

  ~LoadingBar() { watch_loading({}); }

  LoadingBar(const LoadingBar&) = delete;
  LoadingBar& operator=(const LoadingBar&) = delete;

 private:
  ProgressBar bar_;
};

int run_main(int argc, const char* const* argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe or socket is a write error
  // A container's first process inherits orphans; the kernel reaps those that no process waits for.
  if (getpid() == 1) std::signal(SIGCHLD, SIG_IGN);
  ParsedCommandLine parsed = parse_command_line(argc, argv);
  if (!parsed.invocation) return parsed.exit_code;
  const Config& config = parsed.invocation->config;
  init_log(log_level_of(config.log_level),
           config.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  for (const std::string& unknown : parsed.invocation->unknown_variables) {
    log_event(LogLevel::kWarning, "unknown_variable", "reason", unknown);
  }
  const Expected<void> done = [&] {
    const LoadingBar bar;
    return run(std::move(*parsed.invocation));
  }();
  if (!done) {
    if (log_is_json()) {
      log_event(LogLevel::kError, "ended", "reason", done.error().message);
    } else {
      std::fprintf(stderr, "sluice: %s\n", done.error().message.c_str());
    }
    return exit_code_of(done.error());
  }
  if (std::fflush(stdout) != 0) {
    std::fprintf(stderr, "sluice: cannot write to standard output\n");
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    if (const std::optional<int> exit_code = sluice::run_helper_process(argc, argv)) {
      return *exit_code;
    }
    return sluice::run_main(argc, argv);
  } catch (const std::exception& error) {  // out of memory; our own code throws nothing
    std::fprintf(stderr, "sluice: %s\n", error.what());
    return 1;
  }
}
