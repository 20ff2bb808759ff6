// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

#include "server/cli/command.h"
#include "server/cli/progress_bar.h"

namespace sluice {
namespace {

void show(ProgressBar& bar, const QuantizeProgress& progress) {
  const std::string counts =
      std::to_string(progress.num_done) + "/" + std::to_string(progress.num_tensors);
  const std::string tensor(progress.tensor.substr(0, 40));
  const std::string what = tensor.empty() ? counts : counts + " " + tensor;
  bar.show(what, progress.done_bytes, progress.all_bytes);
}

// While it lives, a signal that ends the process removes the unfinished output first. Made before
// other threads, which inherit the blocked signals.
class EndingSignals {
 public:
  EndingSignals() {
    std::signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit is an error like others
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  }

  // Any thread.
  void set_unfinished(const std::string& path) {
    const std::lock_guard lock(mutex_);
    unfinished_ = path;
  }

 private:
  void watch(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const timespec poll = {0, 50'000'000};
      const int signal = sigtimedwait(&signals_, nullptr, &poll);
      if (signal < 0) continue;
      const std::lock_guard lock(mutex_);
      if (!unfinished_.empty()) remove_unfinished(unfinished_);
      std::_Exit(128 + signal);
    }
  }

  std::mutex mutex_;
  std::string unfinished_;
  sigset_t signals_ = {};
  std::jthread thread_;  // last: starts when the rest is there
};

// Checks before hours of work that the report can be written. It may be inside the output.
Expected<void> check_report(const std::string& report, const std::string& output) {
  namespace fs = std::filesystem;
  const fs::path path(report);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  const bool is_inside =
      fs::weakly_canonical(folder, ignored) == fs::weakly_canonical(output, ignored);
  if (report.empty() || is_inside) return {};
  const auto fail = [&](int number) {
    return make_error(ErrorCode::kNotFound, "--report " + report + ": " + std::strerror(number));
  };
  if (fs::is_directory(path, ignored)) return fail(EISDIR);
  const bool is_there = ::access(report.c_str(), F_OK) == 0;
  if (::access(is_there ? report.c_str() : folder.c_str(), W_OK) != 0) return fail(errno);
  if (!fs::is_directory(folder, ignored)) return fail(ENOTDIR);
  return {};
}

}  // namespace

Expected<void> run_quantize(const Invocation& invocation) {
  QuantizeOptions options = invocation.quantize.quantize;
  const QuantizeCommandOptions& files = invocation.quantize;
  SLUICE_TRY_VOID(check_report(files.report_file, options.output));
  for (const auto& [file, text] : {std::pair(&files.recipe_file, &options.recipe),
                                   std::pair(&files.calibrate_file, &options.calibrate),
                                   std::pair(&files.evaluate_file, &options.evaluate)}) {
    if (file->empty()) continue;
    SLUICE_TRY(*text, read_text_file(*file));
    if (text->empty())
      return make_error(ErrorCode::kInvalidArgument, *file + ": the file is empty");
  }
  Expected<QuantizeResult> result = [&] {
    EndingSignals signals;
    ProgressBar bar;
    options.on_unfinished = [&](const std::string& path) { signals.set_unfinished(path); };
    options.on_progress = [&bar](const QuantizeProgress& progress) { show(bar, progress); };
    return quantize_model(options);
  }();
  if (!result) return tl::unexpected(std::move(result).error());
  std::fputs(result->table.c_str(), stdout);
  if (invocation.quantize.report_file.empty()) return {};
  return write_text_file(invocation.quantize.report_file, result->json);
}

}  // namespace sluice
