// SPDX-License-Identifier: Apache-2.0
// The bytes of the KV cache: one allocation, carved into K and V arrays per layer. Block ids are
// the manager's. Layer by layer K [block][head], then V [block][head]; a head's part of a block is
// its codes or floats and, where the dtype has them, the block's scales behind them, each layer's K
// and V padded to 64 bytes. Inside a head: kernels/attention.h, KvLayerView.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/attention.h"
#include "kernels/device_memory.h"

namespace sluice {

// Layers of one KV group share block ids, so each has room for the group's blocks.
struct KvStorageGroup {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t num_blocks = 0;
};

// Bytes of one block in one group, all its layers, K and V, scales included.
int64_t kv_block_bytes(const KvStorageGroup& group, DType dtype, int32_t block_size);

// Copies between blocks, and out and in, are in the order of the operators of whose device the
// memory is; those out are there when the call returns, as those in may be changed then.
class KvStorage {
 public:
  // In `memory`, which must outlive it; `pages`: of the host.
  static Expected<KvStorage> create(std::vector<KvStorageGroup> groups,
                                    DType dtype,
                                    int32_t block_size,
                                    AlignedBuffer::Pages pages = AlignedBuffer::Pages::kSmall,
                                    kernels::DeviceMemory& memory = kernels::host_memory());
  KvStorage(KvStorage&&) noexcept = default;
  KvStorage& operator=(KvStorage&&) noexcept = default;

  // Layer `layer` of the group, counted inside it.
  [[nodiscard]] kernels::KvLayerView layer_view(int32_t group, int32_t layer) const;

  // Not for the host to read where the memory is a device's.
  [[nodiscard]] std::span<std::byte> bytes() const { return buffer_.span(); }

  // The bytes of one block in all groups, block_bytes() of them: blocks[i] is group i's.
  [[nodiscard]] int64_t block_bytes() const;
  void copy_out(std::span<const BlockId> blocks, std::span<std::byte> out) const;
  void copy_in(std::span<const BlockId> blocks, std::span<const std::byte> bytes);

  // All layers of one block of a group.
  void copy_block(int32_t group, BlockId from, BlockId to);

 private:
  KvStorage() = default;

  // K or V of a block in one layer.
  [[nodiscard]] std::span<std::byte> half_block(size_t group, int32_t half, BlockId block) const;

  std::vector<KvStorageGroup> groups_;
  std::vector<int64_t> group_offsets_;  // bytes
  DType dtype_ = DType::kBF16;
  int32_t block_size_ = 0;
  kernels::DeviceBuffer buffer_;
};

// Has the system back planned memory with pages from a thread of its own, so that memory use stays
// where the plan put it and the first requests do not wait for page faults. Contents are untouched.
// `huge`: with huge pages where there are some.
class Prefault {
 public:
  Prefault(std::span<std::byte> bytes, bool huge);
  ~Prefault();  // stops early
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Any thread. Returns when it has ended.
  void wait() const { done_.wait(false); }

 private:
  void back(std::span<std::byte> bytes, bool huge) const;

  std::atomic<bool> stop_ = false;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace sluice
