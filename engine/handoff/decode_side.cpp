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

constexpr int64_t kTotalMs = 30'000;  // that receiving is worth

}  // namespace

DecodeSide::DecodeSide(std::string space,
                       KvStorage& storage,
                       KvCacheManager& kv,
                       HandoffLinks& links)
    : space_(std::move(space)),
      storage_(storage),
      kv_(kv),
      links_(links),
      slots_(static_cast<size_t>(links.mover().num_slots())),
      num_free_slots_(links.mover().num_slots()) {
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    block_bytes_.push_back(storage.block_bytes(group));
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
    if (record->id == id) return record.get();
  }
  return nullptr;
}

DecodeEvent DecodeSide::event_of(Kind kind, int64_t now_ms) {
  DecodeEvent event;
  event.kind = kind;
  event.now_ms = now_ms;
  event.total_ms = kTotalMs;
  return event;
}

void DecodeSide::cut(Record& record) {
  record.parts = cut_into_parts(kv_,
                                static_cast<int32_t>(record.tokens.size()),
                                record.first,
                                block_bytes_,
                                links_.slot_bytes());
  record.has_part.assign(record.parts.size(), false);
}

// --- Requests ---------------------------------------------------------------------------------

bool DecodeSide::hold(NewRequest& request, const HandoffSpec& spec, int64_t now_ms) {
  const auto fall_back = [&](HandoffFallback why) {
    ++counts_.fallbacks[static_cast<size_t>(why)];
    return false;
  };
  if (request.scores_prompt) return fall_back(HandoffFallback::kScoresPrompt);
  const int32_t num_prompt_tokens =
      static_cast<int32_t>(request.tokens.size()) - request.num_generated;
  const int32_t num_tokens = kv_.max_transferred(num_prompt_tokens);
  // A second request of the same name is an ordinary one.
  if (num_tokens == 0 || slots_.empty() || records_.contains(spec.transfer)) return false;
  auto record = std::make_unique<Record>();
  record->tokens.assign(request.tokens.begin(), request.tokens.begin() + num_tokens);
  record->extras = request.extras;
  record->key = kv_root_key(space_, request.extras);
  const auto size = static_cast<size_t>(kv_.block_size());
  for (size_t at = 0; at < record->tokens.size(); at += size) {
    record->key = kv_next_key(record->key, std::span(record->tokens).subspan(at, size));
  }
  if (spec.result && spec.result->key != record->key) {
    return fall_back(HandoffFallback::kWrongPrompt);
  }
  std::vector<KvBlockRef> here;
  const int32_t num_here = kv_.find_blocks(record->tokens, record->extras, {}, here);
  if (num_here * kv_.block_size() >= num_tokens) return false;
  const Expected<KvPeerId> peer = links_.connect(spec.peer);
  if (!peer) return fall_back(HandoffFallback::kPeerGone);
  record->transfer = spec.transfer;
  record->number = next_number_++;
  record->id = request.id;
  record->adopts_seed = spec.adopts_seed;
  record->num_prompt_tokens = num_prompt_tokens;
  record->epoch = spec.door == HandoffDoor::kSerial ? spec.peer_epoch : 0;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    record->first.push_back(kv_.num_entries(group, num_here * kv_.block_size()));
  }
  record->request = std::move(request);
  cut(*record);
  Record& held = *(records_[spec.transfer] = std::move(record));
  DecodeEvent event = event_of(Kind::kStart, now_ms);
  event.peer = *peer;
  event.is_early = held.epoch == 0;
  event.num_parts = static_cast<int32_t>(held.parts.size());
  ++counts_.num_claims;
  step(held, event);
  const HandoffPeer* const known = links_.find(*peer);
  if (known != nullptr) come(*peer, now_ms);
  return true;
}

bool DecodeSide::abort(RequestId id, int64_t now_ms) {
  Record* const record = find(id);
  const bool is_held = record != nullptr && record->is_held;
  const bool is_ready = std::erase_if(ready_, [id](const Released& released) {
                          return released.request.id == id;
                        }) > 0;
  end(id, now_ms);
  return is_held || is_ready;
}

