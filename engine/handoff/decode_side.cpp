// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/decode_side.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/status.h"
#include "kvcache/kv_key.h"

namespace sluice {
namespace {

using Do = DecodeAction::Kind;

}  // namespace

DecodeSide::DecodeSide(std::string space,
                       int32_t max_reserved,
                       const DecodeTimes& times,
                       const KvRanks& cache,
                       KvCacheManager& kv,
                       HandoffLinks& links,
                       HandoffStats& stats,
                       FallbackCounters& fallbacks,
                       std::vector<KvTransferReport>& reports)
    : space_(std::move(space)),
      cache_(cache),
      kv_(kv),
      links_(links),
      stats_(stats),
      fallbacks_(fallbacks),
      reports_(reports),
      max_reserved_(max_reserved),
      times_(times),
      slots_(static_cast<size_t>(links.mover().num_slots())),
      num_free_slots_(links.mover().num_slots()) {
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    block_bytes_.push_back(cache.block_bytes(group));
  }
}

int32_t DecodeSide::num_posted() const {
  return static_cast<int32_t>(std::ranges::count(slots_, true, &LandingSlot::is_posted));
}

DecodeSide::Record* DecodeSide::find(const KvTransferRef& ref) {
  const auto found = records_.find(ref.transfer);
  return found == records_.end() ? nullptr : found->second.get();
}

DecodeSide::Record* DecodeSide::find(RequestId id) {
  for (const auto& [transfer, record] : records_) {
    if (record->request.id == id) return record.get();
  }
  return nullptr;
}

DecodeEvent DecodeSide::event_of(Kind kind, int64_t now_ms) {
  DecodeEvent event;
  event.kind = kind;
  event.now_ms = now_ms;
  return event;
}

void DecodeSide::cut(Record& record) {
  record.parts =
      cut_into_parts(kv_, record.num_tokens, record.first, block_bytes_, links_.slot_bytes());
  record.has_part.assign(record.parts.size(), false);
}

// --- Requests ---------------------------------------------------------------------------------

bool DecodeSide::hold(const Request& request,
                      const HandoffSpec& spec,
                      int64_t now_ms,
                      const TraceContext& trace) {
  const auto fall_back = [&](HandoffFallback why) {
    fallbacks_.count(why, 1);
    return false;
  };
  if (request.scores_prompt) return fall_back(HandoffFallback::kScoresPrompt);
  const int32_t num_tokens = kv_.max_transferred(request.num_prompt_tokens);
  // A second request of the same name is an ordinary one.
  if (num_tokens == 0 || slots_.empty() || records_.contains(spec.transfer)) return false;
  // One that the scheduler refuses would wait for room that it never gets.
  const int64_t longest = int64_t{request.num_prompt_tokens} + request.max_tokens - 1;
  if (!kv_.fits_alone(static_cast<int32_t>(std::min<int64_t>(longest, INT32_MAX)))) return false;
  auto record = std::make_unique<Record>();
  record->request = request;
  record->num_tokens = num_tokens;
  record->key = kv_root_key(space_, request.extras);
  const auto size = static_cast<size_t>(kv_.block_size());
  const auto travelling = request.tokens().first(static_cast<size_t>(num_tokens));
  for (size_t at = 0; at < travelling.size(); at += size) {
    record->key = kv_next_key(record->key, travelling.subspan(at, size));
  }
  if (spec.result && spec.result->key != record->key) {
    return fall_back(HandoffFallback::kWrongPrompt);
  }
  // What a request can go on from: all groups have what it reads.
  const int32_t num_here =
      kv_.acquire_prefix(request.id, request.tokens(), request.extras, PrefixUse::kTransfer);
  kv_.free(request.id);
  if (num_here >= num_tokens) return false;
  record->trace = trace;
  record->held_ms = now_ms;
  const Expected<KvPeerId> peer = links_.connect(spec.peer);
  if (!peer) {
    fallbacks_.count(HandoffFallback::kPeerGone, 1);
    report(*record, to_string(HandoffFallback::kPeerGone), now_ms);
    ready_.push_back({.id = request.id,
                      .deadline_ms = request.deadline_ms,
                      .fallback = HandoffFallback::kPeerGone});
    return true;
  }
  record->transfer = spec.transfer;
  record->number = next_number_++;
  record->check = spec.result ? spec.result->check : 0;
  record->adopts_seed = spec.adopts_seed;
  record->epoch = spec.mode == HandoffMode::kSerial ? spec.peer_epoch : 0;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    record->first.push_back(kv_.num_entries(group, num_here));
  }
  cut(*record);
  Record& held = *(records_[spec.transfer] = std::move(record));
  DecodeEvent event = event_of(Kind::kStart, now_ms);
  event.peer = *peer;
  event.is_early = held.epoch == 0;
  event.num_parts = static_cast<int32_t>(held.parts.size());
  ++stats_.num_claims;
  step(held, event);
  const HandoffPeer* const known = links_.find(*peer);
  if (known != nullptr) peer_up(*peer, now_ms);
  return true;
}

