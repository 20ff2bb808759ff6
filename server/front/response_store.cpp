// SPDX-License-Identifier: Apache-2.0
#include "server/front/response_store.h"

#include <utility>

namespace sluice {

std::string ResponseStore::key_of(uint64_t tenant, std::string_view id) {
  return std::to_string(tenant) + '/' + std::string(id);
}

const StoredResponse& ResponseStore::use(Entries::iterator entry) {
  entry->last_use = ++num_uses_;
  Entries& entries = by_tenant_.at(entry->tenant).entries;
  entries.splice(entries.begin(), entries, entry);
  return *entry->stored;
}

void ResponseStore::drop(Entries::iterator entry) {
  const auto owned = by_tenant_.find(entry->tenant);
  num_bytes_ -= entry->num_bytes;
  owned->second.num_bytes -= entry->num_bytes;
  owned->second.num_large -= entry->num_bytes > kLargeAnswer ? 1 : 0;
  by_key_.erase(entry->key);
  for (const StoredItem& item : entry->stored->output) {
    by_item_.erase(key_of(entry->tenant, item.id));
  }
  owned->second.entries.erase(entry);
  if (owned->second.entries.empty()) by_tenant_.erase(owned);
}

// Where all have more than the store's bytes together, one has more than its share.
void ResponseStore::make_room() {
  while (num_bytes_ > max_bytes_) {
    const int64_t share = max_bytes_ / static_cast<int64_t>(by_tenant_.size());
    Entries* oldest = nullptr;
    for (auto& [tenant, owned] : by_tenant_) {
      if (owned.num_bytes <= share) continue;
      const bool is_older =
          oldest == nullptr || owned.entries.back().last_use < oldest->back().last_use;
      if (is_older) oldest = &owned.entries;
    }
    drop(std::prev(oldest->end()));
  }
}

void ResponseStore::put(uint64_t tenant, std::string_view id, StoredResponse stored) {
  constexpr int64_t kOverhead = 512;      // of an entry, about
  constexpr int64_t kItemOverhead = 256;  // of an item's id, about
  std::string key = key_of(tenant, id);
  const size_t num_text = stored.response.size() + stored.messages.size() + stored.items.size();
  auto num_bytes = static_cast<int64_t>(num_text + 2 * key.size()) + kOverhead;
  for (const StoredItem& item : stored.output) {
    num_bytes += static_cast<int64_t>(3 * item.id.size()) + kItemOverhead;
  }
  for (const StoredItem& item : stored.input) {
    num_bytes += static_cast<int64_t>(sizeof item + item.id.size());
  }
  if (num_bytes > max_bytes_) return;
  const std::scoped_lock lock(mutex_);
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  Owned& owned = by_tenant_[tenant];
  owned.entries.push_front({key,
                            tenant,
                            num_bytes,
                            ++num_uses_,
                            std::make_shared<const StoredResponse>(std::move(stored))});
  const auto entry = owned.entries.begin();
  for (size_t i = 0; i < entry->stored->output.size(); ++i) {
    by_item_.insert_or_assign(key_of(tenant, entry->stored->output[i].id), Item{entry, i});
  }
  by_key_.emplace(std::move(key), entry);
  owned.num_bytes += num_bytes;
  owned.num_large += num_bytes > kLargeAnswer ? 1 : 0;
  num_bytes_ += num_bytes;
  make_room();
}

std::shared_ptr<const StoredResponse> ResponseStore::find(uint64_t tenant, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_key_.find(key_of(tenant, id));
  if (found == by_key_.end()) return nullptr;
  use(found->second);
  return found->second->stored;
}

std::string ResponseStore::find_item(uint64_t tenant, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_item_.find(key_of(tenant, id));
  if (found == by_item_.end()) return {};
  const Item& item = found->second;
  const StoredResponse& stored = use(item.entry);
  return stored.response.substr(stored.output[item.idx].begin, stored.output[item.idx].size);
}

bool ResponseStore::has_large(uint64_t tenant) const {
  const std::scoped_lock lock(mutex_);
  const auto owned = by_tenant_.find(tenant);
  return owned != by_tenant_.end() && owned->second.num_large > 0;
}

bool ResponseStore::erase(uint64_t tenant, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_key_.find(key_of(tenant, id));
  if (found == by_key_.end()) return false;
  drop(found->second);
  return true;
}

int64_t ResponseStore::num_bytes() const {
  const std::scoped_lock lock(mutex_);
  return num_bytes_;
}

}  // namespace sluice
