// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/kv_handshake.h"

#include <kv_control.pb.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

#include "server/grpc/kv_codec.h"

namespace sluice {
namespace {

using Mac = std::array<unsigned char, 32>;

Mac mac_of(KvSide side,
           const std::string& secret,
           const KvNonce& peers_nonce,
           const KvNonce& own_nonce,
           const std::string& hello) {
  std::string signed_text =
      side == KvSide::kCaller ? "sluice.kv.v1 caller" : "sluice.kv.v1 listener";
  signed_text.append(peers_nonce.begin(), peers_nonce.end());
  signed_text.append(own_nonce.begin(), own_nonce.end());
  signed_text += hello;
  Mac mac{};
  unsigned size = 0;
  const auto* made = HMAC(EVP_sha256(),
                          secret.data(),
                          static_cast<int>(secret.size()),
                          reinterpret_cast<const unsigned char*>(signed_text.data()),
                          signed_text.size(),
                          mac.data(),
                          &size);
  CHECK(made != nullptr && size == mac.size());
  return mac;
}

}  // namespace

void fill_random(std::span<uint8_t> bytes) {
  CHECK_EQ(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())), 1);
}

void sign_kv_hello(const KvHello& hello,
                   KvSide side,
                   const std::string& secret,
                   const KvNonce& peers_nonce,
                   const KvNonce& own_nonce,
                   kv::v1::SignedHello& out) {
  out.set_hello(encode_kv_hello(hello));
  out.mutable_nonce()->assign(own_nonce.begin(), own_nonce.end());
  out.clear_mac();
  if (secret.empty()) return;
  const Mac mac = mac_of(side, secret, peers_nonce, own_nonce, out.hello());
  out.mutable_mac()->assign(mac.begin(), mac.end());
}

Expected<KvProvenHello> verify_kv_hello(const kv::v1::SignedHello& in,
                                        KvSide side,
                                        const std::string& secret,
                                        const KvNonce& verifiers_nonce) {
  KvProvenHello proven;
  if (in.nonce().size() != proven.nonce.size()) {
    return make_error(ErrorCode::kInvalidArgument, "a nonce has 32 bytes");
  }
  std::memcpy(proven.nonce.data(), in.nonce().data(), proven.nonce.size());
  if (!secret.empty()) {  // checked before any of it is parsed
    const Mac mac = mac_of(side, secret, verifiers_nonce, proven.nonce, in.hello());
    if (in.mac().size() != mac.size() ||
        CRYPTO_memcmp(in.mac().data(), mac.data(), mac.size()) != 0) {
      return make_error(ErrorCode::kUnauthenticated, "the peer has not the same secret");
    }
  }
  SLUICE_TRY(proven.hello, decode_kv_hello(in.hello()));
  proven.version = std::min(proven.hello.max_version, kKvProtocolVersion);
  if (proven.version < std::max(proven.hello.min_version, kKvProtocolVersion)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the peer speaks versions " + std::to_string(proven.hello.min_version) +
                          " to " + std::to_string(proven.hello.max_version) + ", this worker " +
                          std::to_string(kKvProtocolVersion));
  }
  return proven;
}

}  // namespace sluice
