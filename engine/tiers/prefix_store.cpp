// SPDX-License-Identifier: Apache-2.0
#include "engine/tiers/prefix_store.h"

#include <algorithm>
#include <utility>

#include "engine/core/u64_fields.h"
#include "kvcache/prefix_index.h"
#include "kvcache/store/kv_disk_tier.h"
#include "kvcache/store/kv_host_tier.h"

namespace sluice {
namespace {

// Buffers that saving leaves to reading, for which requests wait.
constexpr size_t kReadBuffers = 4;
// Blocks put into the cache at once: their common prefix is looked up once.
constexpr size_t kCopyBlocks = 8;
// A request is computed instead after this time without any block, or when its blocks take this
// much longer than computing would.
constexpr std::chrono::seconds kPatience{5};
// A payload: the mask of groups with a block (bit g), then the blocks in order of all groups but
// those of states.
constexpr size_t kGroupsAt = 0;
constexpr int64_t kPartsAt = 64;

std::vector<int32_t> groups_in_payloads(std::span<const KvGroupSpec> groups) {
  std::vector<int32_t> found;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].kind != KvGroupKind::kState) found.push_back(static_cast<int32_t>(g));
  }
  return found;
}

}  // namespace

int64_t PrefixStore::payload_bytes(std::span<const KvGroupSpec> groups, int32_t block_size) {
  int64_t total = kPartsAt;
  for (const KvGroupSpec& group : groups) {
    if (group.kind != KvGroupKind::kState) total += kv_copied_bytes(group, block_size);
  }
  return total;
}

PrefixStore::PrefixStore(int32_t block_size,
                         std::string space,
                         std::string preemption_mode,
                         std::vector<KvMedium> media,
                         KvStorage& storage,
                         KvCacheManager& kv,
                         KvEventSink* events)
    : block_size_(block_size),
      space_(std::move(space)),
      preemption_mode_(std::move(preemption_mode)),
      storage_(storage),
      kv_(kv),
      cost_(2 * media.size()),
      events_(events, std::move(media), groups_in_payloads(storage.groups())) {
  CHECK_LE(kv.num_groups(), 64);
}

template <typename Byte>
std::span<Byte> PrefixStore::part_of(std::span<Byte> payload, int32_t group) const {
  int64_t at = kPartsAt;
  for (int32_t g = 0; g < group; ++g) at += has_part(g) ? storage_.block_bytes(g) : 0;
  return payload.subspan(static_cast<size_t>(at), static_cast<size_t>(storage_.block_bytes(group)));
}

// The block of tokens at which the entry ends.
int32_t PrefixStore::block_of(const KvBlockRef& ref) const {
  return (ref.entry + 1) * tokens_per_entry(spec(ref.group), block_size_) / block_size_ - 1;
}

Expected<std::unique_ptr<PrefixStore>> PrefixStore::create(const Config& config,
                                                           const std::string& fingerprint,
                                                           KvStorage& storage,
                                                           KvCacheManager& kv,
                                                           KvEventSink* events,
                                                           std::function<void()> wake) {
  const bool has_host = config.kv_offloading_size > 0;
  const bool has_disk = !config.kv_disk_path.empty();
  if (!config.enable_prefix_caching) {
    const std::string knob = has_disk ? "kv-disk-path" : "kv-offloading-size";
    return make_error(
        ErrorCode::kInvalidArgument, "--" + knob + " needs --enable-prefix-caching", knob);
  }
  const std::string space = kv_key_space(fingerprint, config.block_size);
  std::vector<KvMedium> media;
  if (has_host) media.push_back(KvMedium::kHost);
  if (has_disk) media.push_back(KvMedium::kDisk);
  std::unique_ptr<PrefixStore> store(new PrefixStore(
      config.block_size, space, config.preemption_mode, std::move(media), storage, kv, events));
  SLUICE_TRY(store->states_, StateTiers::create(config, space, storage, kv, events, wake));
  const int64_t share = store->states_ == nullptr ? 1 : 2;
  KvTierOptions options = {.max_bytes = (config.kv_offloading_size << 30) / share,
                           .block_size = config.block_size,
                           .payload_bytes = payload_bytes(storage.groups(), config.block_size)};
  if (has_host) {
    SLUICE_TRY(auto host, create_kv_host_tier(options, wake));
    store->add_tier(std::move(host));
  }
  options.max_bytes = config.kv_disk_size / share;
  if (has_disk) {
    SLUICE_TRY(auto disk,
               create_kv_disk_tier(options, config.kv_disk_path + "/" + space, std::move(wake)));
    store->add_tier(std::move(disk));
    store->remover_ = std::jthread([path = config.kv_disk_path](const std::stop_token& stop) {
      remove_unused_kv_folders(path, stop);
    });
  }
  return store;
}

