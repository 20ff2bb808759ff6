// SPDX-License-Identifier: Apache-2.0
// One block of KV in a file: a header of fixed size for a block size, then the bytes of every
// group. Little-endian; offsets of the header's fields:
//     0  magic and version, 8 bytes      40  payload bytes          64  checksum of the header
//     8  key                             48  token ids, how many    72  the token ids
//    24  parent's key                    56  checksum of the payload
// All fields but the keys (16) and token ids (4) take 8 bytes. Checksums are XXH3; the header's is
// over everything else in it. The keys hold model, build, dtypes, layout and tenant (kv_key.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kvcache/kv_key.h"

namespace sluice {

struct KvFileName {
  KvKey key;
  KvKey parent;
  std::span<const TokenId> token_ids;
};

inline constexpr int64_t kKvFileTokensAt = 72;

// The size of header and token ids, a multiple of 64.
constexpr int64_t kv_file_header_bytes(int32_t block_size) {
  return align_up(kKvFileTokensAt + block_size * int64_t{sizeof(TokenId)}, 64);
}

// Writes the header of `file`, which is header and payload, the payload already in place.
void seal_kv_file(const KvFileName& name, std::span<std::byte> file);

// kDataLoss when `file` is anything but the sealed block of this name and size.
Expected<void> check_kv_file(const KvFileName& name, std::span<const std::byte> file);

}  // namespace sluice
