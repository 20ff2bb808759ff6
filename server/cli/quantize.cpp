// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "server/cli/command.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBarEvery = std::chrono::milliseconds(100);
constexpr auto kLineEvery = std::chrono::seconds(10);
constexpr int kBarWidth = 32;

// A bar that is redrawn on a terminal; elsewhere a line now and then.
class ProgressView {
 public:
  ProgressView() : is_terminal_(isatty(STDERR_FILENO) != 0) {}

  ~ProgressView() {
    if (is_terminal_) std::fputs("\r\033[K", stderr);
  }

  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void show(const QuantizeProgress& progress) {
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + (is_terminal_ ? Clock::duration(kBarEvery) : Clock::duration(kLineEvery));
    const double part = progress.all_bytes > 0 ? static_cast<double>(progress.done_bytes) /
                                                     static_cast<double>(progress.all_bytes)
                                               : 1.0;
    const std::string tensor(progress.tensor.substr(0, 40));
    if (!is_terminal_) {
      std::fprintf(stderr,
                   "%3.0f%%  %zu of %zu tensors  %s\n",
                   100 * part,
                   progress.num_done,
                   progress.num_tensors,
                   tensor.c_str());
      return;
    }
    const int filled = std::clamp(static_cast<int>(part * kBarWidth), 0, kBarWidth);
    const std::string bar(static_cast<size_t>(filled), '#');
    const std::string rest(static_cast<size_t>(kBarWidth - filled), '.');
    std::fprintf(stderr,
                 "\r\033[K[%s%s] %3.0f%%  %zu/%zu  %s",
                 bar.c_str(),
                 rest.c_str(),
                 100 * part,
                 progress.num_done,
                 progress.num_tensors,
                 tensor.c_str());
  }

 private:
  bool is_terminal_;
  Clock::time_point next_ = Clock::now();
};

}  // namespace

Expected<void> run_quantize(const Invocation& invocation) {
  QuantizeOptions options = invocation.quantize.quantize;
  const QuantizeCommandOptions& files = invocation.quantize;
  for (const auto& [file, text] : {std::pair(&files.recipe_file, &options.recipe),
                                   std::pair(&files.calibrate_file, &options.calibrate),
                                   std::pair(&files.evaluate_file, &options.evaluate)}) {
    if (file->empty()) continue;
    SLUICE_TRY(*text, read_text_file(*file));
    if (text->empty())
      return make_error(ErrorCode::kInvalidArgument, *file + ": the file is empty");
  }
  Expected<QuantizeResult> result = [&] {
    ProgressView view;
    options.on_progress = [&view](const QuantizeProgress& progress) { view.show(progress); };
    return quantize_model(options);
  }();
  if (!result) return tl::unexpected(std::move(result).error());
  std::fputs(result->table.c_str(), stdout);
  if (invocation.quantize.report_file.empty()) return {};
  return write_text_file(invocation.quantize.report_file, result->json);
}

}  // namespace sluice
