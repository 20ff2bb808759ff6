// SPDX-License-Identifier: Apache-2.0
#include "tests/scheduler/fake_engine.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace sluice {

namespace {

uint64_t hash_extras(const PrefixExtras& extras) {
  uint64_t hash = mix(extras.tenant_salt);
  hash = mix(hash ^ static_cast<uint64_t>(extras.adapter_id));
  return mix(hash ^ extras.media_hash);
}

}  // namespace

FakeEngine::FakeEngine(uint64_t seed) : seed_(seed), random_(mix(seed)) {
  kv_options_.block_size = 1 << between(0, 3);
  kv_options_.enable_prefix_caching = chance(0.85);
  kv_options_.max_num_seqs = between(1, 10);
  kv_options_.max_model_len = between(8, 96);
  const auto blocks_for_longest =
      static_cast<int32_t>(ceil_div(kv_options_.max_model_len, kv_options_.block_size));
  draw_groups(blocks_for_longest);
  options_.max_num_seqs = kv_options_.max_num_seqs;
  options_.max_num_batched_tokens = chance(0.3) ? between(1, 6) : between(4, 80);
  options_.step_target_ms = chance(0.3) ? 0 : between(1, 40);
  options_.max_prefill_share = 0.01 * between(1, 100);
  options_.long_prefill_token_threshold = chance(0.2) ? between(1, 20) : 0;
  options_.max_num_partial_prefills = chance(0.2) ? between(1, 3) : 0;
  options_.max_num_queued_reqs = between(1, 24);
  options_.max_model_len = kv_options_.max_model_len;
  options_.preempt_every = chance(0.3) ? between(1, 7) : 0;
  options_.leave_room_for_answers = chance(0.7);
  options_.priority_aging_ms = chance(0.2) ? 0 : between(1, 300);
  vocab_size_ = between(2, 200);
  depth_ = chance(0.2) ? 3 : between(1, 2);
  if (chance(0.4)) options_.steps_in_flight = depth_ = chance(0.5) ? 2 : 4;
  arrival_rate_ = 0.05 + 0.6 * static_cast<double>(draw(100)) / 100;
  abort_rate_ = chance(0.5) ? 0.0 : 0.1;
  transfer_rate_ = chance(0.7) ? 0.0 : 0.1;
  if (chance(0.6)) {
    draft_rate_ = chance(0.5) ? 1.0 : 0.5;
    right_draft_rate_ = chance(0.2) ? 0.0 : chance(0.3) ? 1.0 : 0.8;
  }
  // Where states take drafts back, the runner must know how many were accepted.
  const bool takes_back =
      std::ranges::any_of(groups_, [](const KvGroupSpec& group) { return group.most_drafts > 0; });
  const bool is_disjoint = options_.steps_in_flight > 1;
  options_.follows_drafts = depth_ >= 2 && chance(0.6) && !takes_back && !is_disjoint;
  options_.speculation.is_fixed = chance(0.7);
  options_.max_chosen_rows = chance(0.5) ? 0 : between(1, 40);
  if (kv_options_.enable_prefix_caching && chance(0.5)) {
    tier_rate_ = chance(0.5) ? 1.0 : 0.6;
    tier_fault_rate_ = chance(0.5) ? 0.0 : 0.2;
    options_.restores_preempted = chance(0.8);
    ++kv_options_.max_num_seqs;  // looking up what to restore holds blocks for a moment
  }
  const int32_t num_prefixes = between(1, 4);
  for (int32_t i = 0; i < num_prefixes; ++i) {
    std::vector<TokenId> prefix(static_cast<size_t>(between(1, kv_options_.max_model_len)));
    for (TokenId& token : prefix) token = between(0, vocab_size_ - 1);
    // Prefixes that share a beginning exercise the tree's branches.
    if (i > 0 && chance(0.5)) {
      const auto shared = std::min({prefix.size(), shared_prefixes_[0].size(), size_t{16}});
      std::copy_n(shared_prefixes_[0].begin(), shared, prefix.begin());
    }
    shared_prefixes_.push_back(std::move(prefix));
  }
  kv_ = std::make_unique<KvCacheManager>(kv_options_, groups_);
  scheduler_ = std::make_unique<Scheduler>(options_, *kv_);
  has_state_tier_ = tier_rate_ > 0 && chance(0.5) &&
                    std::ranges::count(groups_, KvGroupKind::kState, &KvGroupSpec::kind) > 0;
  if (has_state_tier_) {
    kv_->name_blocks(kKeySpace);
    kv_->set_state_sink(*this);
  }
  for (const KvGroupSpec& group : groups_) {
    const auto num_blocks = static_cast<size_t>(group.num_blocks);
    const auto slots =
        static_cast<size_t>(group.kind == KvGroupKind::kState ? 1 : kv_options_.block_size);
    storage_.emplace_back(num_blocks * slots, 0xDEAD);
    kept_drafts_.emplace_back(num_blocks);
    readers_.emplace_back(num_blocks, 0);
  }
}

