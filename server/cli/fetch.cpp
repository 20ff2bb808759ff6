// SPDX-License-Identifier: Apache-2.0
// Models by name: the place or the source of their files.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "server/cli/command.h"
#include "server/cli/progress_bar.h"
#include "server/hub/hub.h"

namespace sluice {
namespace {

constexpr size_t kMostNamed = 20;

class ShownDownload final : public hub::DownloadProgress {
 public:
  void on_note(const std::string& line) override { bar_.note(line); }

  void on_bytes(const std::string& file, int64_t done, int64_t total) override {
    bar_.show(file, done, total);
  }

 private:
  ProgressBar bar_;
};

// The line by which a pod reports its commit.
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

// A folder of models where one of them was meant.
Expected<void> check_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(folder, error) || fs::exists(folder + "/config.json", error)) return {};
  std::vector<std::string> models;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const bool is_model = entry->path().extension() == ".gguf" ||
                          fs::exists(entry->path() / "config.json", ignored);
    if (is_model) models.push_back(entry->path().string());
  }
  std::ranges::sort(models);
  std::string message = folder + ": no model, as it has no config.json; ";
  if (models.empty()) {
    message += "there is none in it either, which would be a .gguf file or a folder with one";
  } else {
    message += "in it are ";
    for (size_t i = 0; i < models.size() && i < kMostNamed; ++i) {
      message += (i == 0 ? "" : ", ") + models[i];
    }
    if (models.size() > kMostNamed) {
      message += " and " + std::to_string(models.size() - kMostNamed) + " more";
    }
  }
  return make_error(ErrorCode::kInvalidArgument, message, "model");
}

}  // namespace

Expected<void> resolve_model(Invocation& invocation) {
  Config& config = invocation.config;
  std::error_code error;
  if (config.model.empty()) return {};
  if (std::filesystem::exists(config.model, error)) {
    const bool is_of_text = invocation.command == Command::kRouter;
    return is_of_text ? Expected<void>() : check_folder(config.model);
  }
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
