// SPDX-License-Identifier: Apache-2.0
#include "kernels/kv_blocks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/devices.h"

namespace sluice::kernels {
namespace {

struct Plane {
  int32_t heads;
  int64_t head_bytes;  // bytes of one block
};

struct Layout {
  std::string name;
  std::vector<Plane> planes;
  int32_t num_layers;
  int32_t num_blocks;
  // The selection that travels.
  int32_t first_layer;
  int32_t taken_layers;
  int32_t first_head;
  int32_t taken_heads;  // 0: all of each plane
  std::vector<int32_t> blocks;
};

std::vector<int32_t> backwards(int32_t count) {
  std::vector<int32_t> blocks;
  for (int32_t i = count; i-- > 0;) blocks.push_back(i);
  return blocks;
}

std::vector<Layout> layouts() {
  const int64_t bf16 = kv_head_bytes(DType::kBF16, 64, 16);
  const int64_t int8 = kv_head_bytes(DType::kI8, 64, 16);
  const int64_t fp8 = kv_head_bytes(DType::kF8E4M3, 80, 8);
  const int64_t odd = kv_head_bytes(DType::kI8, 16, 1);  // no multiple of 16
  return {
      {"all of it", {{2, bf16}, {2, bf16}}, 3, 6, 0, 3, 0, 0, {4, 1, 5}},
      {"what a window sees", {{2, bf16}, {2, bf16}}, 2, 9, 0, 2, 0, 0, {8}},
      {"some layers", {{2, bf16}, {2, bf16}}, 4, 5, 1, 2, 0, 0, {0, 4}},
      {"some heads", {{4, int8}, {4, int8}}, 2, 5, 0, 2, 1, 2, {3, 2}},
      {"codes of 8 bits", {{3, fp8}, {3, fp8}}, 2, 4, 0, 2, 0, 0, {3, 0, 1}},
      {"one plane", {{1, 576 * 2 * 16}}, 2, 3, 0, 2, 0, 0, {2, 0}},
      {"planes that differ", {{1, 4096}, {3, 48}, {2, 640}}, 2, 4, 0, 2, 0, 0, {1, 3}},
      {"no multiple of 16", {{2, odd}, {2, odd}}, 2, 7, 0, 2, 0, 0, {6, 0, 3}},
      {"heads of no multiple of 16", {{4, odd}, {4, odd}}, 2, 5, 1, 1, 1, 2, {2, 1}},
      {"bytes", {{3, 7}, {1, 9}}, 2, 5, 0, 2, 0, 0, {2, 4}},
      {"more blocks than a launch has", {{1, 16}, {1, 16}}, 1, 1100, 0, 1, 0, 0, backwards(1100)},
  };
}

// The cache as kvcache/store/kv_storage.cpp lays it out, each plane of a layer padded to 64 bytes.
class Cache {
 public:
  explicit Cache(const Layout& layout) : layout_(layout), bytes_(total(layout)) {
    test::Random random(95);
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_.data()[i] = static_cast<std::byte>(random.below(128));
    }
  }

  [[nodiscard]] KvBlocksArgs args(std::span<const BlockId> blocks, std::byte* slot) const {
    KvBlocksArgs args{.planes = {},
                      .num_planes = static_cast<int32_t>(layout_.planes.size()),
                      .layer_stride = layer_bytes(layout_),
                      .num_layers = layout_.taken_layers,
                      .blocks = blocks,
                      .slot = slot};
    std::byte* at = bytes_.data() + layout_.first_layer * args.layer_stride;
    for (size_t i = 0; i < layout_.planes.size(); ++i) {
      const Plane& plane = layout_.planes[i];
      const int32_t heads = layout_.taken_heads == 0 ? plane.heads : layout_.taken_heads;
      args.planes[i] = {.data = at + layout_.first_head * plane.head_bytes,
                        .block_stride = plane.heads * plane.head_bytes,
                        .bytes = heads * plane.head_bytes};
      at += plane_bytes(layout_, plane);
    }
    return args;
  }

  [[nodiscard]] test::DeviceBytes& bytes() { return bytes_; }

 private:
  static int64_t plane_bytes(const Layout& layout, const Plane& plane) {
    return align_up(layout.num_blocks * plane.heads * plane.head_bytes, 64);
  }

  static int64_t layer_bytes(const Layout& layout) {
    int64_t bytes = 0;
    for (const Plane& plane : layout.planes) bytes += plane_bytes(layout, plane);
    return bytes;
  }

  static int64_t total(const Layout& layout) { return layer_bytes(layout) * layout.num_layers; }

  const Layout& layout_;
  test::DeviceBytes bytes_;
};

std::vector<BlockId> ids_of(const Layout& layout) {
  std::vector<BlockId> ids;
  for (const int32_t block : layout.blocks) ids.emplace_back(block);
  return ids;
}

const ExecContext kHost;  // these operators read nothing of it

TEST(CudaKvBlocks, AreGatheredInTheOrderOfTheCpu) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    Cache cache(layout);
    const std::vector<BlockId> ids = ids_of(layout);
    const int64_t bytes = kv_slot_bytes(cache.args(ids, nullptr));
    test::DeviceBytes want(bytes + 64);
    gather_kv_blocks(kHost, cache.args(ids, want.data()));
    test::on_schedules([&] {
      test::DeviceBytes got(bytes + 64);
      cuda::launch_gather_kv_blocks(nullptr, cache.args(ids, got.data()));
      test::expect_same_bytes(got.data(), want.data(), want.size());
    });
  }
}

TEST(CudaKvBlocks, AreScatteredToTheirPlacesAndNothingBetweenThem) {
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(layout.name);
    Cache want(layout);
    const std::vector<BlockId> ids = ids_of(layout);
    test::DeviceBytes slot(kv_slot_bytes(want.args(ids, nullptr)));
    test::Random random(96);
    for (size_t i = 0; i < slot.size(); ++i) {
      slot.data()[i] = static_cast<std::byte>(random.below(256));
    }
    scatter_kv_blocks(kHost, want.args(ids, slot.data()));
    test::on_schedules([&] {
      Cache got(layout);
      cuda::launch_scatter_kv_blocks(nullptr, got.args(ids, slot.data()));
      test::expect_same_bytes(got.bytes().data(), want.bytes().data(), want.bytes().size());
    });
  }
}

// Slots that other workers made need no alignment.
TEST(CudaKvBlocks, ASlotNeedsNoAlignment) {
  const Layout layout = layouts().front();
  Cache cache(layout);
  const std::vector<BlockId> ids = ids_of(layout);
  const int64_t bytes = kv_slot_bytes(cache.args(ids, nullptr));
  test::DeviceBytes want(bytes);
  gather_kv_blocks(kHost, cache.args(ids, want.data()));
  test::on_schedules([&] {
    test::DeviceBytes got(bytes + 8);
    cuda::launch_gather_kv_blocks(nullptr, cache.args(ids, got.data() + 8));
    test::expect_same_bytes(got.data() + 8, want.data(), want.size());
  });
}

}  // namespace
}  // namespace sluice::kernels