void FakeEngine::draw_groups(int32_t blocks_for_longest) {
  const auto pool = [&](int32_t least) {
    return chance(0.6) ? between(least, least * 2) : between(least, least * 12);
  };
  const KvGroupSpec full{.kind = KvGroupKind::kFull, .num_blocks = pool(blocks_for_longest)};
  const KvGroupSpec latent{.kind = KvGroupKind::kLatent, .num_blocks = pool(blocks_for_longest)};
  const int32_t window = between(1, kv_options_.max_model_len);
  const auto window_blocks = static_cast<int32_t>(ceil_div(window - 1, kv_options_.block_size)) + 1;
  const KvGroupSpec windowed{
      .kind = KvGroupKind::kWindow, .window = window, .num_blocks = pool(window_blocks)};
  const int32_t interval = kv_options_.block_size * between(1, 4);
  const KvGroupSpec state{.kind = KvGroupKind::kState,
                          .interval = interval,
                          .snapshot_every = chance(0.3) ? 0 : interval * between(1, 6),
                          .most_drafts = chance(0.3) ? 0 : between(1, 9),
                          .num_blocks = pool(2)};
  switch (draw(6)) {
    case 0:
      groups_ = {full};
      break;
    case 1:
      groups_ = {full, windowed};
      break;
    case 2:
      groups_ = {windowed};
      break;
    case 3:
      groups_ = {windowed, full};
      break;
    case 4:
      groups_ = {latent, state};
      break;
    default:
      groups_ = {full, windowed, state};
      break;
  }
  // Makes a pool smaller than the longest request, so that some are refused.
  if (chance(0.15)) groups_[0].num_blocks = std::max(1, groups_[0].num_blocks / 2);
}

std::string FakeEngine::describe() const {
  std::ostringstream out;
  out << "seed " << seed_ << ": block_size " << kv_options_.block_size << ", caching "
      << kv_options_.enable_prefix_caching << ", seqs " << options_.max_num_seqs << ", tokens "
      << options_.max_num_batched_tokens << ", target_ms " << options_.step_target_ms << ", share "
      << options_.max_prefill_share << ", partial " << options_.max_num_partial_prefills
      << ", queue " << options_.max_num_queued_reqs << ", model_len " << options_.max_model_len
      << ", preempt_every " << options_.preempt_every << ", aging " << options_.priority_aging_ms
      << ", depth " << depth_ << (options_.steps_in_flight > 1 ? " of disjoint steps" : "")
      << ", groups";
  for (const KvGroupSpec& group : groups_) {
    out << " (kind " << static_cast<int>(group.kind) << " window " << group.window << " interval "
        << group.interval << " snapshots " << group.snapshot_every << " blocks " << group.num_blocks
        << ")";
  }
  return out.str();
}

void FakeEngine::wrong(const std::string& what) {
  if (error_.empty()) error_ = what;
}

bool FakeEngine::is_before(const Shadow& a, const Shadow& b) const {
  return std::pair(a.rank_ms, a.order) < std::pair(b.rank_ms, b.order);
}

void FakeEngine::append_token(Shadow& shadow, TokenId token) {
  shadow.tokens.push_back(token);
  shadow.prefix_hash.push_back(extended(shadow.prefix_hash.back(), token));
}

