// SPDX-License-Identifier: Apache-2.0
// The bytes of the KV cache: one allocation, carved into the planes of each layer (kv_group.h).
// Block ids are the manager's. Layer by layer, plane by plane [block][head], so of attention K,
// then V; a head's part of a block is its codes or floats and, where the dtype has them, the
// block's scales behind them, each plane of a layer padded to 64 bytes. Inside a head:
// kernels/attention.h, KvLayerView.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/attention.h"
#include "kernels/device_memory.h"
#include "kernels/kv_blocks.h"
#include "kvcache/kv_group.h"
#include "kvcache/kv_piece.h"

namespace sluice {

// Bytes of one block in one group, all its layers and planes, scales included.
int64_t kv_block_bytes(const KvGroupSpec& group, int32_t block_size);

// Copies between blocks, and out and in, are in the order of the operators of whose device the
// memory is. Of a device's memory each span is a copy of its own, and wait() is for all of the
// device's queue: who copies many blocks does so by gather() and scatter().
class KvStorage {
 public:
  // In `memory`, which must outlive it; `pages`: of the host. Layers of a group share block ids, so
  // each has room for all of the group's blocks.
  static Expected<KvStorage> create(std::vector<KvGroupSpec> groups,
                                    int32_t block_size,
                                    AlignedBuffer::Pages pages = AlignedBuffer::Pages::kSmall,
                                    kernels::DeviceMemory& memory = kernels::host_memory());
  KvStorage(KvStorage&&) noexcept = default;
  KvStorage& operator=(KvStorage&&) noexcept = default;

  [[nodiscard]] std::span<const KvGroupSpec> groups() const { return groups_; }

  // Layer `layer` of the group, counted inside it. The group's planes are K and V, of one shape.
  [[nodiscard]] kernels::KvLayerView layer_view(int32_t group, int32_t layer) const;

  // Not for the host to read where the memory is a device's.
  [[nodiscard]] std::span<std::byte> bytes() const { return buffer_.span(); }

  // One block of a group, or of all groups: all layers and planes.
  [[nodiscard]] int64_t block_bytes(int32_t group) const;
  [[nodiscard]] int64_t block_bytes() const;
  // A block in all layers and heads.
  [[nodiscard]] KvPiece whole(int32_t group, BlockId block) const;
  // Whether there is such a piece: of a group with planes of different heads only a whole one.
  [[nodiscard]] bool has(const KvPiece& piece) const;

  // All below: of pieces that there are.
  [[nodiscard]] int64_t piece_bytes(const KvPiece& piece) const;
  // Appends where the bytes of a piece lie, in their order (kv_piece.h): a span for each layer and
  // plane. Of a device's memory not for the host to read. What they hold changes unless the block
  // is kept (KvCacheManager::pin()) or the caller's own.
  void add_spans(const KvPiece& piece, std::vector<std::span<const std::byte>>& spans) const;
  // The same, to write: by the order of copy_in().
  void add_spans(const KvPiece& piece, std::vector<std::span<std::byte>>& spans);
  // Whole blocks of a group, one after the other, to `slot` and back (kernels/kv_blocks.h), by an
  // operator of the context: both are in the order of its stream, and a slot in the same memory.
  void gather(const kernels::ExecContext& ctx,
              int32_t group,
              std::span<const BlockId> blocks,
              std::byte* slot) const;
  void scatter(const kernels::ExecContext& ctx,
               int32_t group,
               std::span<const BlockId> blocks,
               std::byte* slot);
  // The bytes of a piece, piece_bytes() of them. What is copied in was checked, and the block is
  // reserved or inserted for it (KvCacheManager). Behind wait() what was copied out is there, and
  // what was copied in may change; of the host's memory behind each call.
  void copy_out(const KvPiece& piece, std::span<std::byte> out) const;
  void copy_in(const KvPiece& piece, std::span<const std::byte> bytes);
  void wait() const { buffer_.memory().wait(); }

  [[nodiscard]] kernels::DeviceMemory& memory() const { return buffer_.memory(); }

  // All layers of one block of a group.
  void copy_block(int32_t group, BlockId from, BlockId to);

 private:
  KvStorage() = default;

  // Where a plane's array lies inside a layer, and the parts of it; bytes.
  struct PlanePlace {
    int64_t begin = 0;
    int64_t head_bytes = 0;   // of one block
    int64_t block_bytes = 0;  // all heads
  };

  struct GroupPlace {
    int64_t begin = 0;
    int64_t layer_bytes = 0;  // all planes of one layer, all blocks
    int64_t block_bytes = 0;  // of one block, all layers
    std::vector<PlanePlace> planes;
  };

  [[nodiscard]] GroupPlace place(const KvGroupSpec& group, int64_t begin) const;
  [[nodiscard]] kernels::KvBlocksArgs blocks_args(int32_t group,
                                                  std::span<const BlockId> blocks,
                                                  std::byte* slot) const;
  // body(bytes) for each layer and plane of a piece, in the order of its bytes.
  template <typename Body>
  void for_spans(const KvPiece& piece, const Body& body) const;

  std::vector<KvGroupSpec> groups_;
  std::vector<GroupPlace> places_;  // by group
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
  void back(std::span<std::byte> bytes, bool huge);

  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;  // guarded by mutex_
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace sluice
