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

std::string to_hex(const KvKey& key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : key) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<KvKey> kv_key_from_hex(std::string_view text) {
  KvKey key{};
  if (text.size() != 2 * key.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) return std::nullopt;
    const auto nibble = static_cast<uint8_t>(digit ? c - '0' : c - 'a' + 10);
    key[i / 2] = static_cast<uint8_t>(key[i / 2] << 4 | nibble);
  }
  return key;
}

}  // namespace sluice
