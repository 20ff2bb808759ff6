// SPDX-License-Identifier: Apache-2.0
// The control messages of KV transfers between two workers, `sluice.kv.v1`, as plain values that
// the engine thread sends and gets. A prefill worker (P) has KV, a decode worker (D) asks for it
// and is always the one that connects: a worker that does both has a stream for each. The numbers
// of protobuf fields are the comments "n:" (a KvTransferRef is the message's 1: and 2:); bounds are
// what a decoder refuses beyond, since nothing that a peer sends may reach a CHECK. All messages
// are idempotent: one that comes again gets the answer again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/incoming_memory.h"
#include "engine/core/types.h"
#include "kvcache/kv_key.h"
#include "kvcache/transport/kv_transfer_ref.h"

namespace sluice {

inline constexpr uint32_t kKvProtocolVersion = 1;
inline constexpr size_t kMaxKvGroups = 16;
inline constexpr size_t kMaxKvTransports = 8;
inline constexpr size_t kMaxKvCreditSlots = 256;  // of one message
inline constexpr size_t kMaxKvRenewals = 1024;    // of one message
inline constexpr size_t kMaxKvText = 256;         // bytes of an address or a trace
inline constexpr size_t kMaxKvWorkerName = 64;    // bytes

// How a data plane moves bytes. A plug-in's number is its own, from 64 on.
enum class KvTransportKind : uint8_t { kNone, kTcp, kSharedMemory, kCudaIpc, kNccl };

constexpr std::string_view to_string(KvTransportKind kind) {
  switch (kind) {
    case KvTransportKind::kNone:
      return "none";
    case KvTransportKind::kTcp:
      return "tcp";
    case KvTransportKind::kSharedMemory:
      return "shm";
    case KvTransportKind::kCudaIpc:
      return "cuda_ipc";
    case KvTransportKind::kNccl:
      return "nccl";
  }
  return "unknown";
}

struct KvGroupLayout {
  uint8_t kind = 0;               // 1: as in KvGroupKind
  uint32_t num_layers = 0;        // 2:
  uint32_t window = 0;            // 3: tokens; 0: all are seen
  uint64_t half_block_bytes = 0;  // 4: of one layer's K or V of one block, all heads
  uint64_t scale_bytes = 0;       // 5: scales among them
  friend bool operator==(const KvGroupLayout&, const KvGroupLayout&) = default;
};

struct KvLayout {
  uint32_t block_size = 0;            // 1: tokens
  uint8_t dtype = 0;                  // 2: as in DType
  std::vector<KvGroupLayout> groups;  // 3: at most kMaxKvGroups
  uint32_t tensor_parallel = 1;       // 4: ranks
  uint32_t heads_per_rank = 0;        // 5: KV heads
  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

struct KvTransportOffer {
  KvTransportKind kind = KvTransportKind::kNone;  // 1:
  std::string address;                            // 2: as its kind reads it, at most kMaxKvText
  uint64_t max_frame_bytes = 0;                   // 3: of a payload
  friend bool operator==(const KvTransportOffer&, const KvTransportOffer&) = default;
};

// The first message of each side, before any about a request. P's answer, HelloAck, has the same
// fields.
struct KvHello {
  uint32_t min_version = kKvProtocolVersion;  // 1:
  uint32_t max_version = kKvProtocolVersion;  // 2:
  uint64_t epoch = 0;                         // 3: random for each start of a process, never 0
  std::string worker;                         // 4: a name for logs, at most kMaxKvWorkerName
  std::array<uint8_t, 32> fingerprint{};      // 5: of the determinism key
  KvLayout layout;                            // 6:
  std::vector<KvTransportOffer> transports;   // 7: at most kMaxKvTransports
  std::array<uint8_t, 16> session{};          // 8: opens this pair's data connections; secret
  uint32_t max_in_flight = 0;                 // 9: transfers at once; 0: no bound
  bool draining = false;                      // 10:
  friend bool operator==(const KvHello&, const KvHello&) = default;
};

// D to P: asks for the KV of a prompt.
struct KvClaim {
  KvTransferRef ref;
  uint64_t epoch = 0;              // 3: P's; 0: D does not know it, its peer learns the id itself
  uint32_t num_prompt_tokens = 0;  // 4:
  KvKey last_key{};                // 5: of the last whole block before the last token
  std::vector<uint32_t> first_blocks;  // 6: the first block that D wants, by KV group
  KvTransportKind transport = KvTransportKind::kNone;  // 7:
  uint32_t deadline_ms = 0;  // 9: from now, after which D stops asking
  std::string trace;         // 10: traceparent of the request, at most kMaxKvText
  friend bool operator==(const KvClaim&, const KvClaim&) = default;
};

enum class KvSenderState : uint8_t { kExpected, kComputing, kParked, kServing };

// P to D: the claim is accepted.
struct KvAccept {
  KvTransferRef ref;
  uint32_t num_ready = 0;                           // 3: blocks that could be sent now
  uint32_t num_blocks = 0;                          // 4: in all; 0: not known yet
  uint32_t lease_ms = 0;                            // 5: how long P keeps them without a message
  KvSenderState state = KvSenderState::kComputing;  // 6:
  friend bool operator==(const KvAccept&, const KvAccept&) = default;
};

enum class KvRefusal : uint8_t {
  kUnknown,   // no such transfer, or not yet
  kGone,      // ended; the blocks are not there any more
  kEpoch,     // P has been started again
  kKey,       // the same id names another prompt here
  kMismatch,  // another model, build, dtype, layout, version or transport
  kBusy,      // another asker has it, or P has too many
  kDraining,
};
inline constexpr size_t kNumKvRefusals = 7;

constexpr std::string_view to_string(KvRefusal reason) {
  switch (reason) {
    case KvRefusal::kUnknown:
      return "unknown";
    case KvRefusal::kGone:
      return "gone";
    case KvRefusal::kEpoch:
      return "epoch";
    case KvRefusal::kKey:
      return "key";
    case KvRefusal::kMismatch:
      return "mismatch";
    case KvRefusal::kBusy:
      return "busy";
    case KvRefusal::kDraining:
      return "draining";
  }
  return "invalid";
}

// P to D: the claim is refused.
struct KvRefuse {
  KvTransferRef ref;
  KvRefusal reason = KvRefusal::kUnknown;  // 3:
  uint32_t retry_after_ms = 0;             // 4: 0: do not retry
  friend bool operator==(const KvRefuse&, const KvRefuse&) = default;
};

struct KvSlot {
  uint32_t slot = 0;        // 1: D's number of a landing place
  uint32_t generation = 0;  // 2: of that place; a frame for an earlier one is dropped
  uint32_t bytes = 0;       // 3: room
  friend bool operator==(const KvSlot&, const KvSlot&) = default;
};

// D to P: these places wait for frames.
struct KvCredit {
  KvTransferRef ref;
  std::vector<KvSlot> slots;  // 3: at most kMaxKvCreditSlots
  friend bool operator==(const KvCredit&, const KvCredit&) = default;
};

// P to D: how the prefill ended. D counts the blocks itself.
struct KvFinal {
  KvTransferRef ref;
  bool ok = false;                      // 3: false: it failed, and no more blocks follow
  uint32_t num_blocks = 0;              // 4: in all
  TokenId first_token = kInvalidToken;  // 5: what P chose after the prompt
  uint64_t check = 0;                   // 6: of the bits of that row of logits
  uint64_t seed = 0;                    // 7: what it was chosen with
  friend bool operator==(const KvFinal&, const KvFinal&) = default;
};

// D to P: D still waits for these. RenewAck has those that P still has.
struct KvRenew {
  std::vector<KvTransferRef> refs;  // 1: at most kMaxKvRenewals
  friend bool operator==(const KvRenew&, const KvRenew&) = default;
};

struct KvRenewAck {
  std::vector<KvTransferRef> refs;  // 1: at most kMaxKvRenewals
  friend bool operator==(const KvRenewAck&, const KvRenewAck&) = default;
};

// D to P: D has all it wants. Released is the answer, also for a transfer unknown to P.
struct KvRelease {
  KvTransferRef ref;
  friend bool operator==(const KvRelease&, const KvRelease&) = default;
};

struct KvReleased {
  KvTransferRef ref;
  friend bool operator==(const KvReleased&, const KvReleased&) = default;
};

enum class KvCancelReason : uint8_t { kClientGone, kTimeout, kLocal, kPreempted, kBadFrames };

// D to P: D gives the transfer up.
struct KvCancel {
  KvTransferRef ref;
  KvCancelReason reason = KvCancelReason::kClientGone;  // 3:
  friend bool operator==(const KvCancel&, const KvCancel&) = default;
};

// Either side: the worker is shutting down and offers nothing new.
struct KvDrain {
  uint32_t until_ms = 0;  // 1: from now
  friend bool operator==(const KvDrain&, const KvDrain&) = default;
};

struct KvLoad {
  uint64_t num_active_blocks = 0;  // 1:
  uint64_t num_queued_tokens = 0;  // 2:
  uint64_t num_pinned_blocks = 0;  // 3:
  friend bool operator==(const KvLoad&, const KvLoad&) = default;
};

// Either side, each second: for the channel alone; the engine neither sends nor receives it.
struct KvPing {
  uint64_t sequence = 0;   // 1:
  uint64_t num_steps = 0;  // 2: done so far; moves while there is work
  KvLoad load;             // 3:
  friend bool operator==(const KvPing&, const KvPing&) = default;
};

struct KvPong {
  uint64_t sequence = 0;   // 1: the Ping's
  uint64_t num_steps = 0;  // 2:
  KvLoad load;             // 3:
  friend bool operator==(const KvPong&, const KvPong&) = default;
};

// The messages that the engine sends and gets.
using KvMessage = std::variant<KvClaim,
                               KvAccept,
                               KvRefuse,
                               KvCredit,
                               KvFinal,
                               KvRenew,
                               KvRenewAck,
                               KvRelease,
                               KvReleased,
                               KvCancel,
                               KvDrain>;

}  // namespace sluice