void PrefixStore::add_tier(std::unique_ptr<KvTier> tier) {
  if (events_.has_listener()) {
    tier->set_listener([this, index = tiers_.size()](const KvKey& key, bool is_there) {
      events_.note(index, key, is_there);
    });
  }
  tiers_.push_back(std::move(tier));
}

PrefixStore::Chain PrefixStore::new_chain(const PrefixExtras& extras) const {
  Chain chain;
  chain.extras = extras;
  chain.root = kv_root_key(space_, extras);
  return chain;
}

KvFileName PrefixStore::name_of(Chain& chain,
                                std::span<const TokenId> tokens,
                                int32_t block) const {
  const auto size = static_cast<size_t>(block_size_);
  const auto index = static_cast<size_t>(block);
  while (chain.keys.size() <= index) {
    const KvKey& parent = chain.keys.empty() ? chain.root : chain.keys.back();
    chain.keys.push_back(kv_next_key(parent, tokens.subspan(chain.keys.size() * size, size)));
  }
  return {chain.keys[index],
          index == 0 ? chain.root : chain.keys[index - 1],
          tokens.subspan(index * size, size)};
}

TierEvents::Block PrefixStore::event_block(Chain& chain,
                                           std::span<const TokenId> tokens,
                                           int32_t block) const {
  const KvFileName name = name_of(chain, tokens, block);
  const auto size = static_cast<size_t>(block_size_);
  const auto hash_before = [&chain](size_t i) {
    return i == 0 ? std::nullopt : std::optional<uint64_t>(chain.hashes[i - 1]);
  };
  const auto index = static_cast<size_t>(block);
  for (size_t i = chain.hashes.size(); i <= index; ++i) {
    chain.hashes.push_back(
        prefix_hash(hash_before(i), tokens.subspan(i * size, size), chain.extras));
  }
  return {name.key, chain.hashes[index], hash_before(index), name.token_ids, chain.extras};
}

// --- Bringing back ---------------------------------------------------------------------------

bool PrefixStore::hold(const Request& request, Clock::time_point now) {
  if (request.needs_every_row()) return false;
  return start(request, /*is_preempted=*/false, /*by_cost=*/true, now);
}

bool PrefixStore::hold_preempted(const Request& request, Clock::time_point now) {
  if (request.needs_every_row() && request.num_scored_tokens + 1 < request.num_prompt_tokens) {
    return false;
  }
  return start(request, /*is_preempted=*/true, /*by_cost=*/preemption_mode_ == "auto", now);
}

// Requests the blocks after the cached ones. False: there are none, or computing them is faster.
bool PrefixStore::start(const Request& request,
                        bool is_preempted,
                        bool by_cost,
                        Clock::time_point now) {
  const bool is_stuck = num_outstanding_ > 0 && now - last_load_ > kPatience;
  if (is_stuck || request.num_tokens() <= block_size_) return false;
  // A request that cannot run is refused elsewhere.
  const int64_t num_in_all = int64_t{request.num_prompt_tokens} + request.max_tokens;
  if (num_in_all > INT32_MAX || !kv_.fits_alone(static_cast<int32_t>(num_in_all) - 1)) {
    return false;
  }
  Held held;
  held.id = request.id;
  held.log = request.log;
  held.is_preempted = is_preempted;
  held.chain = new_chain(request.extras);
  if (!find(held, by_cost)) return false;
  held.num_tickets = held.end + 1;
  held.ticket = next_ticket_;
  next_ticket_ += static_cast<uint64_t>(held.num_tickets);
  held.last_progress = now;
  const int64_t num_found = held.end - held.num_cached;
  const std::chrono::duration<double> computing(cost_.compute_seconds(num_found * block_size_));
  held.deadline = now + kPatience + std::chrono::duration_cast<Clock::duration>(computing);
  Held& waiting = held_.emplace_back(std::move(held));
  ask(waiting, now);
  if (waiting.asks_state) ask_state(waiting, now);
  return true;
}

