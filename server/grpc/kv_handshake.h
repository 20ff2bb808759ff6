// SPDX-License-Identifier: Apache-2.0
// The handshake of two workers before the first message about KV: their names, and proof that both
// have the secret. The caller sends its Hello and a nonce with the HMAC-SHA256, by the secret, of
// the listener's nonce, its own and the Hello; the listener answers in the same way. Without a
// secret nothing is proven, which is for loopback only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "engine/handoff/kv_messages.h"

namespace sluice::kv::v1 {
class SignedHello;
}  // namespace sluice::kv::v1

namespace sluice {

using KvNonce = std::array<uint8_t, 32>;

enum class KvSide : uint8_t { kCaller, kListener };

// Fills nonces and tokens of sessions with bytes that cannot be guessed.
void fill_random(std::span<uint8_t> bytes);

void sign_kv_hello(const KvHello& hello,
                   KvSide side,
                   const std::string& secret,
                   const KvNonce& peers_nonce,
                   const KvNonce& own_nonce,
                   kv::v1::SignedHello& out);

struct KvProvenHello {
  KvHello hello;
  KvNonce nonce{};
  uint32_t version = 0;  // the highest version that both have
};

// kUnauthenticated: not signed with this secret by that side for this nonce. kInvalidArgument: a
// field out of its bounds, or no version in common.
Expected<KvProvenHello> verify_kv_hello(const kv::v1::SignedHello& hello,
                                        KvSide side,
                                        const std::string& secret,
                                        const KvNonce& verifiers_nonce);

}  // namespace sluice
