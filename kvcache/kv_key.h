// SPDX-License-Identifier: Apache-2.0
// The name of one block's KV outside of this process: a hash chain over everything that determines
// the block's bytes. It is SHA-256 cut to 128 bits, because a tenant who wants a collision may have
// computed what lies on disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/core/types.h"
#include "kvcache/prefix_extras.h"

namespace sluice {

using KvKey = std::array<uint8_t, 16>;

struct KvKeyHash {
  size_t operator()(const KvKey& key) const {
    size_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof(hash));
    return hash;
  }
};

// Names a key space by model, build and dtypes (`fingerprint`) and by the block size.
std::string kv_key_space(std::string_view fingerprint, int32_t block_size);
// The parent key of first blocks. `space` names model, build, dtypes and block layout.
KvKey kv_root_key(std::string_view space, const PrefixExtras& extras);
// The key of the block of `token_ids` after the prefix `parent`.
KvKey kv_next_key(const KvKey& parent, std::span<const TokenId> token_ids);

}  // namespace sluice
