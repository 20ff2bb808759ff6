// SPDX-License-Identifier: Apache-2.0
// Turns messages of a worker's KV events (engine/tiers/kv_event_publisher.h) into changes of a
// router's index of its cache. Blocks are known by the router's own chain of hashes, computed from
// the tokens of an event; the worker's hashes only say which block an event means. A value without
// thread or I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>

#include "server/router/known_prefixes.h"

namespace sluice {

class KvEventFeed {
 public:
  enum class Verdict : uint8_t {
    kApplied,
    kGap,     // messages are missing: the index is cleared, and this one is applied
    kBroken,  // not a valid message: the index is cleared
  };

  // Takes a message, MessagePack, and its number: each the previous one plus 1.
  Verdict take(int64_t number, std::span<const uint8_t> message, KnownPrefixes& index);

  // Prepares for another process as the sender, or forgets a message that cannot be read.
  void reset(KnownPrefixes& index);

  // Returns the number of the worker's hashes that are kept: at most a quarter more than the index
  // may have blocks, or 1024.
  [[nodiscard]] size_t num_hashes() const { return own_hashes_.size(); }

 private:
  struct Reader;

  void forget_excess(const KnownPrefixes& index);

  std::optional<int64_t> last_number_;
  std::unordered_map<uint64_t, uint64_t> own_hashes_;  // of indexed blocks, by the worker's hashes
};

}  // namespace sluice
