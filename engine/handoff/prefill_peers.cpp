// SPDX-License-Identifier: Apache-2.0
// What peers say to a prefill worker, and what its data plane has done.
#include <algorithm>
#include <utility>

#include "engine/handoff/prefill_side.h"

namespace sluice {

void PrefillSide::claim(KvPeerId peer, const KvClaim& message, int64_t now_ms) {
  const HandoffPeer* const known = links_.find(peer);
  if (known == nullptr) return;
  const bool fits = message.first_blocks.empty() ||
                    message.first_blocks.size() == static_cast<size_t>(kv_.num_groups());
  PrefillEvent event = event_of(Kind::kClaim, now_ms);
  event.peer = peer;
  event.attempt = message.ref.attempt;
  event.epoch = message.epoch;
  event.key = message.last_key;
  event.is_compatible = known->is_compatible && !known->is_prefill && fits &&
                        links_.use(peer, message.transport) &&
                        std::ranges::all_of(message.first_blocks, [](uint32_t block) {
                          return block <= static_cast<uint32_t>(INT32_MAX);
                        });
  const Claim claim{.message = message, .slot_bytes = known->slot_bytes};
  Record* record = find(message.ref.transfer);
  if (record == nullptr) {
    record = (records_[message.ref.transfer] = std::make_unique<Record>()).get();
    record->transfer = message.ref.transfer;
  } else if (event.is_compatible && !record->tokens.empty()) {
    const std::vector<KvPart> parts = cut(*record, claim);
    event.num_parts = static_cast<int32_t>(parts.size());
    event.num_ready = num_parts_within(parts, record->num_computed);
    const bool may_be_late = record->state.phase == PrefillPhase::kGone;
    event.is_cached = may_be_late && is_cached(*record, parts);
  }
  step(*record, event, &claim);
}

void PrefillSide::credit(KvPeerId peer, const KvCredit& message, int64_t now_ms) {
  Record* const record = find(message.ref.transfer);
  // Only the claimer's slots are remembered, and only until the transfer's end.
  const bool is_of_claimer = record != nullptr && record->state.is_claimed &&
                             record->state.peer == peer &&
                             record->state.attempt == message.ref.attempt;
  if (!is_of_claimer) return refuse(peer, message.ref, KvRefusal::kGone);
  if (std::exchange(record->creditor, peer) != peer) record->generations.clear();
  std::vector<KvSlot> slots;
  for (const KvSlot& slot : message.slots) {
    // A slot's generation only rises: a message that is not newer has been seen.
    const auto known = record->generations.find(slot.slot);
    const bool is_new = known == record->generations.end();
    const uint32_t last = is_new ? 0 : known->second;
    if (slot.generation <= last || (is_new && record->generations.size() >= kMaxKvCredits)) {
      continue;
    }
    record->generations[slot.slot] = slot.generation;
    slots.push_back(slot);
  }
  if (slots.empty()) return;
  PrefillEvent event = event_of(Kind::kCredit, now_ms);
  event.peer = peer;
  event.attempt = message.ref.attempt;
  event.num_credits = static_cast<int32_t>(slots.size());
  step(*record, event, nullptr, slots);
}

void PrefillSide::notify(KvPeerId peer, const KvTransferRef& ref, Kind kind, int64_t now_ms) {
  Record* const record = find(ref.transfer);
  if (record == nullptr) {
    if (kind == Kind::kRelease) links_.send(peer, KvReleased{.ref = ref});
    if (kind == Kind::kRenew) refuse(peer, ref, KvRefusal::kGone);
    return;
  }
  PrefillEvent event = event_of(kind, now_ms);
  event.peer = peer;
  event.attempt = ref.attempt;
  step(*record, event);
}

void PrefillSide::receive(KvPeerId peer, const KvMessage& message, int64_t now_ms) {
  if (const auto* claimed = std::get_if<KvClaim>(&message)) {
    claim(peer, *claimed, now_ms);
  } else if (const auto* credited = std::get_if<KvCredit>(&message)) {
    credit(peer, *credited, now_ms);
  } else if (const auto* renew = std::get_if<KvRenew>(&message)) {
    renewed_.clear();
    for (const KvTransferRef& ref : renew->refs) notify(peer, ref, Kind::kRenew, now_ms);
    if (!renewed_.empty()) links_.send(peer, KvRenewAck{.refs = renewed_});
  } else if (const auto* release = std::get_if<KvRelease>(&message)) {
    notify(peer, release->ref, Kind::kRelease, now_ms);
  } else if (const auto* cancel = std::get_if<KvCancel>(&message)) {
    notify(peer, cancel->ref, Kind::kCancel, now_ms);
  }
}

void PrefillSide::nak(const KvCompletion& completion, int64_t now_ms) {
  const KvFrame& frame = completion.frame;
  Record* const record = find(frame.ref.transfer);
  if (record == nullptr) return;
  if (record->is_gone) {
    return refuse(KvPeerId(completion.session), frame.ref, KvRefusal::kGone);
  }
  const auto part = std::ranges::find_if(record->parts, [&](const KvPart& one) {
    return one.group == frame.group &&
           static_cast<uint32_t>(one.entries.first) == frame.first_block &&
           static_cast<uint32_t>(one.entries.count) == frame.num_blocks;
  });
  const auto known = record->generations.find(frame.slot);
  if (part == record->parts.end() || known == record->generations.end() ||
      frame.slot_generation <= known->second) {
    return;
  }
  known->second = frame.slot_generation;
  const auto bytes = static_cast<uint64_t>(block_bytes_[frame.group]) * frame.num_blocks;
  const KvSlot slot{.slot = frame.slot,
                    .generation = frame.slot_generation,
                    .bytes = static_cast<uint32_t>(bytes)};
  PrefillEvent event = event_of(Kind::kNak, now_ms);
  event.peer = KvPeerId(completion.session);
  event.attempt = frame.ref.attempt;
  event.part = static_cast<int32_t>(part - record->parts.begin());
  step(*record, event, nullptr, {&slot, 1});
}

void PrefillSide::count_sent(Record& record, const Reading& reading) {
  stats_.blocks_out += reading.blocks.size();
  if (!record.sending) return;
  record.sending->num_blocks += std::ssize(reading.blocks);
  for (const KvBlockRef& ref : reading.blocks) {
    record.sending->num_bytes +=
        static_cast<uint64_t>(block_bytes_[static_cast<size_t>(ref.group)]);
  }
}

void PrefillSide::complete(const KvCompletion& completion, int64_t now_ms) {
  using Completed = KvCompletion::Kind;
  if (completion.kind == Completed::kNak) return nak(completion, now_ms);
  const bool is_of_all = completion.kind == Completed::kClosed;
  std::vector<KvTransferId> transfers = {completion.frame.ref.transfer};
  if (is_of_all) {
    transfers.clear();
    for (const auto& [transfer, record] : records_) transfers.push_back(transfer);
  }
  for (const KvTransferId& transfer : transfers) {
    for (bool again = true; again;) {
      Record* const record = find(transfer);
      if (record == nullptr) break;
      const auto reading = std::ranges::find_if(record->readings, [&](const Reading& one) {
        if (!one.is_begun || one.peer.value != completion.session) return false;
        if (is_of_all) return true;
        if (one.attempt != completion.frame.ref.attempt) return false;
        return completion.kind == Completed::kWriterGone ||
               (one.slot.slot == completion.frame.slot &&
                one.slot.generation == completion.frame.slot_generation);
      });
      again = reading != record->readings.end() && completion.kind != Completed::kSent;
      if (reading == record->readings.end()) break;
      if (completion.kind == Completed::kSent) count_sent(*record, *reading);
      read_done(*record, static_cast<size_t>(reading - record->readings.begin()), now_ms);
    }
  }
}

void PrefillSide::peer_down(KvPeerId peer, int64_t now_ms) {
  std::vector<KvTransferId> all;
  for (const auto& [transfer, record] : records_) {
    if (record->state.peer == peer) all.push_back(transfer);
  }
  for (const KvTransferId& transfer : all)
    notify(peer, {.transfer = transfer}, Kind::kPeerDead, now_ms);
}

size_t PrefillSide::num_known_slots() const {
  size_t count = 0;
  for (const Records* records : {&records_, &gone_}) {
    for (const auto& [transfer, record] : *records) count += record->generations.size();
  }
  return count;
}

}  // namespace sluice
