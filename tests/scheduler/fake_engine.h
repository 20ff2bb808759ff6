// SPDX-License-Identifier: Apache-2.0
// A scheduler and a KV manager driven by seeded chance, with a model whose next token is a hash of
// the whole sequence and a storage that remembers which prefix wrote each slot. One object is one
// episode: arrivals of several tenants with shared prefixes, priorities and deadlines, aborts in
// every phase, tiny pools, slow steps, a clock that jumps, transfers, one to three steps in flight,
// or two or four over disjoint requests; a tier below the cache that restores KV late, in part or
// not at all; drafts that are right, wrong, or right and then wrong. Finally arrivals stop and
// everything has to end.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"

namespace sluice {

struct EpisodeStats {
  uint64_t num_requests = 0;
  uint64_t num_finished = 0;
  uint64_t num_aborted_waiting = 0;
  uint64_t num_aborted_idle = 0;
  uint64_t num_aborted_in_flight = 0;
  uint64_t num_preempted = 0;
  uint64_t num_rejected = 0;
  uint64_t num_starved = 0;  // steps
  uint64_t num_expired = 0;
  uint64_t num_resumed = 0;      // preempted requests that were offered to a tier
  uint64_t num_restored = 0;     // blocks restored from the tier
  uint64_t num_restored_states = 0;  // from a tier of their own
  uint64_t num_taken_turns = 0;  // admissions while others waited
  uint64_t num_hit_tokens = 0;
  uint64_t num_copied_tokens = 0;  // part of these in copied blocks
  uint64_t num_drafted_tokens = 0;
  uint64_t num_accepted_tokens = 0;  // accepted ones of these
  uint64_t num_following_chunks = 0;  // of prompts that have a chunk in flight, in disjoint steps
  uint64_t num_steps = 0;
};

inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline uint64_t extended(uint64_t prefix_hash, TokenId token) {
  return mix(prefix_hash ^ static_cast<uint64_t>(token + 1));
}

// The model: every output is a function of the prefix.
inline TokenId next_token(uint64_t prefix_hash, int32_t vocab_size) {
  return static_cast<TokenId>(mix(prefix_hash ^ 0x70CE4) % static_cast<uint64_t>(vocab_size));
}

inline bool ends_here(uint64_t prefix_hash) { return mix(prefix_hash ^ 0xE05) % 24 == 0; }

inline constexpr const char* kKeySpace = "simulated";

class FakeEngine final : private KvStateSink {
 public:
  explicit FakeEngine(uint64_t seed);

  // Runs `num_steps` steps with arrivals, then to the end. Empty when every check held.
  std::string run(int32_t num_steps, EpisodeStats& stats);

  [[nodiscard]] std::string describe() const;

 private:
  // The simulation's own knowledge of a request.
  struct Shadow {
    RequestId id;
    std::vector<TokenId> tokens;
    std::vector<uint64_t> prefix_hash;  // [i]: hash of the extras and the first i tokens
    int32_t num_prompt_tokens = 0;
    int32_t num_given_tokens = 0;  // including tokens generated before its arrival
    int32_t max_tokens = 0;
    int32_t priority = 0;
    int64_t rank_ms = 0;
    int64_t deadline_ms = kNoDeadline;
    TenantId tenant;
    uint64_t order = 0;
    bool started = false;         // has been scheduled at least once
    bool was_first = false;       // its turn came once, perhaps without room
    uint64_t preempted_step = 0;  // latest step that preempted it
    uint64_t last_step = 0;       // latest step that it had rows in
    uint64_t step_before = 0;     // the one before that
    bool could_follow = false;    // when the step began
    int32_t next_position = -1;   // -1: not running
    int32_t num_pending = 0;      // samples in flight
    int32_t num_drafts_in_flight = 0;
    std::vector<TokenId> offered;  // drafts for the coming step
    int32_t num_rows_in_flight = 0;
    bool ended = false;     // finished, failed or aborted, as the client sees it
    bool aborting = false;  // aborted while in flight

    [[nodiscard]] int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  };

  struct Row {
    ScheduledRequest scheduled;
    size_t shadow = 0;
    std::vector<std::vector<BlockId>> tables;  // by group, as at submission
    std::vector<TokenId> drafts;
    std::vector<uint64_t> draft_hash;  // [i]: hash of the prefix that draft i ends
  };

  struct Step {
    SchedulerOutput output;
    std::vector<Row> rows;
  };

  struct Transfer {
    int32_t group = 0;
    BlockId block;
    std::vector<uint64_t> contents;
    int32_t steps_left = 0;
  };

  // A block in the tier below: its contents per group, empty for a group without it.
  using Kept = std::vector<std::vector<uint64_t>>;

  void left(const KvState& state) override;
  void bring_back_blocks(std::span<const TokenId> all,
                         const std::vector<uint64_t>& prefix_hash,
                         const PrefixExtras& extras,
                         size_t& next,
                         EpisodeStats& stats);
  void bring_back_state(std::span<const TokenId> tokens,
                        const PrefixExtras& extras,
                        int32_t num_cached,
                        int32_t num_blocks,
                        EpisodeStats& stats);

  // A preempted request that was offered to the tier.
  struct Restoring {
    size_t shadow = 0;
    int32_t turns_left = 0;
    bool is_kept = false;  // false: not in the tier, or too costly
  };

