// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/speculator.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "engine/core/status.h"
#include "engine/spec/ngram.h"
#include "engine/spec/prediction.h"
#include "engine/spec/replay.h"
#include "engine/spec/suffix.h"

namespace sluice {
namespace {

SuffixOptions suffix_options(const SpecConfig& config) {
  return {.max_depth = config.suffix_max_tree_depth,
          .max_cached_requests = config.suffix_max_cached_requests,
          .max_spec_factor = config.suffix_max_spec_factor,
          .min_token_prob = config.suffix_min_token_prob};
}

std::vector<std::unique_ptr<Proposer>> make_proposers(const SpecConfig& config,
                                                      int32_t vocab_size,
                                                      TokenText text) {
  std::vector<std::unique_ptr<Proposer>> proposers;
  if (config.replay) {
    proposers.push_back(
        make_replay_proposer(config.replay_error_rate, config.replay_seed, vocab_size));
    return proposers;
  }
  proposers.push_back(make_forced_proposer(vocab_size, std::move(text)));
  proposers.push_back(make_prediction_proposer());
  if (config.suffix) {
    proposers.push_back(make_suffix_proposer(suffix_options(config)));
  }
  if (config.ngram) {
    proposers.push_back(make_ngram_proposer(config.prompt_lookup_min, config.prompt_lookup_max));
  }
  return proposers;
}

}  // namespace

Speculator::Speculator(const SpecConfig& config, int32_t vocab_size, TokenText text)
    : Speculator(make_proposers(config, vocab_size, std::move(text)), vocab_size) {}

Speculator::Speculator(std::vector<std::unique_ptr<Proposer>> proposers, int32_t vocab_size)
    : proposers_(std::move(proposers)), vocab_size_(vocab_size) {}

Speculator::~Speculator() = default;

void Speculator::begin(const RequestRecord& request) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<int32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const int32_t slot = free_slots_.back();
  const bool is_new = slot_of_.emplace(request.id, slot).second;
  CHECK(is_new);
  free_slots_.pop_back();
  slots_[static_cast<size_t>(slot)] = request.log;
  for (const auto& proposer : proposers_) proposer->begin(slot, request);
}

void Speculator::propose(RequestId id, int32_t max, const DraftSurvival& survival, Draft& draft) {
  draft.clear(DraftSource::kPrediction);
  const auto found = slot_of_.find(id);
  max = std::min(max, kMaxDraftTokens);
  if (found == slot_of_.end() || max < 1) return;
  const std::span<const TokenId> known = slots_[static_cast<size_t>(found->second)].tokens();
  double best = 0;
  for (const auto& proposer : proposers_) {
    proposer->propose(found->second, known, max, other_);
    CHECK_LE(other_.size, max);
    cut_to_vocabulary(other_);
    const double expected = survival.expected(other_.source, other_.confidence(), {});
    if (other_.size > 0 && expected > best) {
      best = expected;
      draft = other_;
    }
  }
}

void Speculator::cut_to_vocabulary(Draft& draft) const {
  const auto is_token = [&](TokenId token) { return token >= 0 && token < vocab_size_; };
  const auto guessed = draft.guessed();
  draft.size = static_cast<int32_t>(std::ranges::find_if_not(guessed, is_token) - guessed.begin());
}

void Speculator::end(RequestId id) {
  const auto found = slot_of_.find(id);
  if (found == slot_of_.end()) return;
  TokenLog& log = slots_[static_cast<size_t>(found->second)];
  for (const auto& proposer : proposers_) proposer->end(found->second, log.tokens());
  log = {};
  free_slots_.push_back(found->second);
  slot_of_.erase(found);
}

int64_t Speculator::memory_bytes() const {
  int64_t bytes = 0;
  for (const auto& proposer : proposers_) bytes += proposer->memory_bytes();
  return bytes;
}

int64_t Speculator::max_memory_bytes(const SpecConfig& config,
                                     int32_t num_requests,
                                     int64_t max_length) {
  if (config.replay) return replay_max_bytes(num_requests, max_length);
  int64_t bytes = forced_max_bytes(num_requests, max_length);
  bytes += prediction_max_bytes(num_requests, max_length);
  if (config.suffix) bytes += suffix_max_bytes(suffix_options(config), num_requests, max_length);
  if (config.ngram) bytes += ngram_max_bytes(num_requests, max_length);
  return bytes;
}

}  // namespace sluice