void DecodeSide::end(RequestId id, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr) return;
  if (record->is_held) {
    if (record->has_room) kv_.free(id);
    record->has_room = false;
    record->is_held = false;
  }
  step(*record, event_of(Kind::kOver, now_ms));
  drop_over();
}

void DecodeSide::take_ready(std::vector<Released>& ready) {
  for (Released& released : ready_) ready.push_back(std::move(released));
  ready_.clear();
}

bool DecodeSide::compare(RequestId id, uint64_t check, int64_t now_ms) {
  Record* const record = find(id);
  if (record == nullptr || record->state.phase != DecodePhase::kLanded) return true;
  // Without the bits of both rows nothing can be said: parameters may differ in what P was asked.
  const bool can_tell = record->final && record->final->check != 0 && check != 0;
  DecodeEvent event = event_of(Kind::kTail, now_ms);
  event.agrees = !can_tell || record->final->check == check;
  const bool agrees = event.agrees;
  step(*record, event);
  return agrees;
}

// Tokens from the front whose blocks are there.
int32_t DecodeSide::front_tokens(const Record& record) const {
  const auto has = [&](const KvBlockRef& ref) {
    for (size_t i = 0; i < record.parts.size(); ++i) {
      const KvPart& part = record.parts[i];
      const bool is_in = part.group == ref.group && part.entries.first <= ref.entry &&
                         ref.entry < part.entries.end();
      if (is_in) return static_cast<bool>(record.has_part[i]);
    }
    // Before this attempt's first: it came with an earlier one, or was never asked for.
    return ref.entry < record.first[static_cast<size_t>(ref.group)];
  };
  const auto gap = std::ranges::find_if_not(record.reserved, has);
  if (gap == record.reserved.end()) return static_cast<int32_t>(record.tokens.size());
  const bool is_plain =
      kv_.num_groups() == 1 && storage_.groups().front().kind == KvGroupKind::kFull;
  return is_plain ? gap->entry * kv_.block_size() : 0;
}

// It goes on as an ordinary request behind what is there.
void DecodeSide::release(Record& record) {
  if (!record.is_held) return;
  if (record.has_room) {
    kv_.publish(record.id, record.request.tokens, front_tokens(record));
    kv_.free(record.id);
  }
  record.has_room = false;
  record.asks_for_room = false;
  record.is_held = false;
  Released released{.request = std::move(record.request), .seed = {}};
  if (record.adopts_seed && record.final) released.seed = record.final->seed;
  ready_.push_back(std::move(released));
}

void DecodeSide::reserve(Record& record, int64_t now_ms) {
  kv_.acquire_prefix(record.id, record.request.tokens, record.extras, PrefixUse::kTransfer);
  record.reserved.clear();
  if (!kv_.reserve(record.id, static_cast<int32_t>(record.tokens.size()), record.reserved)) {
    kv_.free(record.id);
    return;
  }
  record.asks_for_room = false;
  record.has_room = true;
  step(record, event_of(Kind::kRoom, now_ms));
}

bool DecodeSide::has_room() const {
  return std::ranges::any_of(records_, [](const auto& entry) { return entry.second->has_room; });
}

void DecodeSide::give_back_room(int64_t now_ms) {
  for (const auto& [transfer, record] : records_) {
    if (record->has_room) step(*record, event_of(Kind::kPreempted, now_ms));
  }
}

void DecodeSide::drain(int64_t now_ms) {
  for (const auto& [transfer, record] : records_) step(*record, event_of(Kind::kDraining, now_ms));
}

// --- The machine ------------------------------------------------------------------------------

void DecodeSide::step(Record& record, const DecodeEvent& event, const KvFrame* frame) {
  const uint32_t attempt = record.state.attempt;
  const DecodeActions actions =
      advance(record.state, event, {.num_free_slots = num_free_slots_, .times = {}});
  if (attempt != 0 && record.state.attempt != attempt) {
    begin_again(record);
  }
  for (const DecodeAction& action : actions) act(record, action, frame, event.now_ms);
}

