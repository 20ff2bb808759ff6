// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize.h"

#include <cstdio>
#include <string>

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
    ProgressBar bar;
    options.on_progress = [&bar](const QuantizeProgress& progress) { show(bar, progress); };
    return quantize_model(options);
  }();
  if (!result) return tl::unexpected(std::move(result).error());
  std::fputs(result->table.c_str(), stdout);
  if (invocation.quantize.report_file.empty()) return {};
  return write_text_file(invocation.quantize.report_file, result->json);
}

}  // namespace sluice
