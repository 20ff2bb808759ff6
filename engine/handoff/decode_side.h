// SPDX-License-Identifier: Apache-2.0
// The decode worker's handoffs: holds a request outside of the scheduler while its blocks arrive,
// and drives a machine (decode_state.h) for each. Blocks that have landed are found like any cached
// prefix. Engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/kv_transfer_report.h"
#include "engine/core/stats.h"
#include "engine/handoff/decode_state.h"
#include "engine/handoff/fallback_counters.h"
#include "engine/handoff/handoff_links.h"
#include "engine/handoff/handoff_spec.h"
#include "engine/handoff/kv_parts.h"
#include "engine/handoff/landing_slot.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/store/kv_ranks.h"
#include "scheduler/scheduled_request.h"

namespace sluice {

class DecodeSide {
 public:
  // A request that is held no longer.
  struct Released {
    RequestId id;
    int64_t deadline_ms = kNoDeadline;
    int32_t num_landed_tokens = 0;
    std::optional<uint64_t> seed = {};  // the peer's, if the request adopts it
    std::optional<HandoffFallback> fallback = {};  // why its blocks are missing
  };

  // All arguments outlive it. `space`: see HandoffLinks. `max_reserved`: most held requests that
  // have blocks at once. `stats`: gets the counts of transfers in. `reports`: get the transfers of
  // traced requests.
  DecodeSide(std::string space,
             int32_t max_reserved,
             const DecodeTimes& times,
             const KvRanks& cache,
             KvCacheManager& kv,
             HandoffLinks& links,
             HandoffStats& stats,
             FallbackCounters& fallbacks,
             std::vector<KvTransferReport>& reports);

  // True: blocks of its prompt are asked for, and take_ready() returns it.
  bool hold(const Request& request,
            const HandoffSpec& spec,
            int64_t now_ms,
            const TraceContext& trace);
  // Drops the request. False: it is not held.
  bool abort(RequestId id, int64_t now_ms);
  // Appends requests whose blocks have landed, or are to be computed here.
  void take_ready(std::vector<Released>& ready);
  // A held request has chosen its first token, from a row of logits with this check (0: not known).
  // False: the peer's row had another check, so the blocks are no longer findable, and what was
  // computed after them does not count.
  bool compare(RequestId id, uint64_t check, int64_t now_ms);
  // The request has ended. Ids without a handoff are ignored.
  void end(RequestId id, int64_t now_ms);

  void receive(KvPeerId peer, const KvMessage& message, int64_t now_ms);
  void complete(const KvCompletion& completion, int64_t now_ms);
  void peer_up(KvPeerId peer, int64_t now_ms);
  void peer_down(KvPeerId peer, int64_t now_ms);
  // Reserves blocks for waiting requests in order of arrival, as long as `num_spare_blocks` stay
  // available beside the blocks that have landed but are not used yet (nullopt: reserves none).
  // Ends waits whose deadline has passed, and fires timers. Called between steps.
  void advance_all(int64_t now_ms, std::optional<int32_t> num_spare_blocks);
  [[nodiscard]] std::optional<int64_t> next_timer() const;
  void drain(int64_t now_ms);

  // Takes back the reserved blocks of the latest request, which is then computed here. False: no
  // request has any.
  bool reclaim_reserved(int64_t now_ms);

  // Returns kNone for a request without a handoff.
  [[nodiscard]] DecodePhase phase_of(RequestId id) const;
  // Adds the gauges of transfers in.
  void add_gauges(HandoffStats& stats) const;

  [[nodiscard]] size_t num_live() const { return records_.size(); }

  [[nodiscard]] int32_t num_posted() const;

