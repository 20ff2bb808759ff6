// SPDX-License-Identifier: Apache-2.0
// Handoffs of one engine: what its step loop calls, and between steps the traffic with peers. A
// request that fetches is held outside of the scheduler, as by PrefixStore, until its blocks are
// cached or cannot arrive any more; one that offers runs like any other. Engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/kv_transfer_report.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/handoff/decode_side.h"
#include "engine/handoff/fallback_counters.h"
#include "engine/handoff/handoff_config.h"
#include "engine/handoff/handoff_links.h"
#include "engine/handoff/prefill_side.h"

namespace sluice {

class Handoff {
 public:
  using Clock = std::chrono::steady_clock;

  // `role`: this worker's. `fingerprint` names model, build and dtypes. The storages of `cache` and
  // the manager must outlive it; `wake` is called on other threads when advance() has something to
  // do.
  static Expected<std::unique_ptr<Handoff>> create(const Config& config,
                                                   HandoffRole role,
                                                   const std::string& fingerprint,
                                                   const KvRanks& cache,
                                                   KvCacheManager& kv,
                                                   const OpenKvPeers& open,
                                                   std::function<void()> wake,
                                                   const KvMover::Backend& backend);

  // Returns where peers find this worker.
  [[nodiscard]] HandoffInfo info() const;

  // True: its blocks are in transfer, and advance() returns it. A request that offers is only noted
  // (Request::streams_kv is set): false. `trace`: the request's, sent to the peer.
  bool hold(Request& request,
            const HandoffSpec& spec,
            Clock::time_point now,
            const TraceContext& trace = {});
  // Drops the request. False: it is not held.
  bool abort(RequestId id, Clock::time_point now);
  // Returns "claiming", "awaiting_room" or "receiving" for a request that is held; else null.
  [[nodiscard]] const char* status_of(RequestId id) const;
  // A retiring step has computed this many tokens of the request.
  void computed(RequestId id, int32_t num_tokens, Clock::time_point now);
  // A step has chosen the first token of the request's answer, from logits with this check (0: not
  // known). Returns what the answer to a serial offer carries; null: nothing.
  std::shared_ptr<const HandoffOffer> choose(RequestId id,
                                             TokenId token,
                                             uint64_t seed,
                                             uint64_t check);
  // A request has chosen a token here. Requests without a handoff are ignored.
  void note_token(RequestId id);
  // A request that was held has chosen its first token. False: the peer's logits were others, and
  // what was computed for the request does not count.
  bool compare(RequestId id, uint64_t check, Clock::time_point now);
  // The step has retired, and blocks of it are findable.
  void retire(Clock::time_point now);
  // A request has ended. Requests without a handoff are ignored.
  void end(RequestId id, Clock::time_point now);

  // The scheduler's requests between two steps.
  struct Load {
    bool is_idle = true;  // there are none
    int32_t num_running = 0;
    bool has_preempted = false;  // that wait for blocks
  };

  // Handles messages, completions and timers between steps. Appends requests that are to run now to
  // `ready`. Unless the worker is idle, requests that fall back to computing here are appended one
  // at a time, each after the one before has its first token, so that they do not delay others.
  void advance(Clock::time_point now,
               const Load& load,
               std::vector<DecodeSide::Released>& ready);
  // Returns when advance() is to be called at the latest, if ever.
  [[nodiscard]] std::optional<Clock::time_point> next_timer() const;
  // Frees the blocks of one offer that no peer has begun to read, else those that one fetch has
  // reserved, because the scheduler's requests lack blocks. False: there are neither.
  bool give_back_blocks(Clock::time_point now);
  // Nothing new is offered or fetched from now on.
  void drain(Clock::time_point now);

  [[nodiscard]] const DecodeSide& decode() const { return *decode_; }

  [[nodiscard]] const PrefillSide& prefill() const { return *prefill_; }

  [[nodiscard]] HandoffStats stats() const;

  // Replaces `reports` by the transfers of traced requests that have ended since the last call.
  void take_reports(std::vector<KvTransferReport>& reports);

 private:
  Handoff(HandoffRole role, const KvRanks& cache, std::unique_ptr<HandoffLinks> links);

  void handle(const KvPeerEvent& event, int64_t now_ms);
  void release(int64_t now_ms, bool is_idle, std::vector<DecodeSide::Released>& ready);

  const bool offers_;
  const bool fetches_;
  const KvRanks cache_;
  bool has_given_back_ = false;  // since the last advance(): for the scheduler's requests
  bool is_draining_ = false;
  std::deque<DecodeSide::Released> fallbacks_waiting_;
  RequestId computing_{};  // the latest fallback that runs, before its first token; or none
  HandoffStats stats_;     // the counters of both sides; the rest comes with stats()
  FallbackCounters fallbacks_;
  std::vector<KvTransferReport> reports_;  // of both sides
  std::unique_ptr<PrefillSide> prefill_;
  std::unique_ptr<DecodeSide> decode_;
  std::unique_ptr<HandoffLinks> links_;         // ends first: its threads write into landing slots
  std::vector<KvPeerEvent> events_;             // scratch
  std::vector<KvCompletion> completions_;       // scratch
  std::vector<DecodeSide::Released> released_;  // scratch
};

}  // namespace sluice
