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
  entries_.erase(entry);
}

void ResponseStore::put(uint64_t tenant, std::string_view id, StoredResponse stored) {
  constexpr int64_t kOverhead = 512;  // of an entry, about
  std::string key = key_of(tenant, id);
  const size_t num_text = stored.response.size() + stored.messages.size() + stored.items.size();
  const auto num_bytes = static_cast<int64_t>(num_text + 2 * key.size()) + kOverhead;
  if (num_bytes > max_bytes_) return;
  const std::scoped_lock lock(mutex_);
  if (const auto old = by_key_.find(key); old != by_key_.end()) drop(old->second);
  while (num_bytes_ + num_bytes > max_bytes_) drop(std::prev(entries_.end()));
  entries_.push_front({key, num_bytes, std::make_shared<const StoredResponse>(std::move(stored))});
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
