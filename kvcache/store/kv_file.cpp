// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_file.h"

#include <xxhash.h>

#include <cstring>
#include <string>
#include <string_view>

#include "engine/core/u64_fields.h"

namespace sluice {
namespace {

constexpr std::string_view kMagic = "SLUIKV01";
constexpr size_t kKeyAt = 8;
constexpr size_t kParentAt = 24;
constexpr size_t kPayloadBytesAt = 40;
constexpr size_t kNumTokensAt = 48;
constexpr size_t kPayloadSumAt = 56;
constexpr size_t kHeaderSumAt = 64;
constexpr size_t kTokensAt = kKvFileTokensAt;

uint64_t header_sum(std::span<const std::byte> header) {
  const uint64_t front = XXH3_64bits(header.data(), kHeaderSumAt);
  return XXH3_64bits_withSeed(header.data() + kTokensAt, header.size() - kTokensAt, front);
}

tl::unexpected<Error> refuse(const char* what) { return make_error(ErrorCode::kDataLoss, what); }

}  // namespace

void seal_kv_file(const KvFileName& name, std::span<std::byte> file) {
  const auto header_bytes =
      static_cast<size_t>(kv_file_header_bytes(static_cast<int32_t>(name.token_ids.size())));
  CHECK_LE(header_bytes, file.size());
  const std::span<std::byte> header = file.first(header_bytes);
  const std::span<const std::byte> payload = file.subspan(header_bytes);
  std::memset(header.data(), 0, header.size());
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  std::memcpy(header.data() + kKeyAt, name.key.data(), name.key.size());
  std::memcpy(header.data() + kParentAt, name.parent.data(), name.parent.size());
  put_u64(header, kPayloadBytesAt, payload.size());
  put_u64(header, kNumTokensAt, name.token_ids.size());
  put_u64(header, kPayloadSumAt, XXH3_64bits(payload.data(), payload.size()));
  std::memcpy(header.data() + kTokensAt, name.token_ids.data(), name.token_ids.size_bytes());
  put_u64(header, kHeaderSumAt, header_sum(header));
}

Expected<void> check_kv_file(const KvFileName& name, std::span<const std::byte> file) {
  const auto header_bytes =
      static_cast<size_t>(kv_file_header_bytes(static_cast<int32_t>(name.token_ids.size())));
  if (file.size() < header_bytes) return refuse("shorter than its header");
  const std::span<const std::byte> header = file.first(header_bytes);
  const std::span<const std::byte> payload = file.subspan(header_bytes);
  if (std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0)
    return refuse("another format");
  if (get_u64(header, kHeaderSumAt) != header_sum(header))
    return refuse("the header's checksum is wrong");
  if (std::memcmp(header.data() + kKeyAt, name.key.data(), name.key.size()) != 0 ||
      std::memcmp(header.data() + kParentAt, name.parent.data(), name.parent.size()) != 0) {
    return refuse("another key");
  }
  if (get_u64(header, kNumTokensAt) != name.token_ids.size() ||
      std::memcmp(header.data() + kTokensAt, name.token_ids.data(), name.token_ids.size_bytes()) !=
          0) {
    return refuse("other tokens");
  }
  if (get_u64(header, kPayloadBytesAt) != payload.size()) return refuse("another size");
  if (get_u64(header, kPayloadSumAt) != XXH3_64bits(payload.data(), payload.size())) {
    return refuse("the checksum of its contents is wrong");
  }
  return {};
}

}  // namespace sluice
