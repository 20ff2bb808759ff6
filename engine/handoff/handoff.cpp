// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/handoff.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "kvcache/kv_key.h"

namespace sluice {
namespace {

int64_t to_ms(Handoff::Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

}  // namespace

Handoff::Handoff(const Config& config, std::unique_ptr<HandoffLinks> links)
    : offers_(config.role != "decode"),
      fetches_(config.role != "prefill"),
      links_(std::move(links)) {}

Expected<std::unique_ptr<Handoff>> Handoff::create(const Config& config,
                                                   const std::string& fingerprint,
                                                   KvStorage& storage,
                                                   KvCacheManager& kv,
                                                   const OpenKvPeers& open,
                                                   std::function<void()> wake,
                                                   const KvMover::Backend& backend) {
  const std::string space = kv_key_space(fingerprint, config.block_size);
  SLUICE_TRY(auto links,
             HandoffLinks::create(config, space, storage, open, std::move(wake), backend));
  std::unique_ptr<Handoff> handoff(new Handoff(config, std::move(links)));
  handoff->prefill_ = std::make_unique<PrefillSide>(space, storage, kv, *handoff->links_);
  handoff->decode_ = std::make_unique<DecodeSide>(space, storage, kv, *handoff->links_);
  return handoff;
}

HandoffInfo Handoff::info() const {
  HandoffInfo info;
  info.epoch = links_->epoch();
  const std::string address = links_->address();
  const size_t colon = address.rfind(':');
  info.host = address.substr(0, colon);
  if (colon != std::string::npos) {
    std::from_chars(address.data() + colon + 1, address.data() + address.size(), info.port);
  }
  return info;
}

bool Handoff::hold(NewRequest& request, const HandoffSpec& spec, Clock::time_point now) {
  if (is_draining_) return false;
  if (spec.kind == HandoffKind::kFetch) {
    return fetches_ && decode_->hold(request, spec, to_ms(now));
  }
  if (offers_) prefill_->admit(request, spec, to_ms(now));
  return false;
}

bool Handoff::abort(RequestId id, Clock::time_point now) { return decode_->abort(id, to_ms(now)); }

void Handoff::computed(RequestId id, int32_t num_tokens, Clock::time_point now) {
  prefill_->computed(id, num_tokens, to_ms(now));
}

std::shared_ptr<const HandoffOffer> Handoff::choose(RequestId id,
                                                    TokenId token,
                                                    uint64_t seed,
                                                    uint64_t check) {
  return prefill_->choose(id, token, seed, check);
}

bool Handoff::compare(RequestId id, uint64_t check, Clock::time_point now) {
  return decode_->compare(id, check, to_ms(now));
}

void Handoff::retire(Clock::time_point now) { prefill_->retire(to_ms(now)); }

void Handoff::end(RequestId id, Clock::time_point now) {
  prefill_->end(id, to_ms(now));
  decode_->end(id, to_ms(now));
}

void Handoff::handle(const KvPeerEvent& event, int64_t now_ms) {
  if (const auto* up = std::get_if<KvPeerUp>(&event)) {
    decode_->come(up->peer, now_ms);
  } else if (const auto* down = std::get_if<KvPeerDown>(&event)) {
    prefill_->lose(down->peer, now_ms);
    decode_->lose(down->peer, now_ms);
  } else if (const auto* message = std::get_if<KvPeerMessage>(&event)) {
    const HandoffPeer* const peer = links_->find(message->peer);
    if (peer == nullptr) return;  // it is gone by now
    if (peer->is_prefill) {
      decode_->receive(message->peer, message->message, now_ms);
    } else {
      prefill_->receive(message->peer, message->message, now_ms);
    }
  }
}

void Handoff::advance(Clock::time_point now, std::vector<DecodeSide::Released>& ready) {
  const int64_t now_ms = to_ms(now);
  links_->receive(events_, completions_);
  for (const KvPeerEvent& event : events_) handle(event, now_ms);
  for (const KvCompletion& completion : completions_) {
    prefill_->complete(completion, now_ms);
    decode_->complete(completion, now_ms);
  }
  prefill_->fire_timers(now_ms);
  decode_->advance_all(now_ms);
  decode_->take_ready(ready);
}

std::optional<Handoff::Clock::time_point> Handoff::next_timer() const {
  if (links_->mover().is_busy()) return Clock::now();
  const std::optional<int64_t> a = prefill_->next_timer();
  const std::optional<int64_t> b = decode_->next_timer();
  if (!a && !b) return std::nullopt;
  const int64_t first = std::min(a.value_or(INT64_MAX), b.value_or(INT64_MAX));
  return Clock::time_point(std::chrono::milliseconds(first));
}

bool Handoff::give_back_room(Clock::time_point now) {
  if (!decode_->has_room()) return false;
  decode_->give_back_room(to_ms(now));
  return true;
}

void Handoff::drain(Clock::time_point now) {
  if (std::exchange(is_draining_, true)) return;
  prefill_->drain(to_ms(now));
  decode_->drain(to_ms(now));
}

}  // namespace sluice
