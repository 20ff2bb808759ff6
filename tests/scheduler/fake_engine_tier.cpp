// SPDX-License-Identifier: Apache-2.0
// The tier below the cache: it may keep what a step has computed, and restores it late, in part or
// not at all.
#include <algorithm>
#include <bit>
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
      if (has_state_tier_ && groups_[g].kind == KvGroupKind::kState) continue;
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
  next /= size;
  const auto num_cached = static_cast<int32_t>(next);
  if (has_state_tier_) {
    const auto num_kept = static_cast<size_t>(kv_->num_kept_blocks(all, extras));
    next = std::max(next, std::min(num_kept, (all.size() - 1) / size));
  }
  bring_back_blocks(all, prefix_hash, extras, next, stats);
  if (has_state_tier_) {
    bring_back_state(all, extras, num_cached, static_cast<int32_t>(next), stats);
  }
}

void FakeEngine::bring_back_blocks(std::span<const TokenId> all,
                                   const std::vector<uint64_t>& prefix_hash,
                                   const PrefixExtras& extras,
                                   size_t& next,
                                   EpisodeStats& stats) {
  const auto size = static_cast<size_t>(kv_options_.block_size);
  for (; (next + 1) * size < all.size(); ++next) {
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

// Keeps a state, as it lies there.
void FakeEngine::left(const KvState& state) {
  std::vector<uint64_t> contents;
  for (const KvBlockRef& ref : state.blocks) {
    contents.push_back(contents_of(static_cast<size_t>(ref.group), ref.block).front());
  }
  if (const auto known = states_.find(state.key);
      known != states_.end() && known->second != contents) {
    wrong("a prefix has two states");
  }
  if (chance(tier_rate_)) states_[state.key] = std::move(contents);
}

// Puts back the last state behind the cached blocks and within the first `num_blocks`.
void FakeEngine::bring_back_state(std::span<const TokenId> tokens,
                                  const PrefixExtras& extras,
                                  int32_t num_cached,
                                  int32_t num_blocks,
                                  EpisodeStats& stats) {
  const auto size = static_cast<size_t>(kv_options_.block_size);
  std::vector<KvKey> keys = {kv_root_key(kKeySpace, extras)};
  for (size_t i = 0; i < static_cast<size_t>(num_blocks); ++i) {
    keys.push_back(kv_next_key(keys.back(), tokens.subspan(i * size, size)));
  }
  uint64_t groups = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups |= static_cast<uint64_t>(groups_[g].kind == KvGroupKind::kState) << g;
  }
  for (int32_t end = num_blocks; end > num_cached; --end) {
    const auto state = states_.find(keys[static_cast<size_t>(end)]);
    if (state == states_.end()) continue;
    std::vector<KvBlockRef> inserted;
    kv_->insert(tokens, extras, {.first = end - 1, .count = 1}, {&groups, 1}, inserted);
    for (const KvBlockRef& ref : inserted) {
      const auto index = std::popcount(groups & ((uint64_t{1} << ref.group) - 1));
      contents_of(static_cast<size_t>(ref.group), ref.block).front() =
          state->second[static_cast<size_t>(index)];
    }
    stats.num_restored_states += inserted.empty() ? 0 : 1;
    return;
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
