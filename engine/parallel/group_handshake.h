// SPDX-License-Identifier: Apache-2.0
// How a rank proves to the one that it dials, mostly rank 0, and that one to it, that both know the
// group's secret, before either reads anything else: who listens sends a nonce, the other its
// claims and a nonce with the HMAC-SHA256, by the secret, of both nonces and the claims; who
// listens answers in the same way with its verdict. Without a secret nothing is proven, which is
// for loopback only.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/core/status.h"
#include "engine/parallel/group_socket.h"

namespace sluice {

// What a connection is for; kPeer: jobs do not come on it, and it is not with rank 0.
enum class GroupPurpose : uint32_t { kData, kLife, kRows, kPeer };

struct GroupClaims {
  int32_t rank = 0;
  int32_t size = 0;
  GroupPurpose purpose = GroupPurpose::kData;
  std::string build;
};

// Who dials. kUnauthenticated: the listener has another secret. kInvalidArgument: it does
// not want this rank. The message has who listens for its subject.
Expected<void> present_claims(GroupSocket& socket,
                              const GroupClaims& claims,
                              const std::string& secret,
                              GroupDeadline deadline);

// Who listens, in two parts: it judges the claims between them. kUnauthenticated: not signed with
// this secret. kDataLoss: no handshake.
struct ProvenClaims {
  GroupClaims claims;
  std::array<uint8_t, 32> nonce{};  // of who dials
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
