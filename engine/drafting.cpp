// SPDX-License-Identifier: Apache-2.0
#include "engine/drafting.h"

#include <algorithm>
#include <chrono>

namespace sluice {

Drafting::Drafting(const SpecConfig& config, int32_t vocab_size)
    : config_(config), speculator_(config, vocab_size) {}

void Drafting::begin(RequestId id, const ValidRequest& request) {
  const bool drafts = config_.has_method() || !request.prediction.empty();
  if (!request.speculative || !drafts) return;
  std::vector<TokenId> known = request.prompt;
  known.insert(known.end(), request.generated.begin(), request.generated.end());
  speculator_.begin(id,
                    {.known = known,
                     .num_prompt_tokens = static_cast<int32_t>(request.prompt.size()),
                     .salt = request.tenant_salt,
                     .prediction = request.prediction});
  begun_.insert(id);
}

void Drafting::committed(RequestId id, std::span<const TokenId> tokens) {
  if (!begun_.empty()) speculator_.committed(id, tokens);
}

void Drafting::end(RequestId id) {
  if (begun_.erase(id) > 0) speculator_.end(id);
}

int32_t Drafting::most_tokens(const Scheduler& scheduler) const {
  if (begun_.empty() || !scheduler.wants_drafts()) return 0;
  return config_.max_tokens(scheduler.num_running());
}

bool Drafting::should_wait(const Scheduler& scheduler) {
  const int32_t most = most_tokens(scheduler);
  if (most == 0) return false;
  scheduler.list_decoding(ids_);
  return std::ranges::any_of(ids_, [&](RequestId id) {
    speculator_.propose(id, most, scheduler.draft_survival(), draft_);
    return draft_.size > 1;  // the first one stands for the token that is being chosen
  });
}

void Drafting::offer(Scheduler& scheduler, DraftStats& stats) {
  const int32_t most = most_tokens(scheduler);
  if (most == 0) return;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  scheduler.list_decoding(ids_);
  for (const RequestId id : ids_) {
    speculator_.propose(id, most, scheduler.draft_survival(), draft_);
    scheduler.offer_drafts(id, draft_);
  }
  const std::chrono::nanoseconds passed = Clock::now() - begin;
  stats.proposer_ns += static_cast<uint64_t>(passed.count());
  scheduler.note_proposers(1e-6 * static_cast<double>(passed.count()));
}

void Drafting::count(DraftSource source,
                     size_t num_drafts,
                     size_t num_tokens,
                     bool ended,
                     DraftStats& stats) {
  if (num_drafts == 0) return;
  const size_t num_accepted = num_tokens == 0 ? 0 : num_tokens - 1;
  const auto i = static_cast<size_t>(source);
  ++stats.num_drafts[i];
  stats.num_draft_tokens[i] += num_drafts;
  stats.num_accepted_tokens[i] += num_accepted;
  for (size_t k = 0; k < num_accepted; ++k) ++stats.num_accepted_at[k];
  if (ended) stats.num_padded_rows += num_drafts - num_accepted;
  stats.depth.observe(kDraftDepthBounds, static_cast<double>(num_drafts));
}

}  // namespace sluice