// --- Events ----------------------------------------------------------------------------------

void FakeEngine::arrive(EpisodeStats& stats) {
  const std::vector<TokenId>& shared = shared_prefixes_[draw(shared_prefixes_.size())];
  std::vector<TokenId> prompt(shared.begin(),
                              shared.begin() + between(0, static_cast<int32_t>(shared.size())));
  const int32_t num_own = between(prompt.empty() ? 1 : 0, 8);
  for (int32_t i = 0; i < num_own; ++i) prompt.push_back(between(0, vocab_size_ - 1));
  const int32_t room = options_.max_model_len - static_cast<int32_t>(prompt.size());
  Request request;
  request.id = RequestId{shadows_.size() + 1};
  request.num_prompt_tokens = static_cast<int32_t>(prompt.size());
  request.max_tokens = between(1, std::max(2, room + 1));
  request.priority = chance(0.3) ? between(-1, 3) : 0;
  request.keeps_prompt = chance(0.1);
  request.tenant = TenantId(chance(0.5) ? 0 : draw(4));
  request.arrival_ms = clock_ms_;
  if (chance(0.1)) request.deadline_ms = clock_ms_ + between(-20, 400);
  if (chance(0.2)) request.extras.tenant_salt = draw(2);
  if (chance(0.2)) request.extras.adapter_id = between(0, 1);
  if (chance(0.2)) request.extras.media_hash = draw(2);
  const int32_t num_tokens = static_cast<int32_t>(prompt.size()) + request.max_tokens;
  const bool valid = num_tokens <= options_.max_model_len && kv_->fits_alone(num_tokens - 1);
  const bool full = scheduler_->num_unstarted() >= options_.max_num_queued_reqs;
  Shadow shadow;
  shadow.id = request.id;
  shadow.prefix_hash.push_back(hash_extras(request.extras));
  for (const TokenId token : prompt) append_token(shadow, token);
  shadow.num_prompt_tokens = static_cast<int32_t>(prompt.size());
  if (chance(0.2)) {  // a stream begun by another worker
    const int32_t num_generated = between(0, request.max_tokens - 1);
    for (int32_t i = 0; i < num_generated && !ends_here(shadow.prefix_hash.back()); ++i) {
      append_token(shadow, next_token(shadow.prefix_hash.back(), vocab_size_));
    }
  }
  request.log = TokenLog(shadow.tokens, static_cast<size_t>(num_tokens));
  shadow.num_given_tokens = shadow.num_tokens();
  shadow.max_tokens = request.max_tokens;
  shadow.priority = request.priority;
  const int64_t level_ms = options_.priority_aging_ms > 0 ? options_.priority_aging_ms : 1LL << 31;
  shadow.rank_ms = clock_ms_ + request.priority * level_ms;
  shadow.deadline_ms = request.deadline_ms;
  shadow.tenant = request.tenant;
  shadow.order = shadows_.size();
  if (tier_rate_ > 0 && valid && in_flight_.empty() && chance(0.3)) {
    bring_back(request.id, shadow.tokens, shadow.prefix_hash, request.extras, stats);
  }
  const auto added = scheduler_->add(std::move(request));
  if (added.has_value() != (valid && !full)) return wrong("add() took or refused wrongly");
  if (!added) {
    const auto expected = valid ? ErrorCode::kResourceExhausted : ErrorCode::kInvalidArgument;
    if (added.error().code != expected) wrong("add() refused for a wrong reason");
    ++stats.num_rejected;
    return;
  }
  Share& share = shares_[shadow.tenant];
  if (share.num_unstarted++ == 0) {
    share.counter = std::max(share.counter, served_ - options_.max_num_batched_tokens);
  }
  ++stats.num_requests;
  live_.push_back(shadows_.size());
  shadows_.push_back(std::move(shadow));
}

