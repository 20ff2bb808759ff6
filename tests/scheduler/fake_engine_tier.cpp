// SPDX-License-Identifier: Apache-2.0
// The tier below the cache: it may keep what a step has computed, and restores it late, in part or
// not at all.
#include <algorithm>
#include <span>
#include <utility>

#include "tests/scheduler/fake_engine.h"

namespace sluice {

std::span<uint64_t> FakeEngine::contents_of(size_t group, BlockId block) {
  const bool is_state = groups_[group].kind == KvGroupKind::kState;
  const auto size = static_cast<size_t>(is_state ? 1 : kv_options_.block_size);
  return std::span(storage_[group]).subspan(static_cast<size_t>(block.value) * size, size);
}

// Saves the blocks that the row's step has completed.
void FakeEngine::save_blocks(const Row& row) {
  if (tier_rate_ == 0) return;
  const int32_t size = kv_options_.block_size;
  const int32_t start = row.scheduled.num_computed_tokens;
  const int32_t end = start + row.scheduled.num_scheduled_tokens - row.scheduled.num_draft_tokens;
  for (int32_t i = start / size; i < end / size; ++i) {
    if (!chance(tier_rate_)) continue;
    Kept kept(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int32_t per_entry = tokens_per_entry(groups_[g], size);
      if ((i + 1) * size % per_entry != 0) continue;
      const auto entry = static_cast<size_t>((i + 1) * size / per_entry - 1);
      const BlockId block = row.tables[g][entry];
      // A group without the block is left out; other groups keep theirs.
      if (block == kNullBlock) continue;
      // The running state has moved on.
      if (entry + 1 < row.tables[g].size() && row.tables[g][entry + 1] == block) continue;
      const auto contents = contents_of(g, block);
      kept[g].assign(contents.begin(), contents.end());
    }
    const std::vector<uint64_t>& hashes = shadows_[row.shadow].prefix_hash;
    tier_[hashes[static_cast<size_t>((i + 1) * size)]] = std::move(kept);
  }
}

// Puts block after block into the cache, as far as they are kept and readable.
void FakeEngine::bring_back(RequestId id,
                            const std::vector<TokenId>& tokens,
                            const std::vector<uint64_t>& prefix_hash,
                            const PrefixExtras& extras,
                            EpisodeStats& stats) {
  const auto size = static_cast<size_t>(kv_options_.block_size);
  const std::span<const TokenId> all = tokens;
  auto next = static_cast<size_t>(kv_->acquire_prefix(id, all, extras, PrefixUse::kTransfer));
  kv_->free(id);
  for (next /= size; (next + 1) * size < all.size(); ++next) {
    const auto kept = tier_.find(prefix_hash[(next + 1) * size]);
    if (kept == tier_.end() || chance(tier_fault_rate_)) return;
    uint64_t groups = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      groups |= static_cast<uint64_t>(!kept->second[g].empty()) << g;
    }
    std::vector<KvBlockRef> inserted;
    const KvRange block = {.first = static_cast<int32_t>(next), .count = 1};
    const int32_t count = kv_->insert(all, extras, block, std::span(&groups, 1), inserted);
    for (const KvBlockRef& ref : inserted) {
      const auto group = static_cast<size_t>(ref.group);
      std::ranges::copy(kept->second[group], contents_of(group, ref.block).begin());
    }
    if (count == 0) return;
    ++stats.num_restored;
  }
}

bool FakeEngine::is_restoring(const Shadow& shadow) const {
  return std::ranges::any_of(restoring_, [&](const Restoring& restoring) {
    return &shadows_[restoring.shadow] == &shadow;
  });
}

void FakeEngine::see_restoring(const SchedulerOutput& output, EpisodeStats& stats) {
  for (const RequestId id : output.restoring) {
    const Shadow& shadow = shadows_[shadow_of(id)];
    if (!shadow.started || shadow.next_position >= 0 || shadow.ended || is_restoring(shadow)) {
      wrong("a request is to be brought back that was not preempted");
    }
    for (int32_t g = 0; g < kv_->num_groups(); ++g) {
      if (!kv_->block_table(id, g).empty()) wrong("a request that is brought back holds blocks");
    }
    ++stats.num_resumed;
    // Half of the requests need not wait: nothing is kept, or it is read at once.
    const int32_t turns = chance(0.5) ? 0 : chance(0.1) ? between(10, 40) : between(1, 4);
    restoring_.push_back({shadow_of(id), turns, chance(0.8)});
  }
}

void FakeEngine::end_restoring(EpisodeStats& stats) {
  std::erase_if(restoring_, [this](const Restoring& r) { return shadows_[r.shadow].ended; });
  for (size_t i = 0; i < restoring_.size();) {
    if (restoring_[i].turns_left-- > 0) {
      ++i;
      continue;
    }
    const Restoring restoring = restoring_[i];
    const Shadow& shadow = shadows_[restoring.shadow];
    restoring_.erase(restoring_.begin() + static_cast<ptrdiff_t>(i));
    const PrefixExtras extras = scheduler_->find(shadow.id)->extras;
    if (restoring.is_kept) {
      bring_back(shadow.id, shadow.tokens, shadow.prefix_hash, extras, stats);
    }
    scheduler_->resume(shadow.id);
  }
}

}  // namespace sluice
