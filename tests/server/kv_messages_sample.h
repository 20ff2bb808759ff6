// SPDX-License-Identifier: Apache-2.0
// One control message of each kind, every field another value.
#pragma once

#include <vector>

#include "engine/handoff/kv_messages.h"

namespace sluice::test {

inline KvTransferRef sample_ref(uint8_t first) {
  KvTransferRef ref;
  for (size_t i = 0; i < ref.transfer.size(); ++i) {
    ref.transfer[i] = static_cast<uint8_t>(first + i);
  }
  ref.attempt = 3u + first;
  return ref;
}

inline std::vector<KvMessage> sample_messages() {
  KvKey key{};
  key.fill(0x77);
  const std::vector<KvMessage> messages = {
      KvClaim{.ref = sample_ref(1),
              .epoch = UINT64_MAX - 5,
              .num_prompt_tokens = 4097,
              .last_key = key,
              .first_blocks = {0, 250},
              .transport = KvTransportKind::kSharedMemory,
              .deadline_ms = 30000,
              .trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
      KvAccept{.ref = sample_ref(2),
               .num_ready = 4,
               .num_blocks = 256,
               .lease_ms = 30000,
               .state = KvSenderState::kServing},
      KvRefuse{.ref = sample_ref(3), .reason = KvRefusal::kDraining, .retry_after_ms = 250},
      KvCredit{.ref = sample_ref(4), .slots = {{1, 2, 3}, {4, 5, UINT32_MAX}}},
      KvFinal{.ref = sample_ref(5),
              .ok = true,
              .num_blocks = 256,
              .first_token = 151643,
              .check = 0x8000000000000001,
              .seed = UINT64_MAX},
      KvRenew{.refs = {sample_ref(6), sample_ref(7)}},
      KvRenewAck{.refs = {sample_ref(8)}},
      KvRelease{sample_ref(9)},
      KvReleased{sample_ref(10)},
      KvCancel{.ref = sample_ref(11), .reason = KvCancelReason::kBadFrames},
      KvDrain{.until_ms = 60000},
  };
  return messages;
}

inline KvHello sample_hello() {
  KvHello hello;
  hello.epoch = 0x1234567890abcdef;
  hello.worker = "worker-7";
  for (size_t i = 0; i < hello.fingerprint.size(); ++i) {
    hello.fingerprint[i] = static_cast<uint8_t>(200 + i);
  }
  hello.layout = {.block_size = 16,
                  .dtype = 4,
                  .groups = {{1, 22, 512, 4096, 128}, {0, 4, 0, 8192, 0}},
                  .tensor_parallel = 4,
                  .heads_per_rank = 2};
  hello.transports = {{KvTransportKind::kSharedMemory, "shm:a:b", 2 << 20},
                      {KvTransportKind::kTcp, "0.0.0.0:4711", 1 << 20}};
  hello.session.fill(0x42);
  hello.max_in_flight = 12;
  hello.draining = true;
  return hello;
}

}  // namespace sluice::test