void FakeEngine::abort_somebody(EpisodeStats& stats) {
  if (live_.empty()) return;
  Shadow& shadow = shadows_[live_[draw(live_.size())]];
  const bool gone = scheduler_->abort(shadow.id);
  const bool should_go = shadow.num_rows_in_flight == 0;
  if (gone != should_go) return wrong("abort() went at once while in flight, or did not when idle");
  if (shadow.ended) return;
  if (!gone) {
    if (!shadow.aborting) ++stats.num_aborted_in_flight;
    shadow.aborting = true;
    return;
  }
  ++(shadow.next_position < 0 ? stats.num_aborted_waiting : stats.num_aborted_idle);
  if (scheduler_->find(shadow.id) != nullptr) wrong("an aborted request can still be found");
  forget(shadow);
}

void FakeEngine::forget(Shadow& shadow) {
  shadow.ended = true;
  if (!shadow.started) --shares_[shadow.tenant].num_unstarted;
  std::erase(live_, shadow_of(shadow.id));
}

void FakeEngine::start_transfer() {
  if (live_.empty()) return;
  const Shadow& shadow = shadows_[live_[draw(live_.size())]];
  const Request* request = scheduler_->find(shadow.id);
  const auto group = static_cast<size_t>(draw(groups_.size()));
  if (groups_[group].kind == KvGroupKind::kState) return;
  // A full block is not written any more.
  const int32_t num_full = request->num_computed_tokens / kv_options_.block_size;
  const auto table = kv_->block_table(shadow.id, static_cast<int32_t>(group));
  if (num_full == 0 || table.empty()) return;
  const BlockId block = table[draw(static_cast<uint64_t>(num_full))];
  if (block == kNullBlock) return;
  kv_->begin_transfer(static_cast<int32_t>(group), block);
  Transfer transfer{.group = static_cast<int32_t>(group),
                    .block = block,
                    .contents = {},
                    .steps_left = between(0, 12)};
  const auto size = static_cast<size_t>(kv_options_.block_size);
  const auto first = storage_[group].begin() + block.value * kv_options_.block_size;
  transfer.contents.assign(first, first + static_cast<ptrdiff_t>(size));
  transfers_.push_back(std::move(transfer));
}

void FakeEngine::end_transfers(bool all) {
  std::erase_if(transfers_, [&](Transfer& transfer) {
    if (transfer.steps_left-- > 0 && !all) return false;
    const auto& storage = storage_[static_cast<size_t>(transfer.group)];
    const auto first = storage.begin() + transfer.block.value * kv_options_.block_size;
    if (!std::equal(transfer.contents.begin(), transfer.contents.end(), first)) {
      wrong("a block changed while it was in transfer");
    }
    kv_->end_transfer(transfer.group, transfer.block);
    return true;
  });
}

// --- The model run ---------------------------------------------------------------------------

void FakeEngine::check_state_read(const Row& row, size_t group) {
  const Shadow& shadow = shadows_[row.shadow];
  const int32_t start = row.scheduled.num_computed_tokens - row.scheduled.num_replayed;
  if (start == 0) return;
  const int32_t entry = (start - 1) / groups_[group].interval;
  const BlockId block = row.tables[group][static_cast<size_t>(entry)];
  if (block == kNullBlock) return wrong("the state to start from was let go");
  if (storage_[group][static_cast<size_t>(block.value)] !=
      shadow.prefix_hash[static_cast<size_t>(start)]) {
    wrong("a state is not that of the prefix");
  }
  const std::vector<uint64_t>& drafts = kept_drafts_[group][static_cast<size_t>(block.value)];
  const auto first = shadow.prefix_hash.begin() + start + 1;
  const auto replayed = static_cast<size_t>(row.scheduled.num_replayed);
  if (replayed > drafts.size() ||
      !std::equal(first, first + row.scheduled.num_replayed, drafts.begin())) {
    wrong("a row replays other drafts than those that were accepted");
  }
}

// Leaves the states in front of the row's drafts, which it keeps beside the last one.
void FakeEngine::write_states(const Row& row, size_t group) {
  const ScheduledRequest& scheduled = row.scheduled;
  const int32_t end = scheduled.end() - scheduled.num_draft_tokens;
  const auto block_of = [&](int32_t position) {
    const auto entry = static_cast<size_t>(position / groups_[group].interval);
    return static_cast<size_t>(row.tables[group][entry].value);
  };
  int32_t position = scheduled.num_computed_tokens - scheduled.num_replayed;
  for (; position < end; ++position) {
    storage_[group][block_of(position)] = hash_at(row, position + 1);
  }
  if (scheduled.num_draft_tokens > groups_[group].most_drafts) wrong("a state keeps more drafts");
  if (scheduled.num_draft_tokens > 0) kept_drafts_[group][block_of(end - 1)] = row.draft_hash;
}

