// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/handoff.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/core/times.h"
#include "kvcache/kv_key.h"

namespace sluice {

Handoff::Handoff(HandoffRole role, const KvRanks& cache, std::unique_ptr<HandoffLinks> links)
    : offers_(role != HandoffRole::kDecode),
      fetches_(role != HandoffRole::kPrefill),
      cache_(cache),
      links_(std::move(links)) {}

Expected<std::unique_ptr<Handoff>> Handoff::create(const Config& config,
                                                   HandoffRole role,
                                                   const std::string& fingerprint,
                                                   const KvRanks& cache,
                                                   KvCacheManager& kv,
                                                   const OpenKvPeers& open,
                                                   std::function<void()> wake,
                                                   const KvMover::Backend& backend) {
  const std::string space = kv_key_space(fingerprint, config.block_size);
  SLUICE_TRY(auto links,
             HandoffLinks::create(config, role, space, cache, open, std::move(wake), backend));
  std::unique_ptr<Handoff> handoff(new Handoff(role, cache, std::move(links)));
  const int64_t progress = config.kv_transfer_timeout_ms;
  handoff->prefill_ = std::make_unique<PrefillSide>(space,
                                                    prefill_times(progress),
                                                    handoff->cache_,
                                                    kv,
                                                    *handoff->links_,
                                                    handoff->stats_,
                                                    handoff->reports_);
  handoff->decode_ = std::make_unique<DecodeSide>(space,
                                                  config.max_num_seqs,
                                                  decode_times(progress),
                                                  handoff->cache_,
                                                  kv,
                                                  *handoff->links_,
                                                  handoff->stats_,
                                                  handoff->fallbacks_,
                                                  handoff->reports_);
  return handoff;
}

HandoffInfo Handoff::info() const {
  HandoffInfo info;
  info.epoch = links_->epoch();
  info.offers = offers_;
  info.fetches = fetches_;
  const std::string address = links_->address();
  const size_t colon = address.rfind(':');
  info.host = address.substr(0, colon);
  if (colon != std::string::npos) {
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), info.port);
  }
  return info;
}

bool Handoff::hold(Request& request,
                   const HandoffSpec& spec,
                   Clock::time_point now,
                   const TraceContext& trace) {
  if (is_draining_) return false;
  if (spec.kind == HandoffKind::kFetch) {
    return fetches_ && decode_->hold(request, spec, to_ms(now), trace);
  }
  if (offers_) request.streams_kv = prefill_->admit(request, spec, to_ms(now), trace);
  return false;
}

bool Handoff::abort(RequestId id, Clock::time_point now) {
  const bool was_waiting =
      std::erase_if(fallbacks_waiting_, [id](const auto& waiting) { return waiting.id == id; }) > 0;
  return decode_->abort(id, to_ms(now)) || was_waiting;
}

const char* Handoff::status_of(RequestId id) const {
  switch (decode_->phase_of(id)) {
    case DecodePhase::kClaiming:
      return "claiming";
    case DecodePhase::kHeld:
      return "awaiting_room";
    case DecodePhase::kReceiving:
      return "receiving";
    default:
      return nullptr;
  }
}

void Handoff::computed(RequestId id, int32_t num_tokens, Clock::time_point now) {
  prefill_->computed(id, num_tokens, to_ms(now));
}

std::shared_ptr<const HandoffOffer> Handoff::choose(RequestId id,
                                                    TokenId token,
                                                    uint64_t seed,
                                                    uint64_t check) {
  return prefill_->choose(id, token, seed, check);
}

void Handoff::note_token(RequestId id) {
  if (id == computing_) computing_ = {};
}

bool Handoff::compare(RequestId id, uint64_t check, Clock::time_point now) {
  return decode_->compare(id, check, to_ms(now));
}

void Handoff::retire(Clock::time_point now) { prefill_->retire(to_ms(now)); }

void Handoff::end(RequestId id, Clock::time_point now) {
  if (id == computing_) computing_ = {};
  prefill_->end(id, to_ms(now));
  decode_->end(id, to_ms(now));
}

