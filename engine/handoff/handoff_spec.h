// SPDX-License-Identifier: Apache-2.0
// A handoff's parameters in a request and in its answer: a prefill worker computes the KV of a
// prompt, a decode worker fetches it and continues. Plain values: a front end fills and reads them,
// the engine acts on them. A handoff changes no token of an answer, only where its KV is computed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/core/handoff_fallback.h"
#include "engine/core/types.h"

namespace sluice {

using TransferId = std::array<uint8_t, 16>;  // names one handoff on both workers
using PrefixKey = std::array<uint8_t, 16>;   // a KvKey (kvcache/kv_key.h)

enum class HandoffKind : uint8_t {
  kOffer,  // this worker computes the prompt and keeps its blocks for another one
  kFetch,  // another worker has or computes the prompt's blocks
};

// How the two requests of a handoff get the name of its transfer.
enum class HandoffMode : uint8_t {
  kSerial,      // the prefill worker draws it, its answer carries it to the decode worker
  kConcurrent,  // a router drew it and sent both requests at once
};

// The result of a prefill. With kSerial the decode worker knows it before it asks.
struct HandoffResult {
  PrefixKey key{};                // of the last whole block that travels
  int32_t num_prompt_tokens = 0;  // at least 1
  int32_t num_blocks = 0;         // blocks that travel, in a group that keeps all
  uint64_t seed = 0;              // the first token was drawn with it
  TokenId first_token = kInvalidToken;
  uint64_t check = 0;  // of the logits that the first token was drawn from
};

// Part of a ValidRequest. Addresses and ids are what a client sent: well formed, and nothing more.
struct HandoffSpec {
  HandoffKind kind = HandoffKind::kOffer;
  HandoffMode mode = HandoffMode::kSerial;
  TransferId transfer{};         // all zero for a serial offer: the engine draws it
  std::string peer;              // kFetch: host:port of the prefill worker's control listener
  uint64_t peer_epoch = 0;       // kFetch: of the process that made the offer; 0: not known
  std::string peer_fingerprint;  // kFetch: its determinism key's name; empty: not known
  // Set in a serial fetch. `sampling.seed` is its seed already, unless the client named another.
  std::optional<HandoffResult> result;
  bool adopts_seed = false;  // a concurrent fetch without a seed of the client's: the peer's counts
};

// What the answer to a serial offer carries to the decode worker.
struct HandoffOffer {
  TransferId transfer{};
  uint64_t epoch = 0;      // random, one per start of the process
  int32_t num_groups = 1;  // KV groups
  HandoffResult result;
};

// The place where other workers reach this one. Fixed after start.
struct HandoffInfo {
  uint64_t epoch = 0;
  std::string host;  // of the control listener, as peers should name it
  int32_t port = 0;      // bound: never 0
  bool offers = false;   // it computes prompts for others
  bool fetches = false;  // it takes what others have computed
};

}  // namespace sluice
