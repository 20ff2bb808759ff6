// SPDX-License-Identifier: Apache-2.0
// The bytes of the KV cache: one allocation, carved into the planes of each layer (kv_group.h).
// Block ids come from the manager. The order is layer by layer, plane by plane [block][head]; the
// planes of attention are K, then V. A head's part of a block is its codes or floats and, where the
// dtype has them, then the block's scales; each plane of a layer is padded to 64 bytes. For
// the bytes inside a head see kernels/attention.h, KvLayerView.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device_memory.h"
#include "kernels/kv_blocks.h"
#include "kvcache/kv_group.h"
#include "kvcache/kv_piece.h"
#include "kvcache/store/kv_plane_view.h"

namespace sluice {

// The bytes of one block in one group, all its layers and planes, scales included.
int64_t kv_block_bytes(const KvGroupSpec& group, int32_t block_size);

// Those of its copied planes.
int64_t kv_copied_bytes(KvGroupSpec group, int32_t block_size);

// Copies between blocks, and out and in, run in order with the operators of the device that owns
// the memory. In device memory each span is a copy of its own, and wait() waits for the whole queue
// of the device; gather() and scatter() are the way to copy many blocks.
class KvStorage {
 public:
  // Allocates in `memory`, which must outlive it; `pages` applies to host memory, of which first
  // uses take small pages: huge ones come from back_ahead(). Layers of a group share block ids, so
  // each has room for all of the group's blocks.
  static Expected<KvStorage> create(std::vector<KvGroupSpec> groups,
                                    int32_t block_size,
                                    AlignedBuffer::Pages pages = AlignedBuffer::Pages::kSmall,
                                    kernels::DeviceMemory& memory = kernels::host_memory());
  KvStorage(KvStorage&&) noexcept = default;
  KvStorage& operator=(KvStorage&&) noexcept = default;

  [[nodiscard]] std::span<const KvGroupSpec> groups() const { return groups_; }

  // The planes of layer `layer`, counted inside the group, in the group's order.
  [[nodiscard]] std::vector<KvPlaneView> planes(int32_t group, int32_t layer) const;

  // Lets the system give the next piece of memory, about one huge page of one plane, ahead of its
  // first use, if fewer than `ahead` bytes of the group after `num_filled` blocks are backed. Host
  // memory only; contents stay. False: there is enough, or the system does not know how.
  bool back_ahead(int32_t group, int32_t num_filled, int64_t ahead);

  // The whole allocation; the host must not read it where the memory is a device's.
  [[nodiscard]] std::span<std::byte> bytes() const { return buffer_.span(); }

  // The bytes of one block of a group, or of all groups: all layers and copied planes.
  [[nodiscard]] int64_t block_bytes(int32_t group) const;
  [[nodiscard]] int64_t block_bytes() const;
  // The piece that is a block in all layers and heads.
  [[nodiscard]] KvPiece whole(int32_t group, BlockId block) const;
  // Whether the piece exists: a group whose planes differ in heads has whole pieces only.
  [[nodiscard]] bool has(const KvPiece& piece) const;

  // All calls below require pieces that has() accepts.
  [[nodiscard]] int64_t piece_bytes(const KvPiece& piece) const;
  // Appends where the bytes of a piece lie, in their order (kv_piece.h): a span for each layer and
  // copied plane. The host must not read spans of device memory. Their contents change unless the
  // block is kept (KvCacheManager::pin()) or the caller's own.
  void add_spans(const KvPiece& piece, std::vector<std::span<const std::byte>>& spans) const;
  // Appends writable spans of a piece, in the same order.
  void add_spans(const KvPiece& piece, std::vector<std::span<std::byte>>& spans);
  // Copies whole blocks of a group, one after the other, to `slot` and back (kernels/kv_blocks.h)
  // on the context's stream. The slot lies in the same memory as the cache.
  void gather(const kernels::ExecContext& ctx,
              int32_t group,
              std::span<const BlockId> blocks,
              std::byte* slot) const;
  void scatter(const kernels::ExecContext& ctx,
               int32_t group,
               std::span<const BlockId> blocks,
               std::byte* slot);
  // Copies the bytes of a piece, piece_bytes() of them. Bytes to copy in must have been checked,
  // and the block be reserved or inserted for them (KvCacheManager). After wait() bytes copied out
  // are there and the source of copy_in() may change; in host memory already when the call returns.
  void copy_out(const KvPiece& piece, std::span<std::byte> out) const;
  void copy_in(const KvPiece& piece, std::span<const std::byte> bytes);
  void wait() const { buffer_.memory().wait(); }

  [[nodiscard]] kernels::DeviceMemory& memory() const { return buffer_.memory(); }

  // Copies all layers of one block of a group.
  void copy_block(int32_t group, BlockId from, BlockId to);

 private:
  KvStorage() = default;

  // The place of a plane's array inside a layer, and the sizes of its parts; bytes.
  struct PlanePlace {
    int64_t begin = 0;
    int64_t head_bytes = 0;   // one head of one block
    int64_t block_bytes = 0;  // one block, all heads
    bool is_copied = true;
  };

  struct GroupPlace {
    int64_t begin = 0;
    int64_t layer_bytes = 0;  // all planes of one layer, all blocks
    int64_t block_bytes = 0;   // one block, all layers
    int64_t copied_bytes = 0;  // those of copied planes
    std::vector<PlanePlace> planes;
    int32_t next_block = 0;  // for back_ahead()
    int32_t next_plane = 0;  // of all layers; the planes before it have a piece more
  };

  bool back(std::byte* first, int64_t bytes, bool is_last) const;
  [[nodiscard]] GroupPlace place(const KvGroupSpec& group, int64_t begin) const;
  [[nodiscard]] kernels::KvBlocksArgs blocks_args(int32_t group,
                                                  std::span<const BlockId> blocks,
                                                  std::byte* slot) const;
  // Calls body(bytes) for each layer and plane of a piece, in the order of its bytes.
  template <typename Body>
  void for_spans(const KvPiece& piece, const Body& body) const;

  std::vector<KvGroupSpec> groups_;
  std::vector<GroupPlace> places_;  // by group
  int32_t block_size_ = 0;
  bool has_huge_pages_ = false;
  kernels::DeviceBuffer buffer_;
};

}  // namespace sluice
