// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/state_tiers.h"

#include <algorithm>
#include <utility>

#include "kvcache/store/kv_disk_tier.h"
#include "kvcache/store/kv_host_tier.h"

namespace sluice {
namespace {

// Two that are being written and one that is read.
constexpr int64_t kLeastBuffers = 3;
// Buffers that saving leaves to reading, for which requests wait.
constexpr size_t kBuffersForReading = 1;

bool holds_states(const KvGroupSpec& group) { return group.kind == KvGroupKind::kState; }

std::vector<int32_t> groups_with_states(std::span<const KvGroupSpec> groups) {
  std::vector<int32_t> found;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (holds_states(groups[g])) found.push_back(static_cast<int32_t>(g));
  }
  return found;
}

// Refuses room that does not hold one state.
Expected<void> check_room(const std::string& knob, int64_t bytes, int64_t state_bytes) {
  if (bytes >= state_bytes) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "--" + knob + ": half of it, " + std::to_string(bytes) +
                        " bytes, is for states of recurrent layers, one of which takes " +
                        std::to_string(state_bytes),
                    knob);
}

}  // namespace

std::optional<KvTierOptions> StateTiers::tier_options(std::span<const KvGroupSpec> groups,
                                                      int32_t block_size) {
  KvTierOptions options = {.block_size = block_size, .least_buffers = kLeastBuffers};
  for (const KvGroupSpec& group : groups) {
    if (holds_states(group)) options.payload_bytes += kv_copied_bytes(group, block_size);
  }
  if (options.payload_bytes == 0) return std::nullopt;
  return options;
}

StateTiers::StateTiers(KvStorage& storage, KvEventSink* events, std::vector<KvMedium> media)
    : storage_(storage), events_(events, std::move(media), groups_with_states(storage.groups())) {
  for (const int32_t group : groups_with_states(storage.groups())) groups_ |= uint64_t{1} << group;
}

Expected<std::unique_ptr<StateTiers>> StateTiers::create(const Config& config,
                                                         const std::string& space,
                                                         KvStorage& storage,
                                                         KvCacheManager& kv,
                                                         KvEventSink* events,
                                                         const std::function<void()>& wake) {
  auto options = tier_options(storage.groups(), config.block_size);
  if (!options) return std::unique_ptr<StateTiers>();
  const int64_t state_bytes = kv_tier_block_bytes(*options);
  std::vector<KvMedium> media;
  if (config.kv_offloading_size > 0) media.push_back(KvMedium::kHost);
  if (!config.kv_disk_path.empty()) media.push_back(KvMedium::kDisk);
  std::unique_ptr<StateTiers> states(new StateTiers(storage, events, std::move(media)));
  if (config.kv_offloading_size > 0) {
    options->max_bytes = (config.kv_offloading_size << 30) / 2;
    SLUICE_TRY_VOID(check_room("kv-offloading-size", options->max_bytes, state_bytes));
    SLUICE_TRY(auto host, create_kv_host_tier(*options, wake));
    states->add_tier(std::move(host));
  }
  if (!config.kv_disk_path.empty()) {
    options->max_bytes = config.kv_disk_size / 2;
    SLUICE_TRY_VOID(check_room("kv-disk-size", options->max_bytes, state_bytes));
    const std::string folder = config.kv_disk_path + "/" + space + "-states";
    SLUICE_TRY(auto disk, create_kv_disk_tier(*options, folder, wake));
    states->add_tier(std::move(disk));
  }
  kv.name_blocks(space);
  kv.set_state_sink(*states);
  return states;
}

void StateTiers::add_tier(std::unique_ptr<KvTier> tier) {
  if (events_.has_listener()) {
    tier->set_listener([this, index = tiers_.size()](const KvKey& key, bool is_there) {
      events_.note(index, key, is_there);
    });
  }
  tiers_.push_back(std::move(tier));
}

void StateTiers::left(const KvState& state) {
  for (size_t tier = 0; tier < tiers_.size(); ++tier) save(tier, state);
}

void StateTiers::save(size_t index, const KvState& state) {
  KvTier& tier = *tiers_[index];
  const TierEvents::Block block = {
      state.key, state.hash, state.parent_hash, state.token_ids, state.extras};
  if (tier.contains(state.key)) {
    tier.touch(state.key);
    return events_.report_existing(index, block);
  }
  if (tier.num_free_buffers() <= kBuffersForReading) return;  // the cache alone has it
  const int32_t buffer = tier.take_buffer();
  std::span<std::byte> payload = tier.payload(buffer);
  for (const KvBlockRef& ref : state.blocks) {
    const auto bytes = static_cast<size_t>(storage_.block_bytes(ref.group));
    storage_.copy_out(storage_.whole(ref.group, ref.block), payload.first(bytes));
    payload = payload.subspan(bytes);
  }
  storage_.wait();
  if (tier.save({state.key, state.parent_key, state.token_ids}, buffer)) {
    events_.expect(index, block);
  }
}

std::optional<size_t> StateTiers::find(const KvKey& key) const {
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (tiers_[tier]->contains(key)) return tier;
  }
  return std::nullopt;
}

bool StateTiers::load(size_t tier, const KvFileName& name, uint64_t ticket) {
  const int32_t buffer = tiers_[tier]->take_buffer();
  if (buffer == KvTier::kNone) return false;
  tiers_[tier]->load(name, buffer, ticket);
  return true;
}

void StateTiers::collect(std::vector<Arrival>& arrivals) {
  for (size_t tier = 0; tier < tiers_.size(); ++tier) {
    loaded_.clear();
    tiers_[tier]->collect(loaded_);
    for (const KvTier::Loaded& loaded : loaded_) arrivals.push_back({tier, loaded});
  }
}

void StateTiers::copy_in(const Arrival& arrival, std::span<const KvBlockRef> blocks) {
  for (const KvBlockRef& ref : blocks) {
    std::span<std::byte> payload = tiers_[arrival.tier]->payload(arrival.loaded.buffer);
    for (int32_t g = 0; g < ref.group; ++g) {
      if ((groups_ >> g & 1) == 0) continue;
      payload = payload.subspan(static_cast<size_t>(storage_.block_bytes(g)));
    }
    storage_.copy_in(storage_.whole(ref.group, ref.block),
                     payload.first(static_cast<size_t>(storage_.block_bytes(ref.group))));
  }
  storage_.wait();
}

uint64_t StateTiers::num_written() const {
  uint64_t total = 0;
  for (const std::unique_ptr<KvTier>& tier : tiers_) total += tier->num_written();
  return total;
}

}  // namespace sluice
