// SPDX-License-Identifier: Apache-2.0
#include "kvcache/transport/kv_frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kv_checksum.h"

namespace sluice {
namespace {

using Bytes = std::array<std::byte, kKvFrameBytes>;

constexpr uint64_t kEpoch = 0xe0e1e2e3e4e5e6e7;

KvFrameLayout layout() {
  return {.groups = {{.num_layers = 4, .num_heads = 2, .head_bytes = 100},
                     {.num_layers = 1, .num_heads = 1, .head_bytes = 1000}},
          .slot_bytes = 2400};
}

// All fields differ, and so do their bytes.
KvFrame data_frame() {
  KvFrame frame;
  frame.kind = KvFrameKind::kData;
  for (size_t i = 0; i < frame.ref.transfer.size(); ++i) {
    frame.ref.transfer[i] = static_cast<uint8_t>(0x10 + i);
  }
  frame.ref.attempt = 0x20212223;
  frame.slot = 0x24252627;
  frame.slot_generation = 0x28292a2b;
  frame.group = 0;
  frame.first_layer = 1;
  frame.num_layers = 3;
  frame.first_head = 0;
  frame.num_heads = 2;
  frame.first_block = 0x30313233;
  frame.num_blocks = 4;
  frame.payload_bytes = 2400;
  frame.payload_sum = 0x4041424344454647;
  frame.sequence = 0x5051525354555657;
  frame.epoch = kEpoch;
  return frame;
}

Bytes encoded(const KvFrame& frame) {
  Bytes bytes{};
  encode_kv_frame(frame, bytes);
  return bytes;
}

// With another value at some place, and the sum that belongs to it.
template <typename T>
Bytes altered(const Bytes& bytes, size_t at, T value) {
  Bytes out = bytes;
  std::memcpy(out.data() + at, &value, sizeof(value));
  const uint64_t sum = kernels::kv_checksum(std::span<const std::byte>(out).first(88));
  std::memcpy(out.data() + 88, &sum, sizeof(sum));
  return out;
}

TEST(KvFrame, ComesBackWithEveryField) {
  const KvFrame frame = data_frame();
  const auto back = decode_kv_frame(encoded(frame));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, frame);
  EXPECT_TRUE(check_kv_frame(*back, layout(), kEpoch).has_value());
}

TEST(KvFrame, FieldsLieWhereTheHeaderSays) {
  KvFrame frame = data_frame();
  frame.kind = KvFrameKind::kNak;
  frame.group = 0x6061;
  frame.flags = 0x6263;
  frame.first_layer = 0x6465;
  frame.num_layers = 0x6667;
  frame.first_head = 0x6869;
  frame.num_heads = 0x6a6b;
  frame.num_blocks = 0x6c6d6e6f;
  frame.payload_bytes = 0x7071727374757677;
  const Bytes bytes = encoded(frame);
  const auto at = [&](size_t offset, size_t size) {
    uint64_t value = 0;
    for (size_t i = size; i-- > 0;)
      value = value << 8 | std::to_integer<uint64_t>(bytes[offset + i]);
    return value;
  };
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), 4), "SLKF");
  EXPECT_EQ(at(4, 2), 1u);
  EXPECT_EQ(at(6, 2), 3u);
  EXPECT_EQ(bytes[8], std::byte{0x10});
  EXPECT_EQ(bytes[23], std::byte{0x1f});
  EXPECT_EQ(at(24, 4), frame.ref.attempt);
  EXPECT_EQ(at(28, 4), frame.slot);
  EXPECT_EQ(at(32, 4), frame.slot_generation);
  EXPECT_EQ(at(36, 2), frame.group);
  EXPECT_EQ(at(38, 2), frame.flags);
  EXPECT_EQ(at(40, 2), frame.first_layer);
  EXPECT_EQ(at(42, 2), frame.num_layers);
  EXPECT_EQ(at(44, 2), frame.first_head);
  EXPECT_EQ(at(46, 2), frame.num_heads);
  EXPECT_EQ(at(48, 4), frame.first_block);
  EXPECT_EQ(at(52, 4), frame.num_blocks);
  EXPECT_EQ(at(56, 8), frame.payload_bytes);
  EXPECT_EQ(at(64, 8), frame.payload_sum);
  EXPECT_EQ(at(72, 8), frame.sequence);
  EXPECT_EQ(at(80, 8), frame.epoch);
  EXPECT_EQ(at(88, 8), kernels::kv_checksum(std::span(bytes).first<88>()));
}

TEST(KvFrame, EveryFlippedBitIsSeen) {
  const Bytes bytes = encoded(data_frame());
  for (size_t bit = 0; bit < 8 * kKvFrameBytes; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(decode_kv_frame(flipped).has_value()) << bit;
  }
}

