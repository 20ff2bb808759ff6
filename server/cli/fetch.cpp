// SPDX-License-Identifier: Apache-2.0
// Models by name: where their files are, or come from.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "server/cli/command.h"
#include "server/hub/hub.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

// One line that changes on a terminal, one line now and then elsewhere.
class ProgressLine final : public hub::DownloadProgress {
 public:
  ~ProgressLine() override { end_line(); }

  void on_note(const std::string& line) override {
    end_line();
    std::fprintf(stderr, "sluice: %s\n", line.c_str());
  }

  void on_bytes(const std::string& file, int64_t done, int64_t total) override {
    const Clock::time_point now = Clock::now();
    const bool begins = !started_;
    if (begins) started_ = Started{now, done};
    if (done < total && now < next_) return;
    next_ = now + (is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10));
    if (begins && done < total && !is_terminal_) return;
    const double seconds = std::chrono::duration<double>(now - started_->time).count();
    const double rate = seconds > 0 ? static_cast<double>(done - started_->done) / seconds : 0;
    std::fprintf(stderr,
                 is_terminal_ ? "\r%s: %.1f of %.1f MB, %.1f MB/s\033[K"
                              : "sluice: %s: %.1f of %.1f MB, %.1f MB/s\n",
                 file.c_str(),
                 static_cast<double>(done) / 1e6,
                 static_cast<double>(total) / 1e6,
                 rate / 1e6);
    open_line_ = is_terminal_;
  }

 private:
  struct Started {
    Clock::time_point time;
    int64_t done;
  };

  void end_line() {
    if (open_line_) std::fputc('\n', stderr);
    open_line_ = false;
  }

  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  bool open_line_ = false;
  std::optional<Started> started_;
  Clock::time_point next_;
};

}  // namespace

Expected<void> resolve_model(Invocation& invocation) {
  Config& config = invocation.config;
  std::error_code error;
  if (config.model.empty() || std::filesystem::exists(config.model, error)) return {};
  const auto name = hub::parse_model_name(config.model);
  if (!name) return {};
  SLUICE_TRY(const hub::HubOptions options, hub::hub_options(config));
  ProgressLine progress;
  const bool needs_weights =
      config.load_format != "dummy" && invocation.command != Command::kRouter;
  auto path = hub::fetch_model(options, *name, needs_weights, progress);
  if (!path) {
    return make_error(path.error().code,
                      config.model + " is no file here; " + path.error().message);
  }
  if (config.served_model_name.empty()) config.served_model_name = {config.model};
  config.model = std::move(*path);
  return {};
}

Expected<void> run_fetch(const Invocation& invocation) {
  const std::string& path = invocation.config.model;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return make_error(ErrorCode::kNotFound, path + ": no file, and no name such as org/name");
  }
  std::printf("%s\n", path.c_str());
  return {};
}

}  // namespace sluice
