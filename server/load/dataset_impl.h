// SPDX-License-Identifier: Apache-2.0
// What the data sets share. Only their own files include it.
#pragma once

#include <span>
#include <string_view>

#include "server/load/dataset.h"
#include "server/load/random.h"

namespace sluice::load {

// A run of `count` random tokens, appended to `turn`.
class PromptMaker {
 public:
  explicit PromptMaker(const PromptVocabulary& vocabulary);

  void append(Random& random, int32_t count, Turn& turn) const;

 private:
  PromptVocabulary vocabulary_;
  std::vector<std::string_view> words_;
};

// A length drawn from [length * (1 - ratio), length * (1 + ratio)], at least 1.
int32_t draw_length(Random& random, int32_t length, double ratio);

// Tokens that a text is likely to have: English comes to about four bytes a token.
int32_t estimate_tokens(std::string_view text);

Expected<std::string> read_file(const std::string& path);

Expected<std::unique_ptr<Dataset>> read_conversations(const DatasetOptions& options);
Expected<std::unique_ptr<Dataset>> read_custom(const DatasetOptions& options);
Expected<std::unique_ptr<Dataset>> read_trace(const DatasetOptions& options);

}  // namespace sluice::load
