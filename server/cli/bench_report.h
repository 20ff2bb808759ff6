// SPDX-License-Identifier: Apache-2.0
// What the loads of `sluice bench` share, over HTTP or in process: how a result is named, judged,
// shown and saved.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "server/cli/bench_options.h"
#include "server/load/load_run.h"
#include "server/load/report_html.h"
#include "server/load/result.h"

namespace sluice {

struct NamedValue {
  std::string name;
  std::string value;
};

// kInvalidArgument names the flag.
Expected<NamedValue> split_at(const std::string& text, char separator, const char* flag);

// With the lengths that hold for whatever data set; its vocabulary is not yet known.
load::DatasetOptions dataset_options(const BenchDataOptions& options);

class BenchReport {
 public:
  // kInvalidArgument: a goal, metric or metadata that cannot be.
  static Expected<BenchReport> create(const BenchResultOptions& options,
                                      const load::DatasetOptions& dataset);

  // An empty result with the labels, percentiles and goal that were asked for.
  [[nodiscard]] load::Result make_result() const;

  // Progress on standard error, if it is a terminal and nothing forbids it; otherwise empty.
  [[nodiscard]] std::function<void(const load::Progress&)> progress() const;
  static void clear_progress();

  // Prints the console block; writes the HTML report and the JSON, as far as they were asked for.
  // `file_stem`: of the JSON's name if it has none. `more`: members added to the JSON.
  Expected<void> publish(const load::Result& result,
                         const std::vector<load::SweepPoint>& sweep,
                         const std::string& file_stem,
                         const nlohmann::ordered_json& more) const;

 private:
  explicit BenchReport(const BenchResultOptions& options) : options_(&options) {}

  [[nodiscard]] Expected<std::string> json_path(const load::Result& result,
                                                const std::string& file_stem) const;

  const BenchResultOptions* options_;  // never null; outlives the report
  load::ResultLabels labels_;
  load::Goal goal_;
};

// An error unless every request was answered.
Expected<void> verdict(const load::Result& result);

}  // namespace sluice