TEST(KvFrame, OtherVersionsAndKindsAreRefusedByName) {
  const Bytes bytes = encoded(data_frame());
  const auto version = decode_kv_frame(altered(bytes, 4, uint16_t{2}));
  ASSERT_FALSE(version.has_value());
  EXPECT_NE(version.error().message.find("version 2, here 1"), std::string::npos);
  EXPECT_FALSE(decode_kv_frame(altered(bytes, 6, uint16_t{0})).has_value());
  EXPECT_FALSE(decode_kv_frame(altered(bytes, 6, uint16_t{8})).has_value());
  EXPECT_FALSE(decode_kv_frame(altered(bytes, 0, uint32_t{0})).has_value());
}

TEST(KvFrame, WhatTheLayoutHasNotIsRefused) {
  using Change = std::function<void(KvFrame&)>;
  const std::vector<Change> changes = {
      [](KvFrame& f) { f.group = 2; },
      [](KvFrame& f) { f.group = UINT16_MAX; },
      [](KvFrame& f) { f.first_layer = 2; },           // ends behind the last
      [](KvFrame& f) { f.first_layer = UINT16_MAX; },  // first + count wraps
      [](KvFrame& f) { f.num_layers = 0; },
      [](KvFrame& f) { f.first_head = 1; },
      [](KvFrame& f) { f.num_heads = 0; },
      [](KvFrame& f) { f.num_blocks = 0; },
      [](KvFrame& f) {
        f.num_blocks = 5;
        f.payload_bytes = 3000;
      },  // more than a slot
      [](KvFrame& f) { f.num_blocks = UINT32_MAX; },
      [](KvFrame& f) { f.first_block = UINT32_MAX; },
      [](KvFrame& f) { f.payload_bytes = 2399; },
      [](KvFrame& f) { f.payload_bytes = 0; },
      [](KvFrame& f) { f.payload_bytes = UINT64_MAX; },
      [](KvFrame& f) { f.flags = 1; },
      [](KvFrame& f) { f.epoch ^= 1; },
      [](KvFrame& f) { f.kind = KvFrameKind::kHello; },  // with a payload
      [](KvFrame& f) { f.kind = KvFrameKind::kEnd; },
      [](KvFrame& f) { f.kind = KvFrameKind::kReady; },
      [](KvFrame& f) { f.kind = KvFrameKind::kRead; },
      [](KvFrame& f) { f.kind = KvFrameKind::kKept; },
      [](KvFrame& f) { f.kind = KvFrameKind::kNak; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    KvFrame frame = data_frame();
    changes[i](frame);
    EXPECT_FALSE(check_kv_frame(frame, layout(), kEpoch).has_value()) << i;
  }
  // A NAK names pieces and has no payload.
  KvFrame nak = data_frame();
  nak.kind = KvFrameKind::kNak;
  nak.payload_bytes = 0;
  EXPECT_TRUE(check_kv_frame(nak, layout(), kEpoch).has_value());
  nak.num_blocks = 5;
  EXPECT_FALSE(check_kv_frame(nak, layout(), kEpoch).has_value());
}

TEST(KvFrame, SizesOfALayoutThatNobodyHasDoNotWrap) {
  const KvFrameLayout huge = {
      .groups = {{.num_layers = UINT16_MAX, .num_heads = UINT16_MAX, .head_bytes = UINT32_MAX}},
      .slot_bytes = kKvMostSlotBytes};
  KvFrame frame = data_frame();
  frame.num_layers = UINT16_MAX - 1;
  frame.num_heads = UINT16_MAX;
  frame.first_block = 0;
  frame.num_blocks = UINT32_MAX;
  EXPECT_FALSE(kv_frame_piece_bytes(frame, huge).has_value());
  EXPECT_FALSE(check_kv_frame(frame, huge, kEpoch).has_value());
}

TEST(KvFrame, LayoutsOfNothingAreNoLayouts) {
  EXPECT_TRUE(is_kv_layout(layout()));
  for (int which = 0; which < 6; ++which) {
    KvFrameLayout bad = layout();
    if (which == 0) bad.groups.clear();
    if (which == 1) bad.slot_bytes = 0;
    if (which == 2) bad.slot_bytes = kKvMostSlotBytes + 1;
    if (which == 3) bad.groups[1].num_layers = 0;
    if (which == 4) bad.groups[1].num_heads = 0;
    if (which == 5) bad.groups[1].head_bytes = 0;
    EXPECT_FALSE(is_kv_layout(bad)) << which;
  }
}

}  // namespace
}  // namespace sluice
