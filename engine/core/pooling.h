// SPDX-License-Identifier: Apache-2.0
// Requests whose answer is a vector instead of tokens: what a model makes of a text's states, and
// what one request asks of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// Which tokens' states make the vector of a text. All tokens count, special ones too.
enum class PoolingType : uint8_t {
  kMean,          // their mean
  kCls,           // the first token's
  kLast,          // the last token's
  kEvery,         // each token's own: one vector a token
  kMax,           // the largest of each element
  kMeanSqrt,      // their sum over the square root of their number
  kWeightedMean,  // their mean, weighted by 1, 2, 3 and so on
};

constexpr std::string_view to_string(PoolingType type) {
  switch (type) {
    case PoolingType::kMean: return "mean";
    case PoolingType::kCls: return "cls";
    case PoolingType::kLast: return "last";
    case PoolingType::kEvery: return "token";
    case PoolingType::kMax: return "max";
    case PoolingType::kMeanSqrt: return "mean_sqrt_len_tokens";
    case PoolingType::kWeightedMean: return "weightedmean";
  }
  return "";
}

// How a classifier's logits become scores.
enum class ScoreFunction : uint8_t { kIdentity, kSigmoid, kSoftmax };

constexpr std::string_view to_string(ScoreFunction function) {
  switch (function) {
    case ScoreFunction::kIdentity: return "identity";
    case ScoreFunction::kSigmoid: return "sigmoid";
    case ScoreFunction::kSoftmax: return "softmax";
  }
  return "";
}

// A text that is put before others, by its name: "query: ".
struct NamedPrompt {
  std::string name;
  std::string text;

  friend bool operator==(const NamedPrompt&, const NamedPrompt&) = default;
};

// How texts of one side become tokens where queries and documents are compared by their tokens'
// vectors (ColBERT).
struct ComparedSide {
  std::string prompt;               // put before the text
  TokenId marker = kInvalidToken;   // between the tokens that begin a text and the prompt, if any
  int32_t max_tokens = 0;           // texts are cut to as many; 0: they are not
  std::vector<TokenId> skipped;     // these tokens have no vectors; in order

  friend bool operator==(const ComparedSide&, const ComparedSide&) = default;
};

struct TokenComparison {
  ComparedSide query;
  ComparedSide document;
  // Fills queries up to `expanded_tokens`, if any. An id that is higher by a vocabulary for each
  // kind of segment has a vector and is seen by no token.
  TokenId expansion = kInvalidToken;
  int32_t expanded_tokens = 0;

  friend bool operator==(const TokenComparison&, const TokenComparison&) = default;
};

// What a model that answers with vectors makes of a text. Fixed after start.
struct PoolingInfo {
  bool is_classifier = false;  // the answer is a score for each label; else a vector of the text
  PoolingType type = PoolingType::kLast;
  bool normalizes = false;    // vectors get length 1
  int32_t width = 0;          // elements of an answer: of the vector, or labels
  int32_t max_tokens = 0;     // of one text, special ones included
  // The second text of a pair is marked: its ids are a vocabulary's size higher.
  bool has_segments = false;
  bool is_matryoshka = false;  // a vector's first elements are a vector too
  std::vector<int32_t> matryoshka_dimensions;  // those that it was trained for; empty: any
  ScoreFunction function = ScoreFunction::kIdentity;  // of a classifier
  std::vector<std::string> labels;                    // of a classifier, by place in the answer
  // "no" and "yes": the only logit is the second token's after the text minus the first one's.
  // One token: it is that token's. Empty: the logits are a layer's.
  std::vector<TokenId> label_tokens;
  bool is_qwen3_reranker = false;  // such tokens follow the conversation on its model card
  bool begins_answer = false;  // such tokens follow what begins an answer in the chat template
  std::vector<NamedPrompt> prompts;  // put before a text where a request names one
  std::string default_prompt;        // the text of one, for requests that name none
  TokenComparison comparison;        // with kEvery

  friend bool operator==(const PoolingInfo&, const PoolingInfo&) = default;
};

// What one request wants beside what the model says.
struct PoolingParams {
  bool every_token = false;  // the vectors of all tokens instead of the text's
  bool activates = true;     // false: not normalized, logits instead of scores
  // With `activates`: vectors get length 1, and scores are probabilities (the sigmoid of one label,
  // the softmax of several), also where the model's files want neither.
  bool forces_scale = false;
  int32_t dimensions = 0;    // the first elements alone, cut before they are normalized; 0: all

  friend bool operator==(const PoolingParams&, const PoolingParams&) = default;
};

}  // namespace sluice
