// SPDX-License-Identifier: Apache-2.0
// How a rank proves to rank 0, and rank 0 to it, that both know the group's secret, before either
// reads anything else: rank 0 sends a nonce, the follower its claims and a nonce with the
// HMAC-SHA256, by the secret, of both nonces and the claims; rank 0 answers in the same way with
// its verdict. Without a secret nothing is proven, which is for loopback only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "engine/parallel/group_socket.h"

namespace sluice {

// What a connection is for.
enum class GroupPurpose : uint32_t { kData, kLife, kRows };

struct GroupClaims {
  int32_t rank = 0;
  int32_t size = 0;
  GroupPurpose purpose = GroupPurpose::kData;
  std::string build;
};

// The follower's side. kUnauthenticated: the listener has another secret. kInvalidArgument: it does
// not want this rank; the message has its words.
Expected<void> present_claims(GroupSocket& socket,
                              const GroupClaims& claims,
                              const std::string& secret,
                              GroupDeadline deadline);

// Rank 0's side in two parts: it judges the claims between them. kUnauthenticated: not signed with
// this secret. kDataLoss: no handshake.
struct ProvenClaims {
  GroupClaims claims;
  std::array<uint8_t, 32> nonce{};  // the follower's
};

Expected<ProvenClaims> hear_claims(GroupSocket& socket,
                                   const std::string& secret,
                                   GroupDeadline deadline);
// An empty text welcomes.
Expected<void> answer_claims(GroupSocket& socket,
                             const ProvenClaims& proven,
                             const std::string& refusal,
                             const std::string& secret,
                             GroupDeadline deadline);

}  // namespace sluice
