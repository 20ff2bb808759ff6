// SPDX-License-Identifier: Apache-2.0
// How fetches get blocks of the cache, and give them back.
#include <algorithm>
#include <iterator>

#include "engine/handoff/decode_side.h"

namespace sluice {

// One that needs many blocks is not passed by those that need few.
void DecodeSide::reserve_waiting(int32_t num_spare_blocks, int64_t now_ms) {
  while (true) {
    Record* first = nullptr;
    for (const auto& [transfer, record] : records_) {
      if (!record->asks_for_room) continue;
      if (first == nullptr || record->number < first->number) first = record.get();
    }
    if (first == nullptr || !reserve(*first, num_spare_blocks, now_ms)) return;
  }
}

// Blocks of released requests that have not started: cached, and to be there when they start.
void DecodeSide::find_unused() {
  unused_.clear();
  for (const auto& [transfer, record] : records_) {
    const bool waits = !record->is_held && record->state.phase != DecodePhase::kEnded &&
                       kv_.block_table(record->request.id, 0).empty();
    if (!waits) continue;
    std::ranges::copy_if(record->landed, std::back_inserter(unused_), [this](const auto& ref) {
      return kv_.is_current(ref);
    });
  }
}

bool DecodeSide::reserve(Record& record, int32_t num_spare_blocks, int64_t now_ms) {
  const auto num_reserved = std::ranges::count_if(
      records_, [](const auto& entry) { return entry.second->has_room; });
  if (num_reserved >= max_reserved_) return false;
  find_unused();
  for (const KvBlockRef& ref : unused_) kv_.begin_transfer(ref.group, ref.block);
  const bool has_room = take_room(record, num_spare_blocks);
  for (const KvBlockRef& ref : unused_) kv_.end_transfer(ref.group, ref.block);
  if (!has_room) return false;
  record.has_arrived.assign(record.reserved.size(), false);
  record.asks_for_room = false;
  record.has_room = true;
  step(record, event_of(Kind::kRoom, now_ms));
  return true;
}

bool DecodeSide::take_room(Record& record, int32_t num_spare_blocks) {
  if (will_compare(record)) kv_.expect_proof(record.request.id);
  const Request& request = record.request;
  record.num_found_tokens =
      kv_.acquire_prefix(request.id, request.tokens(), request.extras, PrefixUse::kTransfer);
  record.reserved.clear();
  if (kv_.has_room(request.id, record.num_tokens, num_spare_blocks) &&
      kv_.reserve(request.id, record.num_tokens, record.reserved)) {
    return true;
  }
  kv_.free(request.id);
  return false;
}

bool DecodeSide::reclaim_reserved(int64_t now_ms) {
  Record* last = nullptr;
  for (const auto& [transfer, record] : records_) {
    if (!record->has_room) continue;
    if (last == nullptr || record->number > last->number) last = record.get();
  }
  if (last == nullptr) return false;
  step(*last, event_of(Kind::kPreempted, now_ms));
  return true;
}

}  // namespace sluice