bool DecodeSide::abort(RequestId id, int64_t now_ms) {
  Record* const record = find(id);
  const bool is_held = record != nullptr && record->is_held;
  const bool is_ready =
      std::erase_if(ready_, [id](const Released& released) { return released.id == id; }) > 0;
  end(id, now_ms);
  return is_held || is_ready;
}

void DecodeSide::end(RequestId id, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr) return;
  if (record->is_held) {
    report(*record, "cancelled", now_ms);
    if (record->has_room) kv_.free(id);
    record->has_room = false;
    record->is_held = false;
  }
  kv_.withdraw(id, record->reserved);
  step(*record, event_of(Kind::kOver, now_ms));
  drop_over();
}

void DecodeSide::take_ready(std::vector<Released>& ready) {
  ready.insert(ready.end(), ready_.begin(), ready_.end());
  ready_.clear();
}

bool DecodeSide::compare(RequestId id, uint64_t check, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr) return true;
  // Without the bits of both rows there is no verdict: P may have been asked with other parameters.
  const bool can_tell = record->check != 0 && check != 0;
  const bool agrees = !can_tell || record->check == check;
  if (agrees) kv_.prove(id, record->reserved);
  if (record->state.phase == DecodePhase::kLanded) {
    DecodeEvent event = event_of(Kind::kTail, now_ms);
    event.agrees = agrees;
    step(*record, event);
    return agrees;
  }
  // What it kept of a transfer that was given up.
  if (agrees || record->num_published == 0) return true;
  fallbacks_.count(HandoffFallback::kFirstToken, 1);
  drop_blocks(*record);
  return false;
}

// Whether compare() will say of the request's blocks whether they were right.
bool DecodeSide::will_compare(const Record& record) {
  const Request& request = record.request;
  return record.check != 0 && request.num_generated() == 0 && request.pooled == PooledRows::kNone;
}

void DecodeSide::drop_blocks(Record& record) {
  kv_.unpublish(record.request.id, record.num_found_tokens);
  record.num_published = 0;
}

// Tokens from the front whose blocks are there.
int32_t DecodeSide::front_tokens(const Record& record) const {
  const auto missing = std::ranges::find(record.has_arrived, false);
  if (missing == record.has_arrived.end()) return record.num_tokens;
  const KvBlockRef& gap =
      record.reserved[static_cast<size_t>(missing - record.has_arrived.begin())];
  const KvGroupKind kind = cache_.groups().front().kind;
  const bool keeps_all = kind == KvGroupKind::kFull || kind == KvGroupKind::kLatent;
  return kv_.num_groups() == 1 && keeps_all ? gap.entry * kv_.block_size() : 0;
}

// The request continues as an ordinary one; the blocks that have landed are its cached prefix.
void DecodeSide::release(Record& record, std::optional<HandoffFallback> fallback) {
  if (!record.is_held) return;
  const RequestId id = record.request.id;
  if (record.has_room) {
    record.num_published = front_tokens(record);
    kv_.publish(id, record.request.tokens(), record.num_published, will_compare(record));
    if (record.num_published > 0) kv_.blocks_of(id, record.landed);
    kv_.free(id);
  }
  if (record.num_published > 0 && will_compare(record)) {
    kv_.expect_proof(id);
  } else {
    kv_.withdraw(id, record.reserved);
  }
  record.has_room = false;
  record.asks_for_room = false;
  record.is_held = false;
  Released& released = ready_.emplace_back();
  released.id = id;
  released.deadline_ms = record.request.deadline_ms;
  released.num_landed_tokens = record.num_published;
  if (record.adopts_seed && record.final) released.seed = record.final->seed;
  released.fallback = fallback;
}

