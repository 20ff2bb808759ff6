// SPDX-License-Identifier: Apache-2.0
#include "scheduler/fair_queue.h"

#include <algorithm>
#include <cstddef>

#include "engine/core/status.h"

namespace sluice {

namespace {

// At least this many tenants without requests keep their counters.
constexpr int32_t kNumRemembered = 256;

}  // namespace

FairQueue::FairQueue(int32_t max_entries, int64_t credit)
    : credit_(credit),
      entry_positions_(static_cast<size_t>(max_entries), -1),
      due_positions_(static_cast<size_t>(max_entries + kNumRemembered), -1),
      later_positions_(due_positions_.size(), -1),
      slot_of_(max_entries + kNumRemembered),
      due_(due_positions_),
      later_(later_positions_) {
  due_.reserve(static_cast<size_t>(max_entries));
  later_.reserve(static_cast<size_t>(max_entries));
}

// Returns a new slot, or that of the idle tenant with the least counter, whose counter `served_`
// would soon have passed anyway.
int32_t FairQueue::open_slot(TenantId id) {
  int32_t slot = -1;
  if (tenants_.size() < due_positions_.size()) {
    slot = static_cast<int32_t>(tenants_.size());
    tenants_.emplace_back(entry_positions_);
  } else {
    for (size_t i = 0; i < tenants_.size(); ++i) {
      const bool less = slot < 0 || tenants_[i].counter < tenant(slot).counter;
      if (tenants_[i].num_requests == 0 && less) slot = static_cast<int32_t>(i);
    }
    CHECK_GE(slot, 0);  // there are more slots than requests
    slot_of_.erase(tenant(slot).id);
  }
  Tenant& opened = tenant(slot);
  opened.id = id;
  opened.counter = 0;
  slot_of_.insert(id, slot);
  return slot;
}

int32_t FairQueue::enter(TenantId id) {
  int32_t slot = slot_of_.find(id);
  if (slot == IndexMap<TenantId>::kAbsent) slot = open_slot(id);
  Tenant& entered = tenant(slot);
  if (entered.num_unstarted == 0) {
    entered.counter = std::max(entered.counter, served_ - credit_);
  }
  ++entered.num_requests;
  ++entered.num_unstarted;
  entered.queue.reserve(static_cast<size_t>(entered.num_unstarted));
  return slot;
}

void FairQueue::start(int32_t slot, const QueueKey& key, int64_t num_tokens) {
  Tenant& started = tenant(slot);
  if (is_due(key)) served_ = std::max(served_, started.counter);
  started.counter += num_tokens;
  --started.num_unstarted;
}

void FairQueue::leave(int32_t slot, bool was_started) {
  Tenant& left = tenant(slot);
  --left.num_requests;
  if (!was_started) --left.num_unstarted;
}

int64_t FairQueue::counter_of(TenantId id) const {
  const int32_t slot = slot_of_.find(id);
  return slot == IndexMap<TenantId>::kAbsent ? 0 : tenant(slot).counter;
}

void FairQueue::take_out(int32_t slot) {
  if (due_.contains(slot)) due_.remove(slot);
  if (later_.contains(slot)) later_.remove(slot);
}

void FairQueue::place(int32_t slot) {
  const Tenant& placed = tenant(slot);
  const QueueKey& key = placed.queue.first_key();
  if (is_due(key)) {
    due_.push({placed.counter, key}, slot);
  } else {
    later_.push(key, slot);
  }
}

void FairQueue::push(int32_t slot, const QueueKey& key, int32_t entry) {
  Tenant& of = tenant(slot);
  of.queue.push(key, entry);
  ++size_;
  if (of.queue.first() != entry) return;
  take_out(slot);
  place(slot);
}

void FairQueue::remove(int32_t slot, int32_t entry) {
  Tenant& of = tenant(slot);
  const bool was_first = of.queue.first() == entry;
  of.queue.remove(entry);
  --size_;
  if (!was_first) return;
  take_out(slot);
  if (!of.queue.empty()) place(slot);
}

void FairQueue::advance(int64_t now_ms) {
  now_ms_ = std::max(now_ms_, now_ms);
  while (!later_.empty() && is_due(later_.first_key())) {
    const int32_t slot = later_.first();
    later_.remove(slot);
    place(slot);
  }
}

int32_t FairQueue::first() {
  if (due_.empty()) return tenant(later_.first()).queue.first();
  for (;;) {
    const Tenant& top = tenant(due_.first());
    if (due_.first_key().counter == top.counter) return top.queue.first();
    due_.raise_first({top.counter, top.queue.first_key()});
  }
}

std::string FairQueue::check_tenant(int32_t slot) const {
  const Tenant& checked = tenant(slot);
  if (std::string wrong = checked.queue.check_integrity(); !wrong.empty()) return wrong;
  if (slot_of_.find(checked.id) != slot) return "a tenant cannot be found";
  if (checked.queue.size() > checked.num_unstarted ||
      checked.num_unstarted > checked.num_requests) {
    return "a tenant's requests are miscounted";
  }
  const bool is_queued = !checked.queue.empty();
  if (due_.contains(slot) + later_.contains(slot) != static_cast<int>(is_queued)) {
    return "a tenant is queued twice or not at all";
  }
  if (!is_queued) return {};
  const QueueKey& key = checked.queue.first_key();
  if (is_due(key) != due_.contains(slot)) return "a tenant is due or not, and queued as if not";
  const QueueKey& known = is_due(key) ? due_.key_of(slot).first : later_.key_of(slot);
  if (known != key) return "a tenant is queued for another request than its first";
  const bool ahead = is_due(key) && due_.key_of(slot).counter > checked.counter;
  return ahead ? "a tenant is queued behind its counter" : "";
}

std::string FairQueue::check_integrity() const {
  int32_t num_queued = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    num_queued += tenants_[i].queue.size();
    if (std::string wrong = check_tenant(static_cast<int32_t>(i)); !wrong.empty()) return wrong;
  }
  if (num_queued != size_) return "queued requests are miscounted";
  if (std::string wrong = due_.check_integrity(); !wrong.empty()) return wrong;
  return later_.check_integrity();
}

}  // namespace sluice
