// SPDX-License-Identifier: Apache-2.0
// `sluice bench compare`: two saved results, and an error where the second one is worse by more
// than the threshold.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/cli/command.h"
#include "server/load/compare.h"

namespace sluice {
namespace {

Expected<nlohmann::ordered_json> read_result(const std::string& path) {
  SLUICE_TRY(const std::string text, read_text_file(path));
  return load::parse_result(text, path);
}

}  // namespace

Expected<void> run_bench_compare(const Invocation& invocation) {
  const BenchCompareOptions& options = invocation.bench_compare;
  SLUICE_TRY(const auto before, read_result(options.before));
  SLUICE_TRY(const auto after, read_result(options.after));
  SLUICE_TRY(const load::Comparison comparison, load::compare_results(before, after));
  std::fputs(load::comparison_text(comparison).c_str(), stdout);
  if (!options.threshold) return {};
  const std::vector<std::string> found = load::losses(comparison, *options.threshold);
  if (found.empty()) return {};
  std::string message;
  for (const std::string& loss : found) message += (message.empty() ? "" : "; ") + loss;
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g", *options.threshold);
  return make_error(ErrorCode::kUnavailable,
                    std::string("worse by more than ") + limit + " %: " + message);
}

}  // namespace sluice