// A new attempt asks for what is behind the parts that came without a gap.
void DecodeSide::begin_again(Record& record) {
  for (size_t i = 0; i < record.parts.size() && record.has_part[i]; ++i) {
    const KvPart& part = record.parts[i];
    record.first[static_cast<size_t>(part.group)] = part.entries.end();
  }
  cut(record);
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
      take_in(record, *frame);
      free_slot(static_cast<int32_t>(frame->slot));
      break;
    case Do::kNak: {
      LandingSlot& slot = slots_[frame->slot];
      slot.post(record.number, action.attempt);
      if (!post_slot(record, static_cast<int32_t>(frame->slot))) break;
      KvFrame nak = *frame;
      nak.kind = KvFrameKind::kNak;
      nak.slot_generation = slot.generation;
      nak.payload_bytes = 0;
      nak.payload_sum = 0;
      static_cast<void>(links_.mover().send_nak(peer.value, nak));
      break;
    }
    case Do::kFreeSlot:
      free_slot(static_cast<int32_t>(frame->slot));
      break;
    case Do::kAbortLanding:
      abort_landing(record);
      break;
    case Do::kLand:
      ++counts_.num_landed;
      release(record);
      break;
    case Do::kFallBack:
      ++counts_.fallbacks[static_cast<size_t>(action.fallback)];
      release(record);
      break;
    case Do::kDropBlocks:
      kv_.unpublish(record.id, record.first.front() * kv_.block_size());
      break;
  }
}

void DecodeSide::claim(const Record& record) {
  KvClaim message;
  message.ref = {.transfer = record.transfer, .attempt = record.state.attempt};
  message.epoch = record.epoch;
  message.num_prompt_tokens = static_cast<uint32_t>(record.num_prompt_tokens);
  message.last_key = record.key;
  message.first_blocks.assign(record.first.begin(), record.first.end());
  message.transport = links_.transport_kind();
  message.deadline_ms = kTotalMs;
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

void DecodeSide::take_in(Record& record, const KvFrame& frame) {
  const int64_t block_bytes = block_bytes_[frame.group];
  std::vector<BlockId> run;  // blocks that lie together in the slot
  for (uint32_t i = 0; i <= frame.num_blocks; ++i) {
    const auto entry = static_cast<int32_t>(frame.first_block + i);
    const auto ref = std::ranges::find_if(record.reserved, [&](const KvBlockRef& one) {
      return i < frame.num_blocks && one.group == frame.group && one.entry == entry;
    });
    if (ref != record.reserved.end()) {
      run.push_back(ref->block);
      continue;
    }
    // The end, or what is not reserved, which was here already.
    if (run.empty()) continue;
    const int64_t first = static_cast<int64_t>(i) - std::ssize(run);
    links_.mover().take_in(frame.slot, first * block_bytes, frame.group, run);
    counts_.num_blocks += run.size();
    run.clear();
  }
}

// --- What comes -------------------------------------------------------------------------------

void DecodeSide::frame_arrived(const KvCompletion& completion, int64_t now_ms) {
  const KvFrame& frame = completion.frame;
  Record* const record = find({.transfer = frame.ref.transfer, .attempt = frame.ref.attempt});
  if (record == nullptr || frame.slot >= slots_.size()) return;
  if (!slots_[frame.slot].awaits(record->number, frame.ref.attempt, frame.slot_generation)) return;
  DecodeEvent event = event_of(Kind::kFrame, now_ms);
  event.attempt = frame.ref.attempt;
  event.sums_agree = completion.kind == KvCompletion::Kind::kArrived;
  event.is_new = false;
  for (size_t i = 0; i < record->parts.size(); ++i) {
    const KvPart& part = record->parts[i];
    const bool is_it = part.group == frame.group &&
                       static_cast<uint32_t>(part.entries.first) == frame.first_block &&
                       static_cast<uint32_t>(part.entries.count) == frame.num_blocks;
    if (!is_it || frame.ref.attempt != record->state.attempt) continue;
    event.is_new = !record->has_part[i];
    if (event.sums_agree) record->has_part[i] = true;
  }
  step(*record, event, &frame);
}

void DecodeSide::slots_back(Record& record, uint32_t attempt, int64_t now_ms) {
  DecodeEvent event = event_of(Kind::kSlotsBack, now_ms);
  event.attempt = attempt;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const LandingSlot& slot = slots_[i];
    if (!slot.is_posted || slot.owner != record.number || slot.attempt != attempt) continue;
    free_slot(static_cast<int32_t>(i));
    ++event.num_slots;
  }
  if (event.num_slots > 0) step(record, event);
}