void DecodeSide::drain(int64_t now_ms) {
  for (const auto& [transfer, record] : records_) step(*record, event_of(Kind::kDraining, now_ms));
}

// --- The machine ------------------------------------------------------------------------------

void DecodeSide::step(Record& record, const DecodeEvent& event, const KvFrame* frame) {
  const uint32_t attempt = record.state.attempt;
  const DecodeActions actions =
      advance(record.state, event, {.num_free_slots = num_free_slots_, .times = times_});
  if (attempt != 0 && record.state.attempt != attempt) {
    begin_again(record);
  }
  for (const DecodeAction& action : actions) act(record, action, frame, event.now_ms);
}

// A new attempt asks for what follows the parts that landed without a gap.
void DecodeSide::begin_again(Record& record) {
  for (size_t i = 0; i < record.parts.size() && record.has_part[i]; ++i) {
    const KvPart& part = record.parts[i];
    record.first[static_cast<size_t>(part.group)] = part.entries.end();
  }
  cut(record);
}

void DecodeSide::ask_again(Record& record, const DecodeAction& action, const KvFrame& frame) {
  LandingSlot& slot = slots_[frame.slot];
  slot.post(record.number, action.attempt);
  if (!post_slot(record, static_cast<int32_t>(frame.slot))) return;
  KvFrame nak = frame;
  nak.kind = KvFrameKind::kNak;
  nak.slot_generation = slot.generation;
  nak.payload_bytes = 0;
  nak.payload_sum = 0;
  static_cast<void>(links_.mover().send_nak(record.state.peer.value, nak));
}

void DecodeSide::act(Record& record,
                     const DecodeAction& action,
                     const KvFrame* frame,
                     int64_t now_ms) {
  const KvTransferRef ref{.transfer = record.transfer, .attempt = action.attempt};
  const KvPeerId peer = record.state.peer;
  switch (action.kind) {
    case Do::kClaim:
      claim(record);
      break;
    case Do::kRenew:
      links_.send(peer, KvRenew{.refs = {ref}});
      break;
    case Do::kRelease:
      links_.send(peer, KvRelease{.ref = ref});
      break;
    case Do::kCancel:
      links_.send(peer, KvCancel{.ref = ref, .reason = action.reason});
      break;
    case Do::kAskRoom:
      record.asks_for_room = true;
      break;
    case Do::kPost: {
      const int32_t num_before = num_free_slots_;
      if (!record.receive_ms) record.receive_ms = now_ms;
      post(record, action.count);
      const int32_t num_missing = action.count - (num_before - num_free_slots_);
      if (num_missing <= 0) break;
      DecodeEvent back = event_of(Kind::kSlotsBack, now_ms);
      back.attempt = action.attempt;
      back.num_slots = num_missing;
      step(record, back);
      break;
    }
    case Do::kTakeIn:
      accept_part(record, *frame);
      free_slot(static_cast<int32_t>(frame->slot));
      break;
    case Do::kNak:
      ask_again(record, action, *frame);
      break;
    case Do::kFreeSlot:
      free_slot(static_cast<int32_t>(frame->slot));
      break;
    case Do::kAbortLanding:
      abort_landing(record);
      break;
    case Do::kLand:
      land(record, now_ms);
      break;
    case Do::kFallBack:
      fall_back(record, action.fallback, now_ms);
      break;
    case Do::kDropBlocks:
      drop_blocks(record);
      break;
  }
}

void DecodeSide::land(Record& record, int64_t now_ms) {
  // What was here when it was claimed may have been evicted before there was room for the rest.
  if (front_tokens(record) < record.num_tokens) {
    return fall_back(record, HandoffFallback::kEvicted, now_ms);
  }
  note_landed(record, now_ms);
  report(record, kTransferDone, now_ms);
  release(record, std::nullopt);
}