  // Random choices.
  uint64_t draw(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

  bool chance(double probability) {
    return static_cast<double>(random_() >> 11) * 0x1p-53 < probability;
  }

  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(draw(static_cast<uint64_t>(high - low) + 1));
  }

  void draw_groups(int32_t blocks_for_longest);
  void arrive(EpisodeStats& stats);
  void abort_somebody(EpisodeStats& stats);
  void offer_drafts();
  void see_drafts(Row& row, std::span<const TokenId> token_ids, EpisodeStats& stats);
  void put_in_place(Row& row);
  void narrow_windows(size_t shadow);
  void check_blocks_are_kept();
  [[nodiscard]] uint64_t hash_at(const Row& row, int32_t num_tokens) const;
  std::vector<TokenId> choose(const Row& row, bool& ends, EpisodeStats& stats);
  void start_transfer();
  void end_transfers(bool all);
  void submit(EpisodeStats& stats);
  void retire(EpisodeStats& stats);
  void turn(bool arrivals, EpisodeStats& stats);

  std::span<uint64_t> contents_of(size_t group, BlockId block);
  void save_blocks(const Row& row);
  void bring_back(RequestId id,
                  const std::vector<TokenId>& tokens,
                  const std::vector<uint64_t>& prefix_hash,
                  const PrefixExtras& extras,
                  EpisodeStats& stats);
  void end_restoring(EpisodeStats& stats);
  void see_restoring(const SchedulerOutput& output, EpisodeStats& stats);
  [[nodiscard]] bool is_restoring(const Shadow& shadow) const;

  void see_preempted(const SchedulerOutput& output, EpisodeStats& stats);
  void see_expired(const SchedulerOutput& output, EpisodeStats& stats);
  void see_starved(const SchedulerOutput& output, EpisodeStats& stats);
  void see_row(const ScheduledRequest& scheduled,
               std::span<const TokenId> token_ids,
               Step& step,
               EpisodeStats& stats);
  [[nodiscard]] int64_t num_partial() const;
  void check_budgets(const SchedulerOutput& output);
  [[nodiscard]] bool may_follow(const Shadow& waiting) const;
  [[nodiscard]] bool waits(const Shadow& shadow) const;
  [[nodiscard]] bool comes_before(const Shadow& a, const Shadow& b) const;
  [[nodiscard]] bool is_passed_over(const Shadow& admitted, uint64_t step_id = 0) const;
  void note_turns();
  void check_admission_order(const Shadow& admitted, uint64_t step_id);
  void charge_start(Shadow& shadow, int32_t num_found);
  void check_no_room_is_idle(const SchedulerOutput& output);
  void forget(Shadow& shadow);
  void check_exclusive_writes(const Row& row);
  void check_turns(const SchedulerOutput& output);
  void check_oldest_progresses(const SchedulerOutput& output);
  void check_tokens(const Shadow& shadow);
  void check_everything();
  void check_reads(const Row& row, int32_t end, const char* when);
  void check_state_read(const Row& row, size_t group);
  void write_states(const Row& row, size_t group);
  void write_row(const Row& row);
  void run_copy(const KvBlockCopy& copy);
  void append_token(Shadow& shadow, TokenId token);

  [[nodiscard]] size_t shadow_of(RequestId id) const { return static_cast<size_t>(id.value - 1); }

  [[nodiscard]] bool is_before(const Shadow& a, const Shadow& b) const;
  void wrong(const std::string& what);

  uint64_t seed_;
  std::mt19937_64 random_;
  KvManagerOptions kv_options_;
  std::vector<KvGroupSpec> groups_;
  SchedulerOptions options_;
  int32_t vocab_size_ = 0;
  int32_t depth_ = 1;
  double arrival_rate_ = 0;
  double abort_rate_ = 0;
  double transfer_rate_ = 0;
  double draft_rate_ = 0;        // share of a request's steps
  double right_draft_rate_ = 0;  // share of drafted tokens
  double tier_rate_ = 0;         // share of blocks that are kept; 0: there is no tier
  double tier_fault_rate_ = 0;  // share of unreadable blocks
  std::vector<std::vector<TokenId>> shared_prefixes_;

  // The tenants' state as the scheduler should see it.
  struct Share {
    int64_t counter = 0;
    int32_t num_unstarted = 0;
  };

  std::map<TenantId, Share> shares_;
  int64_t served_ = 0;
  int64_t clock_ms_ = 1000;     // passed to the scheduler
  int64_t now_ms_ = INT64_MIN;  // the scheduler's view: never backwards
  std::unique_ptr<KvCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<Shadow> shadows_;  // by id - 1
  std::vector<size_t> live_;     // known to the scheduler
  std::deque<Step> in_flight_;
  std::vector<Transfer> transfers_;
  std::map<uint64_t, Kept> tier_;  // by the hash of the prefix that ends with the block
  bool has_state_tier_ = false;       // states lie apart, as the cache has left them
  std::map<KvKey, std::vector<uint64_t>> states_;  // by group of states
  std::vector<Restoring> restoring_;
  std::vector<std::vector<uint64_t>> storage_;  // by group: [block][offset], or [block] for states
  // By group and block, beside a state: prefixes that end with the drafts of the step that left it.
  std::vector<std::vector<std::vector<uint64_t>>> kept_drafts_;
  std::vector<std::vector<int32_t>> readers_;   // by group: rows in flight that use the block
  RequestId oldest_{};
  int32_t oldest_waited_ = 0;
  std::string error_;
};

}  // namespace sluice
