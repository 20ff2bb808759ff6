// SPDX-License-Identifier: Apache-2.0
// Messages of peers to a decode worker, and the parts received from them.
#include <algorithm>

#include "engine/handoff/decode_side.h"

namespace sluice {

// The part of the present attempt that the frame has whole, with all layers and heads.
std::optional<size_t> DecodeSide::part_of(const Record& record, const KvFrame& frame) const {
  if (frame.ref.attempt != record.state.attempt) return std::nullopt;
  const auto part = std::ranges::find_if(record.parts, [&frame](const KvPart& one) {
    return one.group == frame.group &&
           static_cast<uint32_t>(one.entries.first) == frame.first_block &&
           static_cast<uint32_t>(one.entries.count) == frame.num_blocks;
  });
  if (part == record.parts.end()) return std::nullopt;
  const int64_t bytes = block_bytes_[frame.group] * part->entries.count;
  if (frame.payload_bytes != static_cast<uint64_t>(bytes)) return std::nullopt;
  return static_cast<size_t>(part - record.parts.begin());
}

void DecodeSide::frame_arrived(const KvCompletion& completion, int64_t now_ms) {
  const KvFrame& frame = completion.frame;
  Record* const record = find({.transfer = frame.ref.transfer, .attempt = frame.ref.attempt});
  if (record == nullptr || frame.slot >= slots_.size()) return;
  if (!slots_[frame.slot].awaits(record->number, frame.ref.attempt, frame.slot_generation)) return;
  DecodeEvent event = event_of(Kind::kFrame, now_ms);
  event.attempt = frame.ref.attempt;
  // One that is no part of the attempt is as bad as one with a wrong sum: it is not taken in.
  const std::optional<size_t> part = part_of(*record, frame);
  event.sums_agree = part && completion.kind == KvCompletion::Kind::kArrived;
  event.is_new = part && !record->has_part[*part];
  if (event.sums_agree) record->has_part[*part] = true;
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

void DecodeSide::notify(Record& record, Kind kind, int64_t now_ms) {
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
    const int32_t num_blocks = record->num_tokens / kv_.block_size();
    if (final->num_blocks != static_cast<uint32_t>(num_blocks)) event.kind = Kind::kFinalFailed;
    if (peer == record->state.peer && ref.attempt == record->state.attempt) {
      record->final = *final;
      record->check = final->check;
    }
  }
  step(*record, event);
}

// Its Hello may say that nothing of it can be used.
void DecodeSide::peer_up(KvPeerId peer, int64_t now_ms) {
  const HandoffPeer* const known = links_.find(peer);
  if (known == nullptr) return;
  for (const auto& [transfer, record] : records_) {
    if (record->state.peer != peer) continue;
    if (known->is_compatible) {
      if (record->state.phase == DecodePhase::kClaiming) claim(*record);
      continue;
    }
    DecodeEvent event = event_of(Kind::kRefuse, now_ms);
    event.peer = peer;
    event.attempt = record->state.attempt;
    event.reason = KvRefusal::kMismatch;
    step(*record, event);
  }
}

void DecodeSide::peer_down(KvPeerId peer, int64_t now_ms) {
  for (const auto& [transfer, record] : records_) {
    if (record->state.peer == peer) notify(*record, Kind::kPeerGone, now_ms);
  }
}

}  // namespace sluice
