// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/tier_events.h"

#include <utility>

namespace sluice {

TierEvents::TierEvents(KvEventSink* sink,
                       std::vector<KvMedium> media,
                       std::vector<int32_t> groups)
    : sink_(sink), groups_(std::move(groups)) {
  for (const KvMedium medium : media) {
    tiers_.push_back({.medium = medium, .expected = {}, .reported = {}});
  }
}

void TierEvents::expect(size_t tier, const Block& block) {
  if (sink_ == nullptr) return;
  tiers_[tier].expected[block.key] = {
      .hash = block.hash,
      .parent_hash = block.parent_hash,
      .token_ids = std::vector(block.token_ids.begin(), block.token_ids.end()),
      .extras = block.extras};
}

void TierEvents::report_existing(size_t tier, const Block& block) {
  if (sink_ == nullptr || tiers_[tier].expected.contains(block.key)) return;
  report(tiers_[tier], block);
}

void TierEvents::note(size_t tier, const KvKey& key, bool is_there) {
  if (sink_ == nullptr) return;
  Tier& place = tiers_[tier];
  const auto expected = place.expected.extract(key);
  if (is_there) {
    if (expected.empty()) return;
    const Awaited& block = expected.mapped();
    report(place, {key, block.hash, block.parent_hash, block.token_ids, block.extras});
    return;
  }
  const auto reported = place.reported.extract(key);
  if (reported.empty()) return;
  for (const int32_t group : groups_) {
    sink_->removed(reported.mapped(), group, place.medium);
  }
}

void TierEvents::report(Tier& tier, const Block& block) {
  if (!tier.reported.try_emplace(block.key, block.hash).second) return;
  for (const int32_t group : groups_) {
    sink_->stored({.hash = block.hash,
                   .parent_hash = block.parent_hash,
                   .token_ids = block.token_ids,
                   .extras = block.extras,
                   .group = group,
                   .medium = tier.medium});
  }
}

}  // namespace sluice
