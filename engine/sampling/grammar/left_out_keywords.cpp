// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/left_out_keywords.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/core/status.h"
#include "engine/sampling/grammar/schema_gate.h"
#include "engine/sampling/grammar/structural_tag_gate.h"

namespace sluice {
namespace {

constexpr SchemaLimits kLimits = {.max_work = 20000};

}  // namespace

std::vector<std::string> left_out_keywords(const GrammarSpec& spec) {
  std::vector<LeftOutKeyword> found;
  Expected<std::string> gated;
  if (spec.kind == GrammarKind::kJsonSchema && spec.is_best_effort) {
    gated = gate_schema(spec.text, true, kLimits, &found);
  } else if (spec.kind == GrammarKind::kStructuralTag) {
    gated = gate_structural_tag(spec.text, spec.is_best_effort, kLimits, &found);
  }
  std::vector<std::string> paths;
  std::unordered_set<std::string> told;
  if (!gated) return paths;
  for (const auto& [keyword, place] : found) {
    const std::string word = keyword.substr(0, keyword.find(' '));  // "minLength beside ..."
    std::string path = place.size() > 2 ? place.substr(2) + "/" + word : word;
    std::ranges::replace(path, '/', '.');
    if (told.insert(path).second) paths.push_back(std::move(path));
  }
  return paths;
}

}  // namespace sluice
