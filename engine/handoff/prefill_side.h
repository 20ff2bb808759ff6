// SPDX-License-Identifier: Apache-2.0
// The prefill worker's handoffs: drives a machine (prefill_state.h) for each, with this worker's
// cache and its links to peers. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/core/kv_transfer_report.h"
#include "engine/core/stats.h"
#include "engine/handoff/handoff_links.h"
#include "engine/handoff/handoff_spec.h"
#include "engine/handoff/kv_parts.h"
#include "engine/handoff/prefill_state.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/store/kv_ranks.h"
#include "scheduler/scheduled_request.h"

namespace sluice {

class PrefillSide {
 public:
  // All arguments outlive it. `space`: see HandoffLinks. `stats`: gets the counts of transfers out.
  // `reports`: get the transfers of traced requests.
  PrefillSide(std::string space,
              const PrefillTimes& times,
              const KvRanks& cache,
              KvCacheManager& kv,
              HandoffLinks& links,
              HandoffStats& stats,
              std::vector<KvTransferReport>& reports);

  // A request that offers its prompt's blocks is about to run. True: they are asked for while it
  // is computed.
  bool admit(const Request& request,
             const HandoffSpec& spec,
             int64_t now_ms,
             const TraceContext& trace);
  // A step retired: so many tokens of the request are computed, and whole blocks of them findable.
  void computed(RequestId id, int32_t num_tokens, int64_t now_ms);
  // A retiring step has chosen the first token after its prompt. Returns what the answer to a
  // serial offer carries; null: nothing is kept.
  std::shared_ptr<const HandoffOffer> choose(RequestId id,
                                             TokenId first_token,
                                             uint64_t seed,
                                             uint64_t check);
  // The step of choose() has retired, so all blocks that travel are findable.
  void retire(int64_t now_ms);
  // The request has ended. Ids without a handoff are ignored.
  void end(RequestId id, int64_t now_ms);

  void receive(KvPeerId peer, const KvMessage& message, int64_t now_ms);
  void complete(const KvCompletion& completion, int64_t now_ms);
  void peer_down(KvPeerId peer, int64_t now_ms);
  void fire_timers(int64_t now_ms);
  [[nodiscard]] std::optional<int64_t> next_timer() const;
  void drain(int64_t now_ms);
  // Ends the lease of an offer that keeps blocks of which nothing has been read, preferably of one
  // that no worker has claimed. False: there is no such offer.
  bool give_up_offer(int64_t now_ms);

  [[nodiscard]] int64_t num_pinned() const { return num_pinned_; }

  // Handoffs that are neither over nor forgotten.
  [[nodiscard]] size_t num_live() const { return records_.size(); }

  // Tokens kept of handoffs that are over: no more than the cache can have blocks for.
  [[nodiscard]] int64_t num_gone_tokens() const { return num_gone_tokens_; }

  // Landing slots of peers whose generations are remembered: kMaxKvCredits of a live handoff.
  [[nodiscard]] size_t num_known_slots() const;

 private:
  struct Claim {
    KvClaim message;
    int64_t slot_bytes = 0;
  };

  struct Reading {
    KvPeerId peer;
    uint32_t attempt = 0;
    int32_t number = 0;  // the machine's `part` in kPartRead
    int32_t part = 0;    // the claim's part
    bool is_begun = false;
    bool is_lost = false;  // its blocks have been given away
    KvSlot slot;
    std::vector<KvBlockRef> blocks;  // pinned
  };

  // The parts that a decode worker takes, from its first claim on.
  struct Sending {
    int64_t begin_ms = 0;
    TraceContext trace;
    KvTransportKind transport = KvTransportKind::kNone;
    std::string_view outcome;  // empty: it continues
    int64_t num_blocks = 0;    // blocks sent
    uint64_t num_bytes = 0;
  };

