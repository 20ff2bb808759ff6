// SPDX-License-Identifier: Apache-2.0
// Answers of the Responses API that may be asked for again, or continued by `previous_response_id`.
// Bounded in bytes, of which each tenant that has answers here may have an equal share. When there
// is no room, the least recently used answers of tenants beyond their share are evicted first: no
// traffic of one tenant evicts what another has within its share. Kept in memory only, so a restart
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

// An item's place in a text of JSON.
struct StoredItem {
  std::string id;
  size_t begin = 0;
  size_t size = 0;
};

struct StoredResponse {
  std::string response;  // the answer's JSON
  std::string messages;  // JSON: the conversation with the answer, without instructions
  std::string items;     // JSON: the request's own input items, an array
  std::vector<StoredItem> output = {};  // items of `response`
  std::vector<StoredItem> input = {};   // elements of `items`, so that a page needs no parsing
};

// Parsing a kept answer with its conversation of more bytes would delay an I/O thread's others.
inline constexpr int64_t kLargeAnswer = 256 << 10;

class ResponseStore {
 public:
  // `max_bytes` 0: nothing is kept.
  explicit ResponseStore(int64_t max_bytes) : max_bytes_(max_bytes) {}

  [[nodiscard]] bool is_on() const { return max_bytes_ > 0; }

  // Keeps an answer for its `tenant`; other tenants do not find it. An answer larger than the whole
  // store is not kept, nor one for which only the shares of others have room.
  void put(uint64_t tenant, std::string_view id, StoredResponse stored);
  // Returns null if the answer was never kept or is forgotten.
  [[nodiscard]] std::shared_ptr<const StoredResponse> find(uint64_t tenant, std::string_view id);
  // Returns the JSON of an output item of a kept answer; empty: there is none.
  [[nodiscard]] std::string find_item(uint64_t tenant, std::string_view id);
  // Tells whether the tenant has an answer beyond kLargeAnswer.
  [[nodiscard]] bool has_large(uint64_t tenant) const;
  // Returns false if there was none.
  bool erase(uint64_t tenant, std::string_view id);

  [[nodiscard]] int64_t num_bytes() const;

 private:
  struct Entry {
    std::string key;
    uint64_t tenant;
    int64_t num_bytes;
    uint64_t last_use;
    std::shared_ptr<const StoredResponse> stored;
  };

  using Entries = std::list<Entry>;

  struct Owned {
    Entries entries;  // last used first, never empty
    int64_t num_bytes = 0;
    int64_t num_large = 0;
  };

  struct Item {
    Entries::iterator entry;
    size_t idx;  // in StoredResponse::output
  };

  static std::string key_of(uint64_t tenant, std::string_view id);
  const StoredResponse& use(Entries::iterator entry);
  void drop(Entries::iterator entry);
  void make_room();

  const int64_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Owned> by_tenant_;  // guarded by mutex_ like all below
  std::unordered_map<std::string, Entries::iterator> by_key_;
  std::unordered_map<std::string, Item> by_item_;  // by the keys of output items
  int64_t num_bytes_ = 0;
  uint64_t num_uses_ = 0;
};

}  // namespace sluice