// Finds what the tiers have behind the cached blocks. False: nothing, or computing it is faster.
bool PrefixStore::find(Held& held, bool by_cost) {
  const std::span<const TokenId> tokens = held.log.tokens();
  const PrefixExtras extras = held.chain.extras;
  const int32_t num_cached = kv_.acquire_prefix(held.id, tokens, extras, PrefixUse::kTransfer);
  kv_.free(held.id);
  if (!held.is_preempted) num_queried_ += tokens.size() - static_cast<size_t>(num_cached);
  held.num_cached = num_cached / block_size_;
  held.end = held.num_cached;
  // A state may be all that the cache lacks.
  if (states_ != nullptr) {
    held.end = std::max(held.end, kv_.num_kept_blocks(tokens, extras));
  }
  const auto max_blocks = static_cast<int32_t>((std::ssize(tokens) - 1) / block_size_);
  held.end = std::min(held.end, max_blocks);
  held.next_copied = held.end;
  held.tier_of.resize(static_cast<size_t>(held.end), 0);
  for (; held.end < max_blocks; ++held.end) {
    const KvKey key = name_of(held.chain, tokens, held.end).key;
    const auto tier = std::ranges::find_if(
        tiers_, [&key](const std::unique_ptr<KvTier>& t) { return t->contains(key); });
    if (tier == tiers_.end()) break;
    held.tier_of.push_back(static_cast<uint8_t>(tier - tiers_.begin()));
    if (!events_.has_listener()) continue;
    for (size_t i = 0; i < tiers_.size(); ++i) {
      if (!tiers_[i]->contains(key)) continue;
      events_.report_existing(i, event_block(held.chain, tokens, held.end));
    }
  }
  if (states_ != nullptr) find_state(held);
  held.next_copied = std::min(held.next_copied, held.end);
  held.next_asked = held.next_copied;
  if (held.end == held.num_cached) return false;
  std::array<int64_t, 2 * kMaxTiers> num_reads{};
  for (int32_t i = held.next_copied; i < held.end; ++i) {
    ++num_reads[held.tier_of[static_cast<size_t>(i)]];
  }
  if (held.asks_state) ++num_reads[tiers_.size() + held.state_tier];
  const int64_t num_tokens = int64_t{held.end - held.num_cached} * block_size_;
  return !by_cost || cost_.choose_read(std::span(num_reads).first(2 * tiers_.size()), num_tokens);
}

// Ends what is read where the last state is.
void PrefixStore::find_state(Held& held) {
  for (; held.end > held.num_cached; --held.end) {
    const auto tier = states_->find(name_of(held.chain, held.log.tokens(), held.end - 1).key);
    if (!tier) continue;
    held.state_end = held.end;
    held.state_tier = *tier;
    held.asks_state = true;
    return;
  }
}

bool PrefixStore::abort(RequestId id) {
  const auto it = std::ranges::find(held_, id, &Held::id);
  if (it == held_.end()) return false;
  for (const Arrival& arrival : it->arrived) arrival.tier->give_back(arrival.buffer);
  if (it->state) states_->give_back(*it->state);
  held_.erase(it);
  return true;
}

void PrefixStore::ask(Held& held, Clock::time_point now) {
  for (; held.next_asked < held.end; ++held.next_asked) {
    KvTier& tier = *tiers_[held.tier_of[static_cast<size_t>(held.next_asked)]];
    const int32_t buffer = tier.take_buffer();
    if (buffer == KvTier::kNone) return;
    tier.load(name_of(held.chain, held.log.tokens(), held.next_asked),
              buffer,
              held.ticket + static_cast<uint64_t>(held.next_asked));
    ++held.num_outstanding;
    if (num_outstanding_++ == 0) last_load_ = now;
  }
}

