// SPDX-License-Identifier: Apache-2.0
// Guessed tokens of a request: proposers (engine/spec/) make them, the scheduler counts them and
// metrics name them. A draft never affects an answer: the target's own sampler decides at every
// position, and a draft only says which positions are computed together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/core/types.h"

namespace sluice {

// The source of a guess. Models are last: asking other proposers costs almost nothing.
enum class DraftSource : uint8_t {
  kForced,
  kPrediction,
  kSuffix,
  kNgram,
  kReplay,
  kDraftModel,
  kEagle,
  kMtp
};

inline constexpr size_t kNumDraftSources = 8;

constexpr std::string_view to_string(DraftSource source) {
  switch (source) {
    case DraftSource::kForced: return "forced";
    case DraftSource::kPrediction: return "prediction";
    case DraftSource::kSuffix: return "suffix";
    case DraftSource::kNgram: return "ngram";
    case DraftSource::kReplay: return "replay";
    case DraftSource::kDraftModel: return "draft_model";
    case DraftSource::kEagle: return "eagle";
    case DraftSource::kMtp: return "mtp";
  }
  return "unknown";
}

constexpr bool is_of_model(DraftSource source) { return source >= DraftSource::kDraftModel; }

// The most drafted tokens of a request in one step.
inline constexpr int32_t kMaxDraftTokens = 64;

// A source's confidence in a token as a bin whose acceptance is measured: 4 classes of the length
// of the match that precedes the guess, times 4 classes of agreement that each source defines.
inline constexpr size_t kNumConfidenceBins = 16;

constexpr uint8_t confidence_bin(int32_t match_length, int32_t agreement) {
  const int32_t length_class = (match_length >= 4 ? 1 : 0) + (match_length >= 8 ? 1 : 0) +
                               (match_length >= 16 ? 1 : 0);
  return static_cast<uint8_t>(4 * length_class + agreement);
}

// The tokens guessed to follow the known ones, the next one first. A value without heap memory;
// tokens are ids of the target's vocabulary.
struct Draft {
  DraftSource source = DraftSource::kNgram;
  int32_t size = 0;
  std::array<TokenId, kMaxDraftTokens> tokens{};
  std::array<uint8_t, kMaxDraftTokens> bins{};  // one per token, < kNumConfidenceBins

  void clear(DraftSource from) {
    source = from;
    size = 0;
  }

  // Appends a token; requires size < kMaxDraftTokens.
  void push(TokenId token, uint8_t bin) {
    tokens[static_cast<size_t>(size)] = token;
    bins[static_cast<size_t>(size)] = bin;
    ++size;
  }

  [[nodiscard]] std::span<const TokenId> guessed() const {
    return {tokens.data(), static_cast<size_t>(size)};
  }

  [[nodiscard]] std::span<const uint8_t> confidence() const {
    return {bins.data(), static_cast<size_t>(size)};
  }
};

}  // namespace sluice
