// SPDX-License-Identifier: Apache-2.0
#include "kvcache/kv_storage.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace sluice {
namespace {

// K or V of one block in one layer.
int64_t half_block_bytes(const KvStorageGroup& group, DType dtype, int32_t block_size) {
  return group.num_kv_heads * kernels::kv_head_bytes(dtype, group.head_dim, block_size);
}

int64_t half_layer_bytes(const KvStorageGroup& group, DType dtype, int32_t block_size) {
  return align_up(group.num_blocks * half_block_bytes(group, dtype, block_size), 64);
}

}  // namespace

int64_t kv_block_bytes(const KvStorageGroup& group, DType dtype, int32_t block_size) {
  return int64_t{2} * group.num_layers * half_block_bytes(group, dtype, block_size);
}

Expected<KvStorage> KvStorage::create(std::vector<KvStorageGroup> groups,
                                      DType dtype,
                                      int32_t block_size,
                                      AlignedBuffer::Pages pages,
                                      kernels::DeviceMemory& memory) {
  KvStorage storage;
  storage.dtype_ = dtype;
  storage.block_size_ = block_size;
  int64_t total = 0;
  for (const KvStorageGroup& group : groups) {
    storage.group_offsets_.push_back(total);
    total += 2 * half_layer_bytes(group, dtype, block_size) * group.num_layers;
  }
  storage.groups_ = std::move(groups);
  SLUICE_TRY(storage.buffer_, kernels::DeviceBuffer::allocate(memory, total, "KV cache", pages));
  return storage;
}

kernels::KvLayerView KvStorage::layer_view(int32_t group, int32_t layer) const {
  const KvStorageGroup& shape = groups_[static_cast<size_t>(group)];
  CHECK_LT(layer, shape.num_layers);
  const int64_t half = half_layer_bytes(shape, dtype_, block_size_);
  std::byte* base = buffer_.data() + group_offsets_[static_cast<size_t>(group)] + 2 * half * layer;
  return {.k = base,
          .v = base + half,
          .dtype = dtype_,
          .num_blocks = shape.num_blocks,
          .block_size = block_size_,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim};
}

int64_t KvStorage::block_bytes() const {
  int64_t total = 0;
  for (const KvStorageGroup& group : groups_) total += kv_block_bytes(group, dtype_, block_size_);
  return total;
}

// Halves of a group: K of its first layer, V of it, K of the second, ...
std::span<std::byte> KvStorage::half_block(size_t group, int32_t half, BlockId block) const {
  const int64_t bytes = half_block_bytes(groups_[group], dtype_, block_size_);
  const int64_t at = group_offsets_[group] +
                     half * half_layer_bytes(groups_[group], dtype_, block_size_) +
                     block.value * bytes;
  return buffer_.span().subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
}

void KvStorage::copy_out(std::span<const BlockId> blocks, std::span<std::byte> out) const {
  CHECK_EQ(blocks.size(), groups_.size());
  CHECK_EQ(static_cast<int64_t>(out.size()), block_bytes());
  kernels::DeviceMemory& memory = buffer_.memory();
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (int32_t half = 0; half < 2 * groups_[group].num_layers; ++half) {
      const std::span<const std::byte> from = half_block(group, half, blocks[group]);
      memory.download(out.data(), from.data(), static_cast<int64_t>(from.size()));
      out = out.subspan(from.size());
    }
  }
  memory.wait();
}

void KvStorage::copy_in(std::span<const BlockId> blocks, std::span<const std::byte> bytes) {
  CHECK_EQ(blocks.size(), groups_.size());
  CHECK_EQ(static_cast<int64_t>(bytes.size()), block_bytes());
  kernels::DeviceMemory& memory = buffer_.memory();
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (int32_t half = 0; half < 2 * groups_[group].num_layers; ++half) {
      const std::span<std::byte> to = half_block(group, half, blocks[group]);
      memory.upload(to.data(), bytes.data(), static_cast<int64_t>(to.size()));
      bytes = bytes.subspan(to.size());
    }
  }
  memory.wait();
}

void KvStorage::copy_block(int32_t group, BlockId from, BlockId to) {
  const auto g = static_cast<size_t>(group);
  for (int32_t half = 0; half < 2 * groups_[g].num_layers; ++half) {
    const std::span<const std::byte> source = half_block(g, half, from);
    std::byte* const target = half_block(g, half, to).data();
    buffer_.memory().copy(target, source.data(), static_cast<int64_t>(source.size()));
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
