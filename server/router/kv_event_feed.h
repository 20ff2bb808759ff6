// SPDX-License-Identifier: Apache-2.0
// Messages of a worker's KV events (engine/tiers/kv_event_publisher.h) as changes of what a router
// knows of its cache. Blocks are known by the router's own chain of hashes, which it computes from
// the tokens that an event brings; the worker's hashes only say which block an event means. A value
// without thread or I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "server/router/prefix_index.h"

namespace sluice {

class KvEventFeed {
 public:
  enum class Verdict : uint8_t {
    kApplied,
    kGap,     // messages are missing: what was known is forgotten, and this one is applied
    kBroken,  // it is none of such messages: what was known is forgotten
  };

  // A message, MessagePack, and its number: each the one before it plus 1.
  Verdict take(int64_t number, std::span<const uint8_t> message, PrefixIndex& index);

  // Another process sends from here on.
  void reset(PrefixIndex& index);

 private:
  struct Reader;

  std::optional<int64_t> last_number_;
  std::unordered_map<uint64_t, uint64_t> own_hashes_;  // by the worker's, of what is in the index
};

}  // namespace sluice