void PrefixStore::ask_state(Held& held, Clock::time_point now) {
  const KvFileName name = name_of(held.chain, held.log.tokens(), held.state_end - 1);
  const uint64_t ticket = held.ticket + static_cast<uint64_t>(held.num_tickets) - 1;
  if (!states_->load(held.state_tier, name, ticket)) return;
  held.asks_state = false;
  ++held.num_outstanding;
  if (num_outstanding_++ == 0) last_load_ = now;
}

// The request that waits for this load; null: it was aborted, or is computed meanwhile.
PrefixStore::Held* PrefixStore::holder_of(const KvTier::Loaded& loaded, Clock::time_point now) {
  --num_outstanding_;
  last_load_ = now;
  const auto it = std::ranges::find_if(held_, [&](const Held& held) {
    return loaded.ticket >= held.ticket &&
           loaded.ticket - held.ticket < static_cast<uint64_t>(held.num_tickets);
  });
  if (it == held_.end()) return nullptr;
  --it->num_outstanding;
  it->last_progress = now;
  return &*it;
}

void PrefixStore::receive(Clock::time_point now) {
  for (size_t i = 0; i < tiers_.size(); ++i) {
    loaded_.clear();
    tiers_[i]->collect(loaded_);
    for (const KvTier::Loaded& loaded : loaded_) {
      if (loaded.ok) cost_.observe_read(i, loaded.seconds);
      finish_load(loaded, *tiers_[i], now);
    }
  }
  if (states_ != nullptr) receive_states(now);
}

void PrefixStore::receive_states(Clock::time_point now) {
  loaded_states_.clear();
  states_->collect(loaded_states_);
  for (const StateTiers::Arrival& arrival : loaded_states_) {
    if (arrival.loaded.ok) {
      cost_.observe_read(tiers_.size() + arrival.tier, arrival.loaded.seconds);
    }
    Held* const held = holder_of(arrival.loaded, now);
    if (held != nullptr && arrival.loaded.ok) {
      held->state = arrival;
      continue;
    }
    // Without the state, blocks in front of it are of no use.
    if (held != nullptr) held->end = held->next_copied;
    states_->give_back(arrival);
  }
}

void PrefixStore::finish_load(const KvTier::Loaded& loaded, KvTier& tier, Clock::time_point now) {
  Held* const held = holder_of(loaded, now);
  if (held == nullptr) return tier.give_back(loaded.buffer);
  const auto block = static_cast<int32_t>(loaded.ticket - held->ticket);
  if (!loaded.ok) held->end = std::min(held->end, block);
  held->arrived.push_back({block, loaded.buffer, &tier});
}

// Copies blocks into the cache, where they may be evicted as usual. False: their prefix was evicted
// meanwhile, or all blocks are in use.
bool PrefixStore::copy(Held& held, std::span<const Arrival> piece) {
  const int32_t num_tokens = held.end * block_size_;
  arrived_groups_.clear();
  for (const Arrival& arrival : piece) {
    uint64_t groups = get_u64(arrival.tier->payload(arrival.buffer), kGroupsAt);
    for (int32_t g = 0; g < kv_.num_groups(); ++g) {
      const int32_t entry = kv_.num_entries(g, (arrival.block + 1) * block_size_) - 1;
      if (entry < kv_.needed_entries(g, num_tokens).first) groups &= ~(uint64_t{1} << g);
    }
    arrived_groups_.push_back(groups);
  }
  inserted_.clear();
  const KvRange blocks = {.first = piece.front().block,
                          .count = static_cast<int32_t>(piece.size())};
  const int32_t count =
      kv_.insert(held.log.tokens(), held.chain.extras, blocks, arrived_groups_, inserted_);
  copy_in(inserted_, piece);
  if (!held.is_preempted && states_ == nullptr) {
    num_restored_ += static_cast<uint64_t>(count) * static_cast<uint64_t>(block_size_);
  }
  held.next_copied += count;
  return count == blocks.count;
}