 private:
  struct Record {
    KvTransferId transfer{};
    uint64_t number = 0;  // owner of its slots
    Request request;      // as it was when it came
    TraceContext trace;
    KvTransportKind transport = KvTransportKind::kNone;  // in the last claim
    bool is_held = true;
    bool asks_for_room = false;
    bool has_room = false;
    bool adopts_seed = false;
    uint64_t epoch = 0;  // in the claim
    DecodeState state;
    int32_t num_tokens = 0;  // the prompt's first ones, which can travel
    KvKey key{};
    std::vector<int32_t> first;  // the first missing entry, by group
    std::vector<KvPart> parts;   // of this attempt
    std::vector<bool> has_part;
    std::vector<KvBlockRef> reserved;
    std::vector<bool> has_arrived;  // by block of `reserved`
    std::vector<KvBlockRef> landed;  // of the released request, and those found here
    int32_t num_found_tokens = 0;   // tokens before `reserved`, found here
    int32_t num_published = 0;      // tokens whose blocks have landed and are findable
    uint64_t check = 0;             // of the peer's row of logits; 0: not known
    std::optional<KvFinal> final;
    int64_t held_ms = 0;                // time of hold()
    std::optional<int64_t> receive_ms;  // time of the first posted slot
    uint64_t num_bytes = 0;             // bytes taken in
    int64_t num_blocks = 0;

    // When its wait ends.
    [[nodiscard]] int64_t deadline_ms() const {
      return is_held ? request.deadline_ms : kNoDeadline;
    }
  };

  using Kind = DecodeEvent::Kind;

  Record* find(const KvTransferRef& ref);
  Record* find(RequestId id);
  static DecodeEvent event_of(Kind kind, int64_t now_ms);
  void step(Record& record, const DecodeEvent& event, const KvFrame* frame = nullptr);
  void act(Record& record, const DecodeAction& action, const KvFrame* frame, int64_t now_ms);
  void cut(Record& record);
  void begin_again(Record& record);
  void ask_again(Record& record, const DecodeAction& action, const KvFrame& frame);
  void claim(Record& record);
  void post(Record& record, int32_t count);
  bool post_slot(Record& record, int32_t slot);
  [[nodiscard]] std::optional<size_t> part_of(const Record& record, const KvFrame& frame) const;
  void accept_part(Record& record, const KvFrame& frame);
  void free_slot(int32_t slot);
  void land(Record& record, int64_t now_ms);
  void fall_back(Record& record, HandoffFallback why, int64_t now_ms);
  void note_landed(const Record& record, int64_t now_ms);
  void report(const Record& record, std::string_view outcome, int64_t now_ms);
  void abort_landing(const Record& record);
  void reserve_waiting(int32_t num_spare_blocks, int64_t now_ms);
  bool reserve(Record& record, int32_t num_spare_blocks, int64_t now_ms);
  bool take_room(Record& record, int32_t num_spare_blocks);
  void find_unused();
  static bool will_compare(const Record& record);
  [[nodiscard]] int32_t front_tokens(const Record& record) const;
  void drop_blocks(Record& record);
  void release(Record& record, std::optional<HandoffFallback> fallback);
  void slots_back(Record& record, uint32_t attempt, int64_t now_ms);
  void frame_arrived(const KvCompletion& completion, int64_t now_ms);
  void notify(Record& record, Kind kind, int64_t now_ms);
  void drop_over();

  const std::string space_;
  const KvRanks& cache_;
  KvCacheManager& kv_;
  HandoffLinks& links_;
  HandoffStats& stats_;
  FallbackCounters& fallbacks_;
  std::vector<KvTransferReport>& reports_;
  std::vector<int64_t> block_bytes_;  // by group
  const int32_t max_reserved_;
  const DecodeTimes times_;
  std::vector<LandingSlot> slots_;
  int32_t num_free_slots_ = 0;
  uint64_t next_number_ = 1;
  std::map<KvTransferId, std::unique_ptr<Record>> records_;
  std::vector<Released> ready_;
  std::vector<KvBlockRef> unused_;  // scratch: see find_unused()
};

}  // namespace sluice