// Checks that every slot visible to the row's queries up to position `end` has its own prefix.
void FakeEngine::check_reads(const Row& row, int32_t end, const char* when) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == KvGroupKind::kState) continue;
    int32_t position = 0;
    if (groups_[g].kind == KvGroupKind::kWindow) {
      position = std::max(0, row.scheduled.num_computed_tokens - groups_[g].window + 1);
    }
    for (; position < end; ++position) {
      const auto entry = static_cast<size_t>(position / kv_options_.block_size);
      const BlockId block = row.tables[g][entry];
      if (block == kNullBlock) return wrong("a row reads a block that was let go");
      const auto slot = static_cast<size_t>(block.value * kv_options_.block_size +
                                            position % kv_options_.block_size);
      if (storage_[g][slot] != hash_at(row, position + 1)) {
        return wrong(std::string("a slot holds another prefix ") + when);
      }
    }
  }
}

void FakeEngine::write_row(const Row& row) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == KvGroupKind::kState) write_states(row, g);
  }
  const int32_t start = row.scheduled.num_computed_tokens;
  for (int32_t position = start; position < start + row.scheduled.num_scheduled_tokens;
       ++position) {
    const uint64_t hash = hash_at(row, position + 1);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kind == KvGroupKind::kState) continue;
      const auto entry = static_cast<size_t>(position / kv_options_.block_size);
      storage_[g][static_cast<size_t>(row.tables[g][entry].value * kv_options_.block_size +
                                      position % kv_options_.block_size)] = hash;
    }
  }
}

void FakeEngine::run_copy(const KvBlockCopy& copy) {
  const auto size = static_cast<ptrdiff_t>(kv_options_.block_size);
  const auto begin = storage_[static_cast<size_t>(copy.group)].begin();
  std::copy_n(begin + copy.from.value * size, size, begin + copy.to.value * size);
}

// Runs the oldest step in flight as late as possible, and returns its samples.
void FakeEngine::retire(EpisodeStats& stats) {
  Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const KvBlockCopy& copy : step.output.copies) run_copy(copy);
  for (Row& row : step.rows) put_in_place(row);
  for (const Row& row : step.rows) {
    check_reads(row, row.scheduled.num_computed_tokens, "before the step");
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kind == KvGroupKind::kState) check_state_read(row, g);
    }
  }
  for (const Row& row : step.rows) write_row(row);
  for (const Row& row : step.rows) save_blocks(row);
  std::vector<StepResult> results;
  std::deque<std::vector<TokenId>> chosen;
  std::vector<size_t> leaving;
  for (const Row& row : step.rows) {
    Shadow& shadow = shadows_[row.shadow];
    check_reads(row, row.scheduled.end(), "after the step");
    --shadow.num_rows_in_flight;
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const BlockId block : row.tables[g]) {
        if (block != kNullBlock) --readers_[g][static_cast<size_t>(block.value)];
      }
    }
    if (!row.scheduled.chosen.empty()) {
      --shadow.num_pending;
      shadow.num_drafts_in_flight -= row.scheduled.num_draft_tokens;
      bool ends = false;
      chosen.push_back(choose(row, ends, stats));
      narrow_windows(row.shadow);
      // The runner may or may not answer a request past its end.
      if (!(shadow.ended || shadow.aborting) || chance(0.5)) {
        results.push_back({shadow.id, chosen.back(), ends});
      }
      if (!shadow.ended && !shadow.aborting && ends) {
        shadow.ended = true;
        ++stats.num_finished;
      }
    }
    if ((shadow.ended || shadow.aborting) && shadow.num_rows_in_flight == 0) {
      leaving.push_back(row.shadow);
    }
  }
  const double tokens = static_cast<double>(step.output.total_tokens);
  const double measured_ms =
      (0.3 + 0.2 * tokens) * (chance(0.02) ? 300 : 1) * (chance(0.02) ? 0 : 1);
  std::vector<RequestId> aborted;
  scheduler_->update(step.output, results, measured_ms, aborted);
  check_blocks_are_kept();
  for (const size_t i : leaving) {
    Shadow& shadow = shadows_[i];
    if (scheduler_->find(shadow.id) != nullptr) wrong("an ended request did not leave");
    if ((std::ranges::count(aborted, shadow.id) == 1) != shadow.aborting) {
      wrong("an abort was not reported once");
    }
    std::erase(aborted, shadow.id);
    shadow.ended = true;
    std::erase(live_, i);
  }
  if (!aborted.empty()) wrong("an abort was reported of a request that did not leave");
}