// Puts the state behind its blocks, once all of them are there.
void PrefixStore::copy_state(Held& held) {
  const StateTiers::Arrival arrival = *std::exchange(held.state, std::nullopt);
  if (held.next_copied >= held.state_end) {
    inserted_.clear();
    const uint64_t groups = states_->groups();
    const KvRange last = {.first = held.state_end - 1, .count = 1};
    kv_.insert(held.log.tokens(), held.chain.extras, last, {&groups, 1}, inserted_);
    states_->copy_in(arrival, inserted_);
    if (!held.is_preempted && !inserted_.empty()) {
      const auto num_found = static_cast<uint64_t>(held.state_end - held.num_cached);
      num_restored_ += num_found * static_cast<uint64_t>(block_size_);
    }
  }
  states_->give_back(arrival);
}

void PrefixStore::copy_in(std::span<const KvBlockRef> inserted, std::span<const Arrival> piece) {
  for (const KvBlockRef& ref : inserted) {
    const Arrival& arrival = piece[static_cast<size_t>(block_of(ref) - piece.front().block)];
    storage_.copy_in(storage_.whole(ref.group, ref.block),
                     part_of(arrival.tier->payload(arrival.buffer), ref.group));
  }
  storage_.wait();
}

void PrefixStore::copy_arrived(Held& held) {
  std::ranges::sort(held.arrived, {}, &Arrival::block);
  size_t num_done = 0;
  while (held.next_copied < held.end) {
    size_t count = 0;
    const std::span<const Arrival> rest = std::span(held.arrived).subspan(num_done);
    while (count < std::min(rest.size(), kCopyBlocks) &&
           rest[count].block == held.next_copied + static_cast<int32_t>(count) &&
           rest[count].block < held.end) {
      ++count;
    }
    if (count == 0) break;
    if (!copy(held, rest.first(count))) held.end = held.next_copied;  // the rest is computed
    num_done += count;
  }
  if (held.next_copied >= held.end) num_done = held.arrived.size();
  for (const Arrival& arrival : std::span(held.arrived).first(num_done)) {
    arrival.tier->give_back(arrival.buffer);
  }
  held.arrived.erase(held.arrived.begin(), held.arrived.begin() + static_cast<ptrdiff_t>(num_done));
}

void PrefixStore::advance(Clock::time_point now,
                          std::vector<RequestId>& ready,
                          std::vector<RequestId>& resumed) {
  receive(now);
  for (Held& held : held_) {
    const bool waits_too_long = now - held.last_progress > kPatience || now > held.deadline;
    if (waits_too_long) held.end = held.next_copied;
    copy_arrived(held);
    if (held.next_copied < held.end) ask(held, now);
    // Blocks that end in front of the state need none.
    if (waits_too_long || held.end < held.state_end) held.asks_state = false;
    if (held.asks_state) ask_state(held, now);
    if (held.next_copied < held.end || held.asks_state) continue;
    // A broken block is reported before the request computes it and writes it again.
    if (held.num_outstanding > 0 && !waits_too_long) continue;
    if (held.state) copy_state(held);
    held.is_released = true;
    if (held.is_preempted) {
      resumed.push_back(held.id);
      continue;
    }
    savings_[held.id].chain = std::move(held.chain);
    ready.push_back(held.id);
  }
  std::erase_if(held_, [](const Held& held) { return held.is_released; });
}

// --- Saving ----------------------------------------------------------------------------------

