// SPDX-License-Identifier: Apache-2.0
// Two saved results of `sluice bench` or `vllm bench`, figure by figure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice::load {

struct ComparedFigure {
  std::string name;  // the key of the result
  double before = 0;
  double after = 0;
  // The share of `before` by which it is better; below 0: worse. Infinite: `before` is 0.
  double gain = 0;
};

struct Comparison {
  std::vector<ComparedFigure> figures;
  std::vector<std::string> differences;  // sentences: what makes the two runs other runs
};

// Compares rates, of which more is better, and times and failures, of which less is. Figures that
// only one of the two has are left out. kInvalidArgument: they have none in common.
Expected<Comparison> compare_results(const nlohmann::ordered_json& before,
                                     const nlohmann::ordered_json& after);

// Returns the table, with a bar for each figure: right of the axis is better.
std::string comparison_text(const Comparison& comparison);

// Returns a sentence for each figure that is worse by more than `percent`.
std::vector<std::string> losses(const Comparison& comparison, double percent);

// Parses a saved result; of a file with several (--append-result) the last one. kDataLoss: it is
// none.
Expected<nlohmann::ordered_json> parse_result(const std::string& text, const std::string& path);

}  // namespace sluice::load
