// SPDX-License-Identifier: Apache-2.0
// Tiny checkpoints with the logits that another program computed for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/types.h"

namespace sluice::testing {

struct GoldenModel {
  std::string name;
  std::string path;
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [tokens.size()][vocab]
};

std::string read_whole_file(const std::string& path);

// Reads the models that `list` in `folder` names, each in all of its layouts.
std::vector<GoldenModel> read_golden_models(const std::string& folder, const std::string& list);

// Returns the root of the mean squared error relative to the expected logits' spread; infinite if
// the numbers of logits differ.
double relative_error(const std::vector<float>& expected, const std::vector<float>& actual);

// Fails the test unless every instruction set and cut of the prompt gives the same bits.
// `bits_of(piece)` returns the activation bits for pieces of `piece` tokens.
void expect_same_bits_everywhere(const GoldenModel& model, int32_t (*bits_of)(int32_t piece));

}  // namespace sluice::testing