void PrefixStore::save(const SchedulerOutput& output,
                       const Scheduler& scheduler,
                       std::span<const StepResult> results,
                       std::span<const RequestId> failed) {
  size_t next = 0;
  for (const ScheduledRequest& row : output.scheduled) {
    const std::span<const TokenId> chosen =
        row.chosen.empty() ? std::span<const TokenId>() : results[next++].tokens;
    if (!row.chosen.empty() && chosen.empty()) continue;
    // Accepted drafts have KV too.
    const auto num_right = row.chosen.empty() ? 0 : static_cast<int32_t>(chosen.size()) - 1;
    const int32_t end = row.end() - row.num_draft_tokens + num_right;
    if (end / block_size_ == row.num_computed_tokens / block_size_) continue;
    if (std::ranges::find(failed, row.id) != failed.end() || !kv_.is_proven(row.id)) continue;
    const Request& request = *scheduler.find(row.id);
    tokens_.assign(request.tokens().begin(), request.tokens().end());
    tokens_.insert(tokens_.end(), chosen.begin(), chosen.begin() + num_right);
    // The previous step failed, and this one continued after a missing token.
    if (static_cast<size_t>(end) > tokens_.size()) continue;
    save_blocks(request, end / block_size_);
  }
}

void PrefixStore::save_blocks(const Request& request, int32_t num_full) {
  const auto [it, added] = savings_.try_emplace(request.id);
  Saving& saving = it->second;
  if (added) saving.chain = new_chain(request.extras);
  for (size_t i = 0; i < tiers_.size(); ++i) {
    Progress& progress = saving.by_tier[i];
    while (!progress.is_broken && progress.num_saved < num_full) {
      if (!save_block(i, request, saving.chain, progress)) break;
      ++progress.num_saved;
    }
  }
}

// Leaves zeros where a window has no such block, and no bytes of the buffer's last use.
void PrefixStore::copy_out(RequestId id, int32_t block, std::span<std::byte> payload) const {
  const int32_t num_tokens = (block + 1) * block_size_;
  std::ranges::fill(payload.first(kPartsAt), std::byte{0});
  uint64_t groups = 0;
  for (int32_t g = 0; g < kv_.num_groups(); ++g) {
    const auto entry = static_cast<size_t>(kv_.num_entries(g, num_tokens) - 1);
    const std::span<const BlockId> table = kv_.block_table(id, g);
    if (!has_part(g)) continue;
    const bool ends_here = num_tokens % tokens_per_entry(spec(g), block_size_) == 0;
    if (!ends_here || entry >= table.size() || table[entry] == kNullBlock) {
      std::ranges::fill(part_of(payload, g), std::byte{0});
      continue;
    }
    groups |= uint64_t{1} << g;
    storage_.copy_out(storage_.whole(g, table[entry]), part_of(payload, g));
  }
  storage_.wait();
  put_u64(payload, kGroupsAt, groups);
}

// Saves the next block of the request. False: not now, or never.
bool PrefixStore::save_block(size_t index,
                             const Request& request,
                             Chain& chain,
                             Progress& progress) {
  KvTier& tier = *tiers_[index];
  const KvFileName name = name_of(chain, tokens_, progress.num_saved);
  if (tier.contains(name.key)) {
    tier.touch(name.key);
    if (events_.has_listener()) {
      events_.report_existing(index, event_block(chain, tokens_, progress.num_saved));
    }
    return true;
  }
  if (tier.num_free_buffers() <= kReadBuffers) return false;  // retried with a later block
  const int32_t buffer = tier.take_buffer();
  copy_out(request.id, progress.num_saved, tier.payload(buffer));
  progress.is_broken = !tier.save(name, buffer);
  if (!progress.is_broken && events_.has_listener()) {
    events_.expect(index, event_block(chain, tokens_, progress.num_saved));
  }
  return !progress.is_broken;
}

void PrefixStore::end_step(const SchedulerOutput& output,
                           const Scheduler& scheduler,
                           double seconds) {
  if (2 * output.num_prefill_tokens > output.total_tokens) {
    cost_.observe_compute(output.total_tokens, seconds);
  }
  for (const ScheduledRequest& row : output.scheduled) {
    if (scheduler.find(row.id) == nullptr) forget(row.id);
  }
}

void PrefixStore::add_stats(EngineStats& stats) const {
  stats.kv_tier_queries = num_queried_;
  stats.kv_tier_hits = num_restored_;
  stats.kv_tier_stored = 0;
  for (const std::unique_ptr<KvTier>& tier : tiers_) stats.kv_tier_stored += tier->num_written();
  if (states_ != nullptr) stats.kv_tier_stored += states_->num_written();
}

}  // namespace sluice
