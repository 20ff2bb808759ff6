// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/kv_frame.h"

#include <cstring>
#include <string>

#include "engine/core/checked.h"
#include "kernels/kv_checksum.h"

namespace sluice {
namespace {

constexpr uint32_t kMagic = 0x464b4c53;  // "SLKF" as bytes
constexpr uint16_t kVersion = 1;
constexpr size_t kSumAt = kKvFrameBytes - sizeof(uint64_t);

// Calls `field` with each value in the order of the bytes; the offsets follow from the sizes.
template <typename Frame, typename Field>
void for_each_field(Frame& frame, Field&& field) {
  field(frame.ref.transfer);
  field(frame.ref.attempt);
  field(frame.slot);
  field(frame.slot_generation);
  field(frame.group);
  field(frame.flags);
  field(frame.first_layer);
  field(frame.num_layers);
  field(frame.first_head);
  field(frame.num_heads);
  field(frame.first_block);
  field(frame.num_blocks);
  field(frame.payload_bytes);
  field(frame.payload_sum);
  field(frame.sequence);
  field(frame.epoch);
}

class Writer {
 public:
  explicit Writer(std::span<std::byte, kKvFrameBytes> out) : out_(out) {}

  template <typename T>
  void operator()(const T& value) {
    std::memcpy(out_.data() + at_, &value, sizeof(value));
    at_ += sizeof(value);
  }

  [[nodiscard]] size_t at() const { return at_; }

 private:
  std::span<std::byte, kKvFrameBytes> out_;
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte, kKvFrameBytes> bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    std::memcpy(&value, bytes_.data() + at_, sizeof(value));
    at_ += sizeof(value);
  }

 private:
  std::span<const std::byte, kKvFrameBytes> bytes_;
  size_t at_ = 0;
};

tl::unexpected<Error> refuse(const char* what) { return make_error(ErrorCode::kDataLoss, what); }

// Whether [first, first + count) is a part of [0, size), with something in it.
bool is_part(uint32_t first, uint32_t count, uint32_t size) {
  return count > 0 && first < size && count <= size - first;
}

}  // namespace

void encode_kv_frame(const KvFrame& frame, std::span<std::byte, kKvFrameBytes> out) {
  Writer write(out);
  write(kMagic);
  write(kVersion);
  write(static_cast<uint16_t>(frame.kind));
  for_each_field(frame, write);
  CHECK_EQ(write.at(), kSumAt);
  write(kernels::kv_checksum(out.first<kSumAt>()));
}

Expected<KvFrame> decode_kv_frame(std::span<const std::byte, kKvFrameBytes> bytes) {
  Reader read(bytes);
  uint32_t magic = 0;
  uint16_t version = 0;
  uint16_t kind = 0;
  read(magic);
  read(version);
  read(kind);
  if (magic != kMagic) return refuse("no KV frame");
  KvFrame frame;
  for_each_field(frame, read);
  uint64_t sum = 0;
  read(sum);
  if (sum != kernels::kv_checksum(bytes.first<kSumAt>())) return refuse("wrong sum of a header");
  // The version is checked after the sum: a wrong one then means a different program, not a flipped
  // bit.
  if (version != kVersion) {
    return make_error(
        ErrorCode::kDataLoss,
        "KV frames of version " + std::to_string(version) + ", here " + std::to_string(kVersion));
  }
  if (kind < static_cast<uint16_t>(KvFrameKind::kData) ||
      kind > static_cast<uint16_t>(KvFrameKind::kKept)) {
    return refuse("unknown kind of KV frame");
  }
  frame.kind = static_cast<KvFrameKind>(kind);
  return frame;
}

bool is_kv_layout(const KvFrameLayout& layout) {
  if (layout.slot_bytes == 0 || layout.slot_bytes > kKvMostSlotBytes) return false;
  if (layout.groups.empty() || layout.groups.size() > UINT16_MAX) return false;
  for (const KvFrameLayout::Group& group : layout.groups) {
    if (group.num_layers == 0 || group.num_heads == 0 || group.head_bytes == 0) return false;
  }
  return true;
}

std::optional<uint64_t> kv_frame_piece_bytes(const KvFrame& frame, const KvFrameLayout& layout) {
  if (frame.group >= layout.groups.size()) return std::nullopt;
  const KvFrameLayout::Group& group = layout.groups[frame.group];
  if (!is_part(frame.first_layer, frame.num_layers, group.num_layers) ||
      !is_part(frame.first_head, frame.num_heads, group.num_heads) ||
      !is_part(frame.first_block, frame.num_blocks, UINT32_MAX)) {
    return std::nullopt;
  }
  // The factors are 16 and 16 bits, then 32 bits each time.
  const uint64_t heads = uint64_t{frame.num_layers} * frame.num_heads;
  const auto block = checked_mul(heads, group.head_bytes);
  return block ? checked_mul(*block, frame.num_blocks) : std::nullopt;
}

Expected<void> check_kv_frame(const KvFrame& frame, const KvFrameLayout& layout, uint64_t epoch) {
  if (frame.epoch != epoch) return refuse("a KV frame of another epoch");
  if (frame.flags != 0) return refuse("a KV frame with unknown flags");
  if (frame.kind != KvFrameKind::kData && frame.payload_bytes != 0) {
    return refuse("a payload that its kind of KV frame has not");
  }
  if (frame.kind != KvFrameKind::kData && frame.kind != KvFrameKind::kNak) return {};
  const auto bytes = kv_frame_piece_bytes(frame, layout);
  if (!bytes) return refuse("a KV frame of pieces that the layout has not");
  if (*bytes > layout.slot_bytes) return refuse("a KV frame of more than a slot holds");
  if (frame.kind == KvFrameKind::kData && frame.payload_bytes != *bytes) {
    return refuse("a KV frame whose payload is not as long as its pieces");
  }
  return {};
}

}  // namespace sluice
