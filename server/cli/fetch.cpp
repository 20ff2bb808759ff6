// SPDX-License-Identifier: Apache-2.0
// Models by name: where their files are, or come from.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "server/cli/command.h"
#include "server/cli/progress_bar.h"
#include "server/hub/hub.h"

namespace sluice {
namespace {

class ShownDownload final : public hub::DownloadProgress {
 public:
  void on_note(const std::string& line) override { bar_.note(line); }

  void on_bytes(const std::string& file, int64_t done, int64_t total) override {
    bar_.show(file, done, total);
  }

 private:
  ProgressBar bar_;
};

// One line for whoever looks at a pod later: which commit it has.
Expected<void> write_report(const Invocation& invocation) {
  const Config& config = invocation.config;
  const std::string line =
      invocation.model_name.empty()
          ? config.model + ": a file\n"
          : invocation.model_name + ", revision " + config.revision + ": commit " +
                hub::commit_of_path(config.model) + "\n";
  std::ofstream file(invocation.report_file, std::ios::trunc);
  file << line << std::flush;
  if (file) return {};
  return make_error(ErrorCode::kUnavailable, invocation.report_file + ": cannot be written");
}

}  // namespace

Expected<void> resolve_model(Invocation& invocation) {
  Config& config = invocation.config;
  std::error_code error;
  if (config.model.empty() || std::filesystem::exists(config.model, error)) return {};
  const auto name = hub::parse_model_name(config.model);
  if (!name) return {};
  SLUICE_TRY(const hub::HubOptions options, hub::hub_options(config));
  ShownDownload progress;
  const bool needs_weights =
      config.load_format != "dummy" && invocation.command != Command::kRouter;
  auto path = hub::fetch_model(options, *name, needs_weights, progress);
  if (!path) {
    return make_error(path.error().code,
                      config.model + " is no file here; " + path.error().message);
  }
  if (config.served_model_name.empty()) config.served_model_name = {config.model};
  invocation.model_name = std::exchange(config.model, std::move(*path));
  return {};
}

Expected<void> run_fetch(const Invocation& invocation) {
  const std::string& path = invocation.config.model;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return make_error(ErrorCode::kNotFound, path + ": no file, and no name such as org/name");
  }
  if (!invocation.report_file.empty()) SLUICE_TRY_VOID(write_report(invocation));
  std::printf("%s\n", path.c_str());
  return {};
}

}  // namespace sluice