// --- The whole episode -------------------------------------------------------------------------

void FakeEngine::check_tokens(const Shadow& shadow) {
  const Request* request = scheduler_->find(shadow.id);
  if (request == nullptr) return wrong("a live request cannot be found");
  if (!shadow.ended && !shadow.aborting && !std::ranges::equal(request->tokens(), shadow.tokens)) {
    wrong("tokens were lost, doubled or reordered");
  }
}

void FakeEngine::check_everything() {
  if (std::string what = kv_->check_integrity(); !what.empty()) wrong("kv: " + what);
  if (std::string what = scheduler_->check_integrity(); !what.empty()) wrong("scheduler: " + what);
  for (const size_t i : live_) check_tokens(shadows_[i]);
  const auto known = static_cast<size_t>(scheduler_->num_running() + scheduler_->num_waiting());
  for (const auto& [tenant, share] : shares_) {
    if (scheduler_->num_virtual_tokens(tenant) != share.counter) {
      wrong("a tenant was charged something else");
    }
  }
  if (known != live_.size()) wrong("the scheduler knows more or fewer requests than are live");
}

void FakeEngine::turn(bool arrivals, EpisodeStats& stats) {
  if (arrivals) {
    while (chance(arrival_rate_) && error_.empty()) arrive(stats);
    if (chance(abort_rate_)) abort_somebody(stats);
    if (chance(transfer_rate_)) start_transfer();
    if (chance(0.002)) kv_->reset_prefix_cache();
  }
  end_transfers(!arrivals);
  end_restoring(stats);
  const auto depth = static_cast<size_t>(depth_);
  const size_t before = in_flight_.size();
  submit(stats);
  if (!error_.empty()) return;
  check_everything();
  if (arrivals && chance(abort_rate_)) abort_somebody(stats);
  // Keeps `depth` steps in flight; one fewer when nothing was added, and occasionally at random.
  const bool stuck = in_flight_.size() == before;
  while (error_.empty() && !in_flight_.empty() &&
         (in_flight_.size() >= depth || stuck || chance(0.1))) {
    retire(stats);
    check_everything();
    if (stuck) break;
  }
}

std::string FakeEngine::run(int32_t num_steps, EpisodeStats& stats) {
  for (int32_t i = 0; i < num_steps && error_.empty(); ++i) turn(/*arrivals=*/true, stats);
  // Each generated token can cost a preemption and a whole prefill in the smallest chunks.
  int64_t bound = 1000;
  for (const size_t i : live_) {
    const Shadow& shadow = shadows_[i];
    bound += int64_t{8} * (shadow.max_tokens + 2) * (shadow.num_prompt_tokens + shadow.max_tokens);
  }
  while (error_.empty() && (scheduler_->has_work() || !in_flight_.empty() || !restoring_.empty())) {
    if (bound-- == 0) wrong("no end in bounded steps");
    turn(/*arrivals=*/false, stats);
  }
  end_transfers(/*all=*/true);
  if (!error_.empty()) return error_;
  const KvUsage usage = kv_->usage();
  if (usage.num_referenced != 0 || usage.num_free + usage.num_cached != usage.num_blocks) {
    wrong("blocks are neither free nor cached at the end");
  }
  if (!live_.empty()) wrong("a request was never answered");
  check_everything();
  return error_;
}

}  // namespace sluice
