// SPDX-License-Identifier: Apache-2.0
// Outputs of models, written by hand, and the pieces they must give.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

struct Golden {
  std::string_view text;
  std::string_view pieces;  // as describe() writes them
  std::string_view prompt_tail = {};
  FinishReason reason = FinishReason::kStop;
};

// One family with one vocabulary.
struct GoldenFamily {
  std::string_view calls;
  std::string_view reasoning;
  std::vector<std::string_view> specials;
  std::vector<Golden> goldens;
};

std::vector<GoldenFamily> json_goldens();
std::vector<GoldenFamily> tagged_goldens();
std::vector<GoldenFamily> named_goldens();
std::vector<GoldenFamily> code_goldens();
std::vector<GoldenFamily> channel_goldens();

}  // namespace sluice
