// SPDX-License-Identifier: Apache-2.0
// The common part of the data sets. Only their own files include it.
#pragma once

#include <span>
#include <string_view>

#include "server/load/dataset.h"
#include "server/load/random.h"

namespace sluice::load {

// Appends a run of `count` random tokens to `turn`.
class PromptMaker {
 public:
  explicit PromptMaker(const PromptVocabulary& vocabulary);

  void append(Random& random, int32_t count, Turn& turn) const;

 private:
  PromptVocabulary vocabulary_;
  std::vector<std::string_view> words_;
};

// Draws a length from [length * (1 - ratio), length * (1 + ratio)], at least 1.
int32_t draw_length(Random& random, int32_t length, double ratio);

// Estimates the tokens of a text: English has about four bytes a token.
int32_t estimate_tokens(std::string_view text);

Expected<std::string> read_file(const std::string& path);

Expected<std::unique_ptr<Dataset>> read_conversations(const DatasetOptions& options);
Expected<std::unique_ptr<Dataset>> read_custom(const DatasetOptions& options);
Expected<std::unique_ptr<Dataset>> read_trace(const DatasetOptions& options);

}  // namespace sluice::load
