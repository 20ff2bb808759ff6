// SPDX-License-Identifier: Apache-2.0
// The header of a KV frame: whatever the 96 bytes are, they are refused, or encode to themselves
// again; and what is taken by a layout fits into its slots. The input is the frame, then the
// layout. Few inputs have a right sum by themselves, so each is tried with the right one too.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/kv_checksum.h"
#include "kvcache/transport/kv_frame.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/target.h"

using namespace sluice;

namespace {

using Bytes = std::array<std::byte, kKvFrameBytes>;

void try_frame(const Bytes& bytes, const KvFrameLayout& layout) {
  const auto frame = decode_kv_frame(bytes);
  if (!frame) return;
  Bytes again{};
  encode_kv_frame(*frame, again);
  CHECK(again == bytes);
  if (!check_kv_frame(*frame, layout, frame->epoch)) return;
  CHECK(!check_kv_frame(*frame, layout, frame->epoch + 1));
  CHECK_LE(frame->payload_bytes, layout.slot_bytes);
  if (frame->kind == KvFrameKind::kData) {
    CHECK(kv_frame_piece_bytes(*frame, layout) == frame->payload_bytes);
    CHECK(frame->payload_bytes > 0);
    const KvFrameLayout::Group& group = layout.groups.at(frame->group);
    CHECK_LE(frame->first_layer + frame->num_layers, group.num_layers);
    CHECK_LE(frame->first_head + frame->num_heads, group.num_heads);
  } else {
    CHECK_EQ(frame->payload_bytes, 0u);
  }
}

}  // namespace

static int kv_frame_input(const uint8_t* data, size_t size) {
  fuzz::Input input({data, size});
  auto bytes = input.take<Bytes>();
  KvFrameLayout layout{.groups = {}, .slot_bytes = input.take<uint32_t>()};
  for (int i = input.take<uint8_t>() % 4; i >= 0; --i) {
    layout.groups.push_back({.num_layers = input.take<uint16_t>(),
                             .num_heads = input.take<uint16_t>(),
                             .head_bytes = input.take<uint32_t>()});
  }
  if (!is_kv_layout(layout)) return 0;
  try_frame(bytes, layout);
  const uint64_t sum = kernels::kv_checksum(std::span(bytes).first<88>());
  std::memcpy(bytes.data() + 88, &sum, sizeof(sum));
  try_frame(bytes, layout);
  return 0;
}

const sluice::fuzz::Target kv_frame_target("kv_frame_fuzz", kv_frame_input);
