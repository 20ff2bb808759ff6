// SPDX-License-Identifier: Apache-2.0
// Names, judges, shows and saves the result of a load of `sluice bench`, over HTTP or in process.
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

// Returns the options with the lengths for any data set; the vocabulary is not yet known.
load::DatasetOptions dataset_options(const BenchDataOptions& options);

class BenchReport {
 public:
  // kInvalidArgument: an impossible goal, metric or metadata.
  static Expected<BenchReport> create(const BenchResultOptions& options,
                                      const load::DatasetOptions& dataset);

  // Returns an empty result with the labels, percentiles and goal that were asked for.
  [[nodiscard]] load::Result make_result() const;

  // Returns a function that shows progress on standard error; empty: no terminal, or forbidden.
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

// Returns an error unless every request was answered.
Expected<void> verdict(const load::Result& result);

}  // namespace sluice
