// SPDX-License-Identifier: Apache-2.0
#include "server/front/response_store.h"

#include <utility>

namespace sluice {

std::string ResponseStore::key_of(uint64_t tenant, std::string_view id) {
  return std::to_string(tenant) + '/' + std::string(id);
}

void ResponseStore::drop(Entries::iterator entry) {
  num_bytes_ -= entry->num_bytes;
  by_key_.erase(entry->key);
  for (const StoredItem& item : entry->stored->output) {
    by_item_.erase(key_of(entry->tenant, item.id));
  }
  entries_.erase(entry);
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
  if (num_bytes > max_bytes_) return;
  const std::scoped_lock lock(mutex_);
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  while (num_bytes_ + num_bytes > max_bytes_) drop(std::prev(entries_.end()));
  entries_.push_front(
      {key, tenant, num_bytes, std::make_shared<const StoredResponse>(std::move(stored))});
  const std::vector<StoredItem>& output = entries_.front().stored->output;
  for (size_t i = 0; i < output.size(); ++i) {
    by_item_.insert_or_assign(key_of(tenant, output[i].id), Item{entries_.begin(), i});
  }
  by_key_.emplace(std::move(key), entries_.begin());
  num_bytes_ += num_bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(uint64_t tenant, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_key_.find(key_of(tenant, id));
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->stored;
}

std::string ResponseStore::find_item(uint64_t tenant, std::string_view id) {
  const std::scoped_lock lock(mutex_);
  const auto found = by_item_.find(key_of(tenant, id));
  if (found == by_item_.end()) return {};
  const Item& item = found->second;
  entries_.splice(entries_.begin(), entries_, item.entry);
  const StoredResponse& stored = *item.entry->stored;
  return stored.response.substr(stored.output[item.idx].begin, stored.output[item.idx].size);
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