void Handoff::handle(const KvPeerEvent& event, int64_t now_ms) {
  if (const auto* up = std::get_if<KvPeerUp>(&event)) {
    decode_->peer_up(up->peer, now_ms);
  } else if (const auto* down = std::get_if<KvPeerDown>(&event)) {
    prefill_->peer_down(down->peer, now_ms);
    decode_->peer_down(down->peer, now_ms);
  } else if (const auto* message = std::get_if<KvPeerMessage>(&event)) {
    const HandoffPeer* const peer = links_->find(message->peer);
    if (peer == nullptr) return;  // it has disconnected
    if (peer->is_prefill) {
      decode_->receive(message->peer, message->message, now_ms);
    } else {
      prefill_->receive(message->peer, message->message, now_ms);
    }
  }
}

void Handoff::release(int64_t now_ms, bool is_idle, std::vector<DecodeSide::Released>& ready) {
  released_.clear();
  decode_->take_ready(released_);
  for (const DecodeSide::Released& released : released_) {
    if (released.fallback) {
      fallbacks_waiting_.push_back(released);
    } else {
      ready.push_back(released);
    }
  }
  while (!fallbacks_waiting_.empty()) {
    const DecodeSide::Released& next = fallbacks_waiting_.front();
    const bool is_late = next.deadline_ms <= now_ms;  // the scheduler ends it
    if (!is_idle && !is_late && computing_ != RequestId{}) return;
    computing_ = next.id;
    ready.push_back(next);
    fallbacks_waiting_.pop_front();
  }
}

void Handoff::advance(Clock::time_point now,
                      const Load& load,
                      std::vector<DecodeSide::Released>& ready) {
  const int64_t now_ms = to_ms(now);
  links_->receive(events_, completions_);
  for (const KvPeerEvent& event : events_) handle(event, now_ms);
  for (const KvCompletion& completion : completions_) {
    prefill_->complete(completion, now_ms);
    decode_->complete(completion, now_ms);
  }
  prefill_->fire_timers(now_ms);
  // What a running request will want next, and a preempted or starved one now, comes first.
  const bool is_needed = std::exchange(has_given_back_, false) || load.has_preempted;
  const std::optional<int32_t> num_spare =
      is_needed ? std::nullopt : std::optional(load.num_running);
  decode_->advance_all(now_ms, num_spare);
  release(now_ms, load.is_idle, ready);
}

std::optional<Handoff::Clock::time_point> Handoff::next_timer() const {
  if (links_->mover().is_busy()) return Clock::now();
  const std::optional<int64_t> a = prefill_->next_timer();
  const std::optional<int64_t> b = decode_->next_timer();
  if (!a && !b) return std::nullopt;
  const int64_t first = std::min(a.value_or(INT64_MAX), b.value_or(INT64_MAX));
  return Clock::time_point(std::chrono::milliseconds(first));
}

HandoffStats Handoff::stats() const {
  HandoffStats stats = stats_;
  stats.num_sessions = links_->num_sessions();
  decode_->add_gauges(stats);
  stats.num_offered = static_cast<int64_t>(prefill_->num_live());
  stats.num_pinned_blocks = prefill_->num_pinned();
  const KvTransportCounts moved = links_->transport_counts();
  stats.bytes_in = moved.bytes_arrived;
  stats.bytes_out = moved.bytes_sent;
  stats.frames_stale = moved.frames_stale;
  stats.frames_spoiled = moved.frames_spoiled;
  stats.connections_lost = moved.connections_lost;
  stats.connections_refused = moved.connections_refused;
  for (size_t i = 0; i < kNumHandoffFallbacks; ++i) {
    stats.fallbacks[i] = fallbacks_.value(static_cast<HandoffFallback>(i));
  }
  return stats;
}

void Handoff::take_reports(std::vector<KvTransferReport>& reports) {
  reports.clear();
  reports.swap(reports_);
}

// Offers come first: their blocks are still served while they are cached.
bool Handoff::give_back_blocks(Clock::time_point now) {
  has_given_back_ = prefill_->give_up_offer(to_ms(now)) || decode_->reclaim_reserved(to_ms(now));
  return has_given_back_;
}

void Handoff::drain(Clock::time_point now) {
  if (std::exchange(is_draining_, true)) return;
  prefill_->drain(to_ms(now));
  decode_->drain(to_ms(now));
}

}  // namespace sluice