void DecodeSide::fall_back(Record& record, HandoffFallback why, int64_t now_ms) {
  fallbacks_.count(why, 1);
  if (record.receive_ms) ++stats_.num_failed;
  if (record.is_held) report(record, to_string(why), now_ms);
  release(record, why);
}

void DecodeSide::note_landed(const Record& record, int64_t now_ms) {
  const auto seconds_since = [&](int64_t begin_ms) {
    return 1e-3 * static_cast<double>(now_ms - begin_ms);
  };
  ++stats_.num_in;
  stats_.wait_time.observe(kTransferTimeBounds, seconds_since(record.held_ms));
  stats_.transfer_time.observe(kTransferTimeBounds,
                               seconds_since(record.receive_ms.value_or(now_ms)));
  stats_.transfer_bytes.observe(kTransferBytesBounds, static_cast<double>(record.num_bytes));
}

void DecodeSide::report(const Record& record, std::string_view outcome, int64_t now_ms) {
  if (!record.trace.is_set() || !record.trace.is_sampled) return;
  using Time = std::chrono::steady_clock::time_point;
  reports_.push_back({.trace = record.trace,
                      .is_out = false,
                      .outcome = outcome,
                      .transport = to_string(record.transport),
                      .num_blocks = record.num_blocks,
                      .num_bytes = record.num_bytes,
                      .begin = Time(std::chrono::milliseconds(record.held_ms)),
                      .end = Time(std::chrono::milliseconds(now_ms))});
}

DecodePhase DecodeSide::phase_of(RequestId id) const {
  for (const auto& [transfer, record] : records_) {
    if (record->request.id == id) return record->state.phase;
  }
  return DecodePhase::kNone;
}

void DecodeSide::add_gauges(HandoffStats& stats) const {
  for (const auto& [transfer, record] : records_) {
    stats.num_claiming += record->state.phase == DecodePhase::kClaiming ? 1 : 0;
    stats.num_awaiting_room += record->state.phase == DecodePhase::kHeld ? 1 : 0;
    stats.num_receiving += record->state.phase == DecodePhase::kReceiving ? 1 : 0;
    if (record->has_room) stats.num_reserved_blocks += std::ssize(record->reserved);
  }
  stats.num_slots = std::ssize(slots_);
  stats.num_posted_slots = num_posted();
}

// It names the transport, which is known once the peer is connected: peer_up() sends it then.
void DecodeSide::claim(Record& record) {
  const HandoffPeer* const peer = links_.find(record.state.peer);
  if (peer == nullptr) return;
  KvClaim message;
  message.ref = {.transfer = record.transfer, .attempt = record.state.attempt};
  message.epoch = record.epoch;
  message.num_prompt_tokens = static_cast<uint32_t>(record.request.num_prompt_tokens);
  message.last_key = record.key;
  message.first_blocks.assign(record.first.begin(), record.first.end());
  record.transport = peer->transport;
  message.transport = record.transport;
  message.deadline_ms = static_cast<uint32_t>(times_.total);
  if (record.trace.is_set()) message.trace = traceparent(record.trace);
  links_.send(record.state.peer, std::move(message));
}

bool DecodeSide::post_slot(Record& record, int32_t slot) {
  const LandingSlot& posted = slots_[static_cast<size_t>(slot)];
  return links_.mover().post(record.state.peer.value,
                             {.transfer = record.transfer, .attempt = posted.attempt},
                             static_cast<uint32_t>(slot),
                             posted.generation);
}

void DecodeSide::post(Record& record, int32_t count) {
  KvCredit credit;
  credit.ref = {.transfer = record.transfer, .attempt = record.state.attempt};
  for (size_t i = 0; i < slots_.size() && count > 0; ++i) {
    LandingSlot& slot = slots_[i];
    if (slot.is_posted) continue;
    slot.post(record.number, record.state.attempt);
    if (!post_slot(record, static_cast<int32_t>(i))) {
      slot.release();
      break;
    }
    --count;
    --num_free_slots_;
    credit.slots.push_back({.slot = static_cast<uint32_t>(i),
                            .generation = slot.generation,
                            .bytes = static_cast<uint32_t>(links_.slot_bytes())});
    if (credit.slots.size() < kMaxKvCreditSlots) continue;
    links_.send(record.state.peer, credit);
    credit.slots.clear();
  }
  if (!credit.slots.empty()) links_.send(record.state.peer, std::move(credit));
}

