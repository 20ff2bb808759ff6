// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_key.h"

#include <openssl/sha.h>

#include <algorithm>

namespace sluice {
namespace {

KvKey digest_of(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  KvKey key;
  std::copy_n(digest.begin(), key.size(), key.begin());
  return key;
}

template <typename T>
void append(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

std::string kv_key_space(std::string_view fingerprint, int32_t block_size) {
  return std::string(fingerprint) + "-b" + std::to_string(block_size);
}

KvKey kv_root_key(std::string_view space, const PrefixExtras& extras) {
  std::string bytes = "root";
  append(bytes, extras.tenant_salt);
  append(bytes, extras.adapter_id);
  append(bytes, extras.media_hash);
  bytes.append(space);
  return digest_of(bytes);
}

KvKey kv_next_key(const KvKey& parent, std::span<const TokenId> token_ids) {
  std::string bytes = "next";
  append(bytes, parent);
  bytes.append(reinterpret_cast<const char*>(token_ids.data()), token_ids.size_bytes());
  return digest_of(bytes);
}

}  // namespace sluice
