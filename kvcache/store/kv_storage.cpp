// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/attention.h"

namespace sluice {
namespace {

// The bytes of one head's part of an entry.
int64_t head_bytes(const KvPlane& plane, int32_t num_tokens) {
  const int32_t num_rows = plane.per == KvPlane::Per::kToken ? num_tokens : 1;
  return kernels::kv_head_bytes(plane.dtype, plane.width, num_rows);
}

int32_t max_heads(const KvGroupSpec& group) {
  int32_t most = 0;
  for (const KvPlane& plane : group.planes) most = std::max(most, plane.num_heads);
  return most;
}

bool is_within(const KvRange& part, const KvRange& all) {
  return part.count > 0 && intersection(part, all) == part;
}

}  // namespace

int64_t kv_block_bytes(const KvGroupSpec& group, int32_t block_size) {
  int64_t total = 0;
  for (const KvPlane& plane : group.planes) {
    total += plane.num_heads * head_bytes(plane, tokens_per_entry(group, block_size));
  }
  return total * group.num_layers;
}

int64_t kv_copied_bytes(KvGroupSpec group, int32_t block_size) {
  std::erase_if(group.planes, [](const KvPlane& plane) { return !plane.is_copied; });
  return kv_block_bytes(group, block_size);
}

KvStorage::GroupPlace KvStorage::place(const KvGroupSpec& group, int64_t begin) const {
  GroupPlace place = {.begin = begin,
                      .block_bytes = kv_block_bytes(group, block_size_),
                      .copied_bytes = kv_copied_bytes(group, block_size_),
                      .planes = {}};
  for (const KvPlane& plane : group.planes) {
    const int64_t head = head_bytes(plane, tokens_per_entry(group, block_size_));
    const int64_t block = plane.num_heads * head;
    place.planes.push_back({.begin = place.layer_bytes,
                            .head_bytes = head,
                            .block_bytes = block,
                            .is_copied = plane.is_copied});
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
  storage.has_huge_pages_ = pages == AlignedBuffer::Pages::kHuge;
  if (storage.has_huge_pages_) pages = AlignedBuffer::Pages::kSmall;
  SLUICE_TRY(storage.buffer_, kernels::DeviceBuffer::allocate(memory, total, "KV cache", pages));
  return storage;
}

std::vector<KvPlaneView> KvStorage::planes(int32_t group, int32_t layer) const {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  const GroupPlace& place = places_[static_cast<size_t>(group)];
  CHECK_LT(layer, shape.num_layers);
  std::byte* const base = buffer_.data() + place.begin + layer * place.layer_bytes;
  std::vector<KvPlaneView> views;
  for (size_t i = 0; i < shape.planes.size(); ++i) {
    views.push_back({.data = base + place.planes[i].begin,
                     .shape = shape.planes[i],
                     .num_blocks = shape.num_blocks,
                     .block_size = tokens_per_entry(shape, block_size_)});
  }
  return views;
}

int64_t KvStorage::block_bytes(int32_t group) const {
  return places_[static_cast<size_t>(group)].copied_bytes;
}

int64_t KvStorage::block_bytes() const {
  int64_t total = 0;
  for (const GroupPlace& place : places_) total += place.copied_bytes;
  return total;
}

KvPiece KvStorage::whole(int32_t group, BlockId block) const {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  return {.group = group,
          .block = block,
          .layers = {.first = 0, .count = shape.num_layers},
          .heads = {.first = 0, .count = max_heads(shape)}};
}

bool KvStorage::has(const KvPiece& piece) const {
  if (piece.group < 0 || static_cast<size_t>(piece.group) >= groups_.size()) return false;
  const KvGroupSpec& shape = groups_[static_cast<size_t>(piece.group)];
  if (piece.block.value < 0 || piece.block.value >= shape.num_blocks) return false;
  const KvRange all_heads = {.first = 0, .count = max_heads(shape)};
  const bool has_parts = std::ranges::all_of(shape.planes, [&](const KvPlane& plane) {
    return plane.num_heads == all_heads.count;
  });
  return is_within(piece.layers, {.first = 0, .count = shape.num_layers}) &&
         (piece.heads == all_heads || (has_parts && is_within(piece.heads, all_heads)));
}

template <typename Body>
void KvStorage::for_spans(const KvPiece& piece, const Body& body) const {
  CHECK(has(piece));
  const KvGroupSpec& shape = groups_[static_cast<size_t>(piece.group)];
  const GroupPlace& place = places_[static_cast<size_t>(piece.group)];
  for (int32_t layer = piece.layers.first; layer < piece.layers.end(); ++layer) {
    for (size_t i = 0; i < place.planes.size(); ++i) {
      const PlanePlace& plane = place.planes[i];
      if (!plane.is_copied) continue;
      // A whole piece has all heads of each plane, any other piece equally many of each.
      const int32_t count = std::min(piece.heads.count, shape.planes[i].num_heads);
      const int64_t at = place.begin + layer * place.layer_bytes + plane.begin +
                         piece.block.value * plane.block_bytes +
                         piece.heads.first * plane.head_bytes;
      body(buffer_.span().subspan(static_cast<size_t>(at),
                                  static_cast<size_t>(count * plane.head_bytes)));
    }
  }
}

int64_t KvStorage::piece_bytes(const KvPiece& piece) const {
  int64_t total = 0;
  for_spans(piece, [&](std::span<const std::byte> part) {
    total += static_cast<int64_t>(part.size());
  });
  return total;
}

void KvStorage::add_spans(const KvPiece& piece,
                          std::vector<std::span<const std::byte>>& spans) const {
  for_spans(piece, [&](std::span<const std::byte> part) { spans.push_back(part); });
}

void KvStorage::add_spans(const KvPiece& piece, std::vector<std::span<std::byte>>& spans) {
  for_spans(piece, [&](std::span<std::byte> part) { spans.push_back(part); });
}

kernels::KvBlocksArgs KvStorage::blocks_args(int32_t group,
                                             std::span<const BlockId> blocks,
                                             std::byte* slot) const {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  const GroupPlace& place = places_[static_cast<size_t>(group)];
  kernels::KvBlocksArgs args{.planes = {},
                             .num_planes = 0,
                             .layer_stride = place.layer_bytes,
                             .num_layers = shape.num_layers,
                             .blocks = blocks,
                             .slot = slot};
  for (const PlanePlace& plane : place.planes) {
    if (!plane.is_copied) continue;
    CHECK_LT(args.num_planes, kernels::kMostKvPlanes);
    args.planes[args.num_planes++] = {.data = buffer_.data() + place.begin + plane.begin,
                                      .block_stride = plane.block_bytes,
                                      .bytes = plane.block_bytes};
  }
  for (const BlockId block : blocks) CHECK(block.value >= 0 && block.value < shape.num_blocks);
  return args;
}

void KvStorage::gather(const kernels::ExecContext& ctx,
                       int32_t group,
                       std::span<const BlockId> blocks,
                       std::byte* slot) const {
  kernels::gather_kv_blocks(ctx, blocks_args(group, blocks, slot));
}

void KvStorage::scatter(const kernels::ExecContext& ctx,
                        int32_t group,
                        std::span<const BlockId> blocks,
                        std::byte* slot) {
  kernels::scatter_kv_blocks(ctx, blocks_args(group, blocks, slot));
}

void KvStorage::copy_out(const KvPiece& piece, std::span<std::byte> out) const {
  CHECK_EQ(static_cast<int64_t>(out.size()), piece_bytes(piece));
  for_spans(piece, [&](std::span<const std::byte> from) {
    buffer_.memory().download(out.data(), from.data(), static_cast<int64_t>(from.size()));
    out = out.subspan(from.size());
  });
}

void KvStorage::copy_in(const KvPiece& piece, std::span<const std::byte> bytes) {
  CHECK_EQ(static_cast<int64_t>(bytes.size()), piece_bytes(piece));
  for_spans(piece, [&](std::span<std::byte> to) {
    buffer_.memory().upload(to.data(), bytes.data(), static_cast<int64_t>(to.size()));
    bytes = bytes.subspan(to.size());
  });
}

void KvStorage::copy_block(int32_t group, BlockId from, BlockId to) {
  if (groups_[static_cast<size_t>(group)].num_layers == 0) return;
  // Blocks lie in an array, so the distance follows from their ids.
  for_spans(whole(group, from), [&](std::span<std::byte> source) {
    const auto bytes = static_cast<int64_t>(source.size());
    buffer_.memory().copy(
        source.data() + (to.value - from.value) * bytes, source.data(), bytes);
  });
}

// Whole pages: the one that a piece ends in is the next one's, unless the piece is the last.
bool KvStorage::back(std::byte* first, int64_t bytes, bool is_last) const {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, newer than the headers
  const auto page = static_cast<uintptr_t>(has_huge_pages_ ? AlignedBuffer::kHugePageBytes
                                                           : sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(first);
  const uintptr_t end = at + static_cast<uintptr_t>(bytes);
  const uintptr_t from =
      std::max(at - at % page, reinterpret_cast<uintptr_t>(buffer_.span().data()));
  const uintptr_t to = is_last ? end : end - end % page;
  if (to <= from) return true;
  auto* const piece = reinterpret_cast<void*>(from);
  if (has_huge_pages_) madvise(piece, to - from, MADV_HUGEPAGE);
  if (madvise(piece, to - from, MADV_POPULATE_WRITE) != 0) return false;
  if (has_huge_pages_) madvise(piece, to - from, kCollapse);  // where small ones were in use
  return true;
}

bool KvStorage::back_ahead(int32_t group, int32_t num_filled, int64_t ahead) {
  const KvGroupSpec& shape = groups_[static_cast<size_t>(group)];
  if (shape.num_layers == 0) return false;  // they are on other stages
  GroupPlace& place = places_[static_cast<size_t>(group)];
  const int64_t wanted = num_filled + ceil_div(ahead, place.block_bytes);
  if (place.next_block >= std::min<int64_t>(wanted, shape.num_blocks)) return false;
  int64_t largest = 1;
  for (const PlanePlace& plane : place.planes) largest = std::max(largest, plane.block_bytes);
  const auto step = static_cast<int32_t>(
      std::max<int64_t>(1, AlignedBuffer::kHugePageBytes / largest));
  const auto num_planes = static_cast<int32_t>(place.planes.size());
  const PlanePlace& plane = place.planes[static_cast<size_t>(place.next_plane % num_planes)];
  const int64_t count = std::min(step, shape.num_blocks - place.next_block);
  std::byte* const first = buffer_.data() + place.begin +
                           place.next_plane / num_planes * place.layer_bytes + plane.begin +
                           place.next_block * plane.block_bytes;
  const bool is_last = place.next_block + count == shape.num_blocks;
  if (!back(first, count * plane.block_bytes, is_last)) {
    place.next_block = shape.num_blocks;  // older kernels do not know the advice
    return false;
  }
  if (++place.next_plane == num_planes * shape.num_layers) {
    place.next_plane = 0;
    place.next_block += static_cast<int32_t>(count);
  }
  return true;
}

}  // namespace sluice
