// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_storage.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace sluice {
namespace {

// One head's part of an entry.
int64_t head_bytes(const KvPlane& plane, int32_t num_tokens) {
  const int32_t num_rows = plane.per == KvPlane::Per::kToken ? num_tokens : 1;
  return kernels::kv_head_bytes(plane.dtype, plane.width, num_rows);
}

}  // namespace

int64_t kv_block_bytes(const KvGroupSpec& group, int32_t block_size) {
  int64_t total = 0;
  for (const KvPlane& plane : group.planes) {
    total += plane.num_heads * head_bytes(plane, tokens_per_entry(group, block_size));
  }
  return total * group.num_layers;
}

KvStorage::GroupPlace KvStorage::place(const KvGroupSpec& group, int64_t begin) const {
  GroupPlace place = {
      .begin = begin, .block_bytes = kv_block_bytes(group, block_size_), .planes = {}};
  for (const KvPlane& plane : group.planes) {
    const int64_t head = head_bytes(plane, tokens_per_entry(group, block_size_));
    const int64_t block = plane.num_heads * head;
    place.planes.push_back(
        {.begin = place.layer_bytes, .head_bytes = head, .block_bytes = block});
    place.layer_bytes += align_up(group.num_blocks * block, 64);
  }
  return place;
}

Expected<KvStorage> KvStorage::create(std::vector<KvGroupSpec> groups,
                                      int32_t block_size,
                                      AlignedBuffer::Pages pages,
                                      kernels::DeviceMemory& memory) {
  KvStorage storage;
  storage.block_size_ = block_size;
  int64_t total = 0;
  for (const KvGroupSpec& group : groups) {
    storage.places_.push_back(storage.place(group, total));
    total += storage.places_.back().layer_bytes * group.num_layers;
  }
  storage.groups_ = std::move(groups);
  SLUICE_TRY(storage.buffer_, kernels::DeviceBuffer::allocate(memory, total, "KV cache", pages));
  return storage;
}

kernels::KvLayerView KvStorage::layer_view(int32_t group, int32_t layer) const {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  const GroupPlace& place = places_[static_cast<size_t>(group)];
  CHECK_LT(layer, shape.num_layers);
  CHECK(shape.planes.size() == 2 && shape.planes[0] == shape.planes[1]);
  std::byte* const base = buffer_.data() + place.begin + layer * place.layer_bytes;
  return {.k = base + place.planes[0].begin,
          .v = base + place.planes[1].begin,
          .dtype = shape.planes[0].dtype,
          .num_blocks = shape.num_blocks,
          .block_size = tokens_per_entry(shape, block_size_),
          .num_kv_heads = shape.planes[0].num_heads,
          .head_dim = shape.planes[0].width};
}

int64_t KvStorage::block_bytes() const {
  int64_t total = 0;
  for (const GroupPlace& place : places_) total += place.block_bytes;
  return total;
}

std::span<std::byte> KvStorage::plane_block(const GroupPlace& group,
                                            const PlanePlace& plane,
                                            int32_t layer,
                                            BlockId block) const {
  const int64_t at = group.begin + layer * group.layer_bytes + plane.begin +
                     block.value * plane.block_bytes;
  return buffer_.span().subspan(static_cast<size_t>(at), static_cast<size_t>(plane.block_bytes));
}

template <typename Body>
void KvStorage::for_planes(size_t group, BlockId block, const Body& body) const {
  const GroupPlace& place = places_[group];
  for (int32_t layer = 0; layer < groups_[group].num_layers; ++layer) {
    for (const PlanePlace& plane : place.planes) body(plane_block(place, plane, layer, block));
  }
}

void KvStorage::copy_out(std::span<const BlockId> blocks, std::span<std::byte> out) const {
  CHECK_EQ(blocks.size(), groups_.size());
  CHECK_EQ(static_cast<int64_t>(out.size()), block_bytes());
  kernels::DeviceMemory& memory = buffer_.memory();
  for (size_t group = 0; group < groups_.size(); ++group) {
    for_planes(group, blocks[group], [&](std::span<const std::byte> from) {
      memory.download(out.data(), from.data(), static_cast<int64_t>(from.size()));
      out = out.subspan(from.size());
    });
  }
  memory.wait();
}

void KvStorage::copy_in(std::span<const BlockId> blocks, std::span<const std::byte> bytes) {
  CHECK_EQ(blocks.size(), groups_.size());
  CHECK_EQ(static_cast<int64_t>(bytes.size()), block_bytes());
  kernels::DeviceMemory& memory = buffer_.memory();
  for (size_t group = 0; group < groups_.size(); ++group) {
    for_planes(group, blocks[group], [&](std::span<std::byte> to) {
      memory.upload(to.data(), bytes.data(), static_cast<int64_t>(to.size()));
      bytes = bytes.subspan(to.size());
    });
  }
  memory.wait();
}

void KvStorage::copy_block(int32_t group, BlockId from, BlockId to) {
  const auto g = static_cast<size_t>(group);
  const GroupPlace& place = places_[g];
  for (int32_t layer = 0; layer < groups_[g].num_layers; ++layer) {
    for (const PlanePlace& plane : place.planes) {
      const std::span<const std::byte> source = plane_block(place, plane, layer, from);
      std::byte* const target = plane_block(place, plane, layer, to).data();
      buffer_.memory().copy(target, source.data(), static_cast<int64_t>(source.size()));
    }
  }
}

// The first tokens write a few lines of each layer while this runs: they find small pages, which
// cost the system little to clear, and get huge ones here, with their contents.
Prefault::Prefault(std::span<std::byte> bytes, bool huge) {
  thread_ = std::thread([this, bytes, huge] {
    setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
    back(bytes, huge);
    done_ = true;
    done_.notify_all();
  });
}

void Prefault::back(std::span<std::byte> bytes, bool huge) const {
  constexpr size_t kPiece = size_t{8} << 20;  // whole huge pages
  constexpr int kCollapse = 25;               // MADV_COLLAPSE, newer than the headers
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t end = begin + bytes.size();
  for (uintptr_t at = begin; at < end && !stop_;) {
    const uintptr_t next = std::min(end, (at / kPiece + 1) * kPiece);
    auto* const piece = reinterpret_cast<void*>(at);
    if (huge) madvise(piece, next - at, MADV_HUGEPAGE);
    // Older kernels do not know the advice: pages then come on first use.
    if (madvise(piece, next - at, MADV_POPULATE_WRITE) != 0) return;
    if (huge) madvise(piece, next - at, kCollapse);
    at = next;
  }
}

Prefault::~Prefault() {
  stop_ = true;
  thread_.join();
}

}  // namespace sluice