void DecodeSide::complete(const KvCompletion& completion, int64_t now_ms) {
  using Completed = KvCompletion::Kind;
  switch (completion.kind) {
    case Completed::kArrived:
    case Completed::kSpoiled:
      frame_arrived(completion, now_ms);
      break;
    case Completed::kWriterGone:
      if (Record* const record = find({.transfer = completion.frame.ref.transfer,
                                       .attempt = completion.frame.ref.attempt})) {
        slots_back(*record, completion.frame.ref.attempt, now_ms);
      }
      break;
    case Completed::kClosed:
      for (const auto& [transfer, record] : records_) {
        if (record->state.peer.value != completion.session) continue;
        for (uint32_t attempt = 1; attempt <= record->state.attempt; ++attempt) {
          slots_back(*record, attempt, now_ms);
        }
      }
      break;
    case Completed::kSent:
    case Completed::kNak:
    case Completed::kEnded:
      break;
  }
  drop_over();
}

void DecodeSide::tell(Record& record, Kind kind, int64_t now_ms) {
  DecodeEvent event = event_of(kind, now_ms);
  event.peer = record.state.peer;
  event.attempt = record.state.attempt;
  step(record, event);
}

void DecodeSide::receive(KvPeerId peer, const KvMessage& message, int64_t now_ms) {
  DecodeEvent event = event_of(Kind::kAccept, now_ms);
  event.peer = peer;
  KvTransferRef ref;
  if (const auto* accept = std::get_if<KvAccept>(&message)) {
    ref = accept->ref;
  } else if (const auto* refuse = std::get_if<KvRefuse>(&message)) {
    ref = refuse->ref;
    event.kind = Kind::kRefuse;
    event.reason = refuse->reason;
    event.retry_after_ms = refuse->retry_after_ms;
  } else if (const auto* final = std::get_if<KvFinal>(&message)) {
    ref = final->ref;
    event.kind = final->ok ? Kind::kFinalOk : Kind::kFinalFailed;
  } else {
    return;
  }
  event.attempt = ref.attempt;
  Record* const record = find(ref);
  if (record == nullptr) {
    const bool is_kept = event.kind == Kind::kAccept || event.kind == Kind::kFinalOk;
    if (is_kept) links_.send(peer, KvCancel{.ref = ref});
    return;
  }
  if (const auto* final = std::get_if<KvFinal>(&message); final != nullptr && final->ok) {
    const auto num_blocks = record->tokens.size() / static_cast<size_t>(kv_.block_size());
    if (final->num_blocks != num_blocks) event.kind = Kind::kFinalFailed;
    if (peer == record->state.peer && ref.attempt == record->state.attempt) record->final = *final;
  }
  step(*record, event);
}

// Its Hello may say that nothing of it can be used.
void DecodeSide::come(KvPeerId peer, int64_t now_ms) {
  const HandoffPeer* const known = links_.find(peer);
  if (known == nullptr || known->is_compatible) return;
  for (const auto& [transfer, record] : records_) {
    if (record->state.peer != peer) continue;
    DecodeEvent event = event_of(Kind::kRefuse, now_ms);
    event.peer = peer;
    event.attempt = record->state.attempt;
    event.reason = KvRefusal::kMismatch;
    step(*record, event);
  }
}

void DecodeSide::lose(KvPeerId peer, int64_t now_ms) {
  for (const auto& [transfer, record] : records_) {
    if (record->state.peer == peer) tell(*record, Kind::kPeerGone, now_ms);
  }
}

void DecodeSide::drop_over() {
  std::erase_if(records_, [](const auto& entry) { return is_over(entry.second->state); });
}

void DecodeSide::advance_all(int64_t now_ms) {
  for (const auto& [transfer, entry] : records_) {
    Record& record = *entry;
    if (record.asks_for_room) reserve(record, now_ms);
    const std::optional<int64_t> timer = sluice::next_timer(record.state);
    if (timer && *timer <= now_ms) {
      DecodeEvent event = event_of(Kind::kTimer, now_ms);
      // A new attempt begins at the first part that has not come.
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
  }
  return first;
}

}  // namespace sluice
