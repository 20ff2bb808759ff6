// SPDX-License-Identifier: Apache-2.0
// Data sets: prompts with lengths, made from a seed or read from a file. A sample is made when
// it is needed and is the same each time, so that 10^6 long prompts need no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice::load {

// One request; a conversation has several, each sent when the answer before it has ended.
struct Turn {
  std::string text;                // the prompt, or the user's message
  std::vector<int32_t> token_ids;  // used instead of the text, for the completions API
  int32_t input_len = 0;           // tokens as far as known; 0: unknown
  int32_t output_len = 0;          // max_tokens
  double delay_s = 0;              // after the previous answer
};

struct Sample {
  std::vector<Turn> turns;  // at least one
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual size_t size() const = 0;
  [[nodiscard]] virtual Sample sample(size_t index) const = 0;

  // Returns seconds from the start, ascending, one for each sample; empty: the set has no times.
  [[nodiscard]] virtual std::vector<double> arrivals() const { return {}; }
};

// The material of random prompts: the server's ids of kPromptWords, any id below a size, or, with
// neither, the words themselves, most of which are one token in most vocabularies.
struct PromptVocabulary {
  std::vector<int32_t> ids;
  int32_t vocab_size = 0;
};

struct DatasetOptions {
  std::string name = "random";  // see kDatasetNames
  std::string path;
  size_t num_prompts = 1000;
  uint64_t seed = 0;
  int32_t input_len = 1024;  // tokens; random, multi-turn
  int32_t output_len = 128;
  bool has_output_len = false;          // replaces the lengths of a file
  double range_ratio = 0;               // lengths are uniform in (1 -+ ratio) times theirs
  int32_t prefix_len = 0;               // random: length of the common beginning of all prompts
  int32_t repetition_prefix_len = 256;  // prefix_repetition
  int32_t repetition_suffix_len = 256;
  int32_t repetition_num_prefixes = 10;
  int32_t repetition_output_len = 128;
  int32_t num_turns = 4;    // multi_turn without a file
  double turn_delay_s = 0;  // multi_turn
  double trace_speedup = 1;
  PromptVocabulary vocabulary;
};

inline constexpr const char* kDatasetNames[] = {"random",
                                                "prefix_repetition",
                                                "multi_turn",
                                                "sharegpt",
                                                "custom",
                                                "mooncake",
                                                "azure",
                                                "burstgpt"};

// Short English words, separated by spaces, for PromptVocabulary.
extern const char* const kPromptWords;

// kNotFound: no such file; kDataLoss names the line that cannot be read.
Expected<std::unique_ptr<Dataset>> create_dataset(const DatasetOptions& options);

}  // namespace sluice::load