  struct Record {
    KvTransferId transfer{};
    TraceContext trace;  // of the request that computes it
    std::optional<Sending> sending;
    bool is_serial = false;
    bool is_gone = false;  // in gone_
    PrefillState state;
    RequestId request;            // 0: none runs
    std::vector<TokenId> tokens;  // the prompt's that travel
    PrefixExtras extras;
    int32_t num_prompt_tokens = 0;
    int32_t num_computed = 0;  // tokens
    HandoffResult result;
    std::optional<Claim> claim;                // is served, or waits for its request
    std::optional<Claim> queued;               // waits for the end of an earlier one
    std::vector<KvPart> parts;                 // of `claim`
    std::deque<KvSlot> slots;                  // waiting for parts
    KvPeerId creditor;                         // whose slots these are
    std::map<uint32_t, uint32_t> generations;  // the latest, by slot
    std::vector<KvBlockRef> pinned;            // all
    std::vector<Reading> readings;
  };

  using Kind = PrefillEvent::Kind;

  Record* find(const KvTransferId& transfer);
  Record* find(RequestId id);
  static PrefillEvent event_of(Kind kind, int64_t now_ms);
  [[nodiscard]] std::vector<KvPart> cut(const Record& record, const Claim& claim) const;
  [[nodiscard]] bool is_cached(const Record& record, std::span<const KvPart> parts) const;
  [[nodiscard]] bool takes_early_claims(KvPeerId peer) const;
  [[nodiscard]] KvKey key_of(const Record& record) const;
  bool find_blocks(const Record& record, const KvPart& part, std::vector<KvBlockRef>& found) const;
  void step(Record& record,
            const PrefillEvent& event,
            const Claim* claim = nullptr,
            std::span<const KvSlot> slots = {});
  void take_claim(Record& record, const PrefillEvent& event, const Claim* claim, bool was_queued);
  void act(Record& record, const PrefillAction& action, std::span<const KvSlot> slots);
  void answer(const Record& record, const PrefillAction& action);
  void pin_all(Record& record);
  void unpin(std::vector<KvBlockRef>& blocks);
  void pin_part(Record& record, int32_t part);
  void begin_reading(Record& record, KvSlot slot);
  void end_lost_readings(Record& record, int64_t now_ms);
  void abort_reading(Record& record, uint32_t attempt);
  void read_done(Record& record, size_t reading, int64_t now_ms);
  void claim(KvPeerId peer, const KvClaim& message, int64_t now_ms);
  void credit(KvPeerId peer, const KvCredit& message, int64_t now_ms);
  void nak(const KvCompletion& completion, int64_t now_ms);
  void notify(KvPeerId peer, const KvTransferRef& ref, Kind kind, int64_t now_ms);
  void refuse(KvPeerId peer, const KvTransferRef& ref, KvRefusal reason);
  void note_end(Record& record, int64_t now_ms);
  void put_aside(Record& record);
  void bring_back(Record& record);
  void count(const PrefillState& before, const PrefillState& after, const PrefillEvent& event);
  void count_sent(Record& record, const Reading& reading);
  void note_sending(Record& record, bool was_claimed, const PrefillEvent& event);
  void report(Record& record, int64_t now_ms);

  const std::string space_;
  const PrefillTimes times_;
  const KvRanks& cache_;
  KvCacheManager& kv_;
  HandoffLinks& links_;
  HandoffStats& stats_;
  std::vector<KvTransferReport>& reports_;
  std::vector<int64_t> block_bytes_;  // by group
  bool is_draining_ = false;
  using Records = std::map<KvTransferId, std::unique_ptr<Record>>;
  Records records_;  // but those in gone_
  Records gone_;     // in PrefillPhase::kGone
  std::deque<KvTransferId> gone_order_;    // of their ends
  std::deque<KvTransferId> gone_prompts_;  // those of them that still have tokens
  int64_t num_gone_tokens_ = 0;
  const int64_t max_gone_tokens_;
  std::unordered_map<RequestId, KvTransferId> requests_;
  std::vector<KvTransferRef> renewed_;  // by the current message
  std::vector<RequestId> chosen_;       // in steps that have not retired
  bool runs_alone_ = false;             // the request being admitted
  int32_t next_reading_ = 0;
  int64_t num_pinned_ = 0;  // blocks
};

}  // namespace sluice
