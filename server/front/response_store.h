// SPDX-License-Identifier: Apache-2.0
// Answers of the Responses API that may be asked for again, or continued by `previous_response_id`.
// Bounded in bytes: the least recently used are evicted first. Kept in memory only, so a restart
// forgets them. Any thread.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice {

// An output item's place in the answer's JSON.
struct StoredItem {
  std::string id;
  size_t begin = 0;
  size_t size = 0;
};

struct StoredResponse {
  std::string response;  // the answer's JSON
  std::string messages;  // JSON: the conversation with the answer, without instructions
  std::string items;     // JSON: the request's own input items, an array
  std::vector<StoredItem> output = {};
};

class ResponseStore {
 public:
  // `max_bytes` 0: nothing is kept.
  explicit ResponseStore(int64_t max_bytes) : max_bytes_(max_bytes) {}

  [[nodiscard]] bool is_on() const { return max_bytes_ > 0; }

  // Keeps an answer for its `tenant`; other tenants do not find it. An answer larger than the whole
  // store is not kept.
  void put(uint64_t tenant, std::string_view id, StoredResponse stored);
  // Returns null if the answer was never kept or is forgotten.
  [[nodiscard]] std::shared_ptr<const StoredResponse> find(uint64_t tenant, std::string_view id);
  // Returns the JSON of an output item of a kept answer; empty: there is none.
  [[nodiscard]] std::string find_item(uint64_t tenant, std::string_view id);
  // Returns false if there was none.
  bool erase(uint64_t tenant, std::string_view id);

  [[nodiscard]] int64_t num_bytes() const;

 private:
  struct Entry {
    std::string key;
    uint64_t tenant;
    int64_t num_bytes;
    std::shared_ptr<const StoredResponse> stored;
  };

  using Entries = std::list<Entry>;

  struct Item {
    Entries::iterator entry;
    size_t idx;  // in StoredResponse::output
  };

  static std::string key_of(uint64_t tenant, std::string_view id);
  void drop(Entries::iterator entry);

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  Entries entries_;  // last used first; guarded by mutex_ like the next three
  std::unordered_map<std::string, Entries::iterator> by_key_;
  std::unordered_map<std::string, Item> by_item_;  // by the keys of output items
  int64_t num_bytes_ = 0;
};

}  // namespace sluice