void DecodeSide::free_slot(int32_t slot) {
  slots_[static_cast<size_t>(slot)].release();
  ++num_free_slots_;
}

void DecodeSide::abort_landing(const Record& record) {
  std::set<uint32_t> attempts;
  for (const LandingSlot& slot : slots_) {
    if (slot.is_posted && slot.owner == record.number) attempts.insert(slot.attempt);
  }
  for (const uint32_t attempt : attempts) {
    links_.mover().abort(record.state.peer.value,
                         {.transfer = record.transfer, .attempt = attempt});
  }
}

void DecodeSide::accept_part(Record& record, const KvFrame& frame) {
  const int64_t block_bytes = block_bytes_[frame.group];
  std::vector<BlockId> run;  // blocks that are contiguous in the slot
  for (uint32_t i = 0; i <= frame.num_blocks; ++i) {
    const auto entry = static_cast<int32_t>(frame.first_block + i);
    const auto ref = std::ranges::find_if(record.reserved, [&](const KvBlockRef& one) {
      return i < frame.num_blocks && one.group == frame.group && one.entry == entry;
    });
    if (ref != record.reserved.end()) {
      run.push_back(ref->block);
      record.has_arrived[static_cast<size_t>(ref - record.reserved.begin())] = true;
      ++stats_.blocks_in;
      record.num_bytes += static_cast<uint64_t>(block_bytes);
      ++record.num_blocks;
      continue;
    }
    // The end, or what is not reserved, which was here already.
    if (run.empty()) continue;
    const int64_t first = static_cast<int64_t>(i) - std::ssize(run);
    links_.mover().copy_in(frame.slot, first * block_bytes, frame.group, run);
    run.clear();
  }
}

void DecodeSide::drop_over() {
  std::erase_if(records_, [](const auto& entry) { return is_over(entry.second->state); });
}

void DecodeSide::advance_all(int64_t now_ms, std::optional<int32_t> num_spare_blocks) {
  for (const auto& [transfer, record] : records_) {
    if (record->deadline_ms() <= now_ms) step(*record, event_of(Kind::kLate, now_ms));
  }
  if (num_spare_blocks) reserve_waiting(*num_spare_blocks, now_ms);
  for (const auto& [transfer, entry] : records_) {
    Record& record = *entry;
    const std::optional<int64_t> timer = sluice::next_timer(record.state);
    if (timer && *timer <= now_ms) {
      DecodeEvent event = event_of(Kind::kTimer, now_ms);
      // A new attempt begins at the first missing part.
      const auto missing = std::ranges::find(record.has_part, false);
      event.num_parts = static_cast<int32_t>(record.has_part.end() - missing);
      step(record, event);
    }
    const std::optional<int64_t> renewal = sluice::next_renewal(record.state);
    if (renewal && *renewal <= now_ms) step(record, event_of(Kind::kRenewal, now_ms));
    const bool wants_slots =
        record.state.phase == DecodePhase::kReceiving &&
        record.state.num_parts > record.state.num_received + record.state.num_posted;
    if (wants_slots && num_free_slots_ > 0) step(record, event_of(Kind::kSlotsFree, now_ms));
  }
  drop_over();
}

std::optional<int64_t> DecodeSide::next_timer() const {
  std::optional<int64_t> first;
  for (const auto& [transfer, record] : records_) {
    for (const auto& timer :
         {sluice::next_timer(record->state), sluice::next_renewal(record->state)}) {
      if (timer && (!first || *timer < *first)) first = timer;
    }
    const int64_t deadline = record->deadline_ms();
    if (deadline != kNoDeadline && (!first || deadline < *first)) first = deadline;
  }
  return first;
}

}  // namespace sluice
