// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/group_handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace sluice {
namespace {

using Bytes32 = std::array<uint8_t, 32>;

constexpr uint32_t kMagic = 0x47524c53;  // "SLRG"
constexpr uint32_t kVersion = 1;

struct Challenge {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  Bytes32 nonce{};
};

struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  int32_t rank = 0;
  int32_t size = 0;
  uint32_t purpose = 0;
  std::array<char, 64> build{};  // ends with zeros
  Bytes32 nonce{};
  Bytes32 mac{};  // last
};

struct Verdict {
  uint32_t magic = kMagic;
  std::array<char, 252> refusal{};  // ends with zeros
  Bytes32 mac{};                    // last
};

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

template <size_t kSize>
void put(std::array<char, kSize>& out, std::string_view text) {
  out.fill(0);
  std::copy_n(text.data(), std::min(text.size(), kSize - 1), out.data());
}

template <size_t kSize>
std::string text_of(const std::array<char, kSize>& in) {
  return {in.data(), strnlen(in.data(), kSize)};
}

Bytes32 random_nonce() {
  Bytes32 nonce{};
  CHECK_EQ(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())), 1);
  return nonce;
}

// Signs a message, all but its last member, for whoever made the nonce.
template <typename T>
Bytes32 mac_of(const T& message, const Bytes32& nonce, const std::string& secret) {
  std::array<uint8_t, sizeof(T)> signed_bytes{};
  constexpr size_t kOwn = sizeof(T) - sizeof(Bytes32);
  std::memcpy(signed_bytes.data(), &message, kOwn);
  std::memcpy(signed_bytes.data() + kOwn, nonce.data(), nonce.size());
  Bytes32 mac{};
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(),
                          secret.data(),
                          static_cast<int>(secret.size()),
                          signed_bytes.data(),
                          signed_bytes.size(),
                          mac.data(),
                          &size);
  CHECK(made != nullptr && size == mac.size());
  return mac;
}

bool are_equal(const Bytes32& a, const Bytes32& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Expected<void> present_claims(GroupSocket& socket,
                              const GroupClaims& claims,
                              const std::string& secret,
                              GroupDeadline deadline) {
  Challenge challenge;
  SLUICE_TRY_VOID(socket.receive(bytes_of(challenge), deadline));
  if (challenge.magic != kMagic || challenge.version != kVersion) {
    return make_error(ErrorCode::kInvalidArgument, "is no rank of this version of the program");
  }
  Hello hello;
  hello.rank = claims.rank;
  hello.size = claims.size;
  hello.purpose = static_cast<uint32_t>(claims.purpose);
  put(hello.build, claims.build);
  hello.nonce = random_nonce();
  hello.mac = mac_of(hello, challenge.nonce, secret);
  SLUICE_TRY_VOID(socket.send(bytes_of(hello), deadline));
  Verdict verdict;
  SLUICE_TRY_VOID(socket.receive(bytes_of(verdict), deadline));
  if (!are_equal(verdict.mac, mac_of(verdict, hello.nonce, secret))) {
    return make_error(ErrorCode::kUnauthenticated, "has another --worker-secret", "worker-secret");
  }
  if (const std::string refusal = text_of(verdict.refusal); !refusal.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "refuses: " + refusal, "node-rank");
  }
  return {};
}

Expected<ProvenClaims> hear_claims(GroupSocket& socket,
                                   const std::string& secret,
                                   GroupDeadline deadline) {
  Challenge challenge;
  challenge.nonce = random_nonce();
  SLUICE_TRY_VOID(socket.send(bytes_of(challenge), deadline));
  Hello hello;
  SLUICE_TRY_VOID(socket.receive(bytes_of(hello), deadline));
  if (hello.magic != kMagic || hello.version != kVersion) {
    return make_error(ErrorCode::kDataLoss, "found other bytes than a rank's");
  }
  ProvenClaims proven = {.claims = {.rank = hello.rank,
                                    .size = hello.size,
                                    .purpose = static_cast<GroupPurpose>(hello.purpose),
                                    .build = text_of(hello.build)},
                         .nonce = hello.nonce};
  if (!are_equal(hello.mac, mac_of(hello, challenge.nonce, secret))) {
    // The follower finds out by a verdict that is not signed with its secret.
    SLUICE_TRY_VOID(answer_claims(socket, proven, "", secret, deadline));
    return make_error(ErrorCode::kUnauthenticated, "it has another --worker-secret");
  }
  return proven;
}

Expected<void> answer_claims(GroupSocket& socket,
                             const ProvenClaims& proven,
                             const std::string& refusal,
                             const std::string& secret,
                             GroupDeadline deadline) {
  Verdict verdict;
  put(verdict.refusal, refusal);
  verdict.mac = mac_of(verdict, proven.nonce, secret);
  return socket.send(bytes_of(verdict), deadline);
}

}  // namespace sluice
