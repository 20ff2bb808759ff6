// SPDX-License-Identifier: Apache-2.0
#include "engine/handoff/host_mover.h"

#include <utility>

#include "engine/core/aligned_buffer.h"

namespace sluice {
namespace {

// The transport reads blocks in place; what has arrived is copied in at once.
class HostMover final : public KvMover {
 public:
  HostMover(const Options& options,
            const KvRanks& cache,
            std::unique_ptr<KvTransports> transports,
            AlignedBuffer landing)
      : KvMover(options, std::move(transports)), cache_(cache), landing_(std::move(landing)) {}

  ~HostMover() override { transports_.reset(); }

  bool send(KvSession session, const KvFrame& frame, std::span<const BlockId> blocks) override {
    KvPayload payload;
    for (const BlockId block : blocks) {
      cache_.add_spans(frame.group, block, payload);
    }
    return transports_->send(session, frame, std::move(payload));
  }

  bool post(KvSession session,
            const KvTransferRef& ref,
            uint32_t slot,
            uint32_t generation) override {
    return transports_->post(session, {ref, slot, generation, memory_of(slot)});
  }

  void copy_in(uint32_t slot, int64_t at, int32_t group, std::span<const BlockId> blocks) override {
    std::span<const std::byte> bytes = memory_of(slot).subspan(static_cast<size_t>(at));
    const auto block_bytes = static_cast<size_t>(cache_.block_bytes(group));
    for (const BlockId block : blocks) {
      cache_.copy_in(group, block, bytes.first(block_bytes));
      bytes = bytes.subspan(block_bytes);
    }
  }

 private:
  [[nodiscard]] std::span<std::byte> memory_of(uint32_t slot) const {
    const auto bytes = static_cast<size_t>(slots_.slot_bytes);
    return landing_.span().subspan(slot * bytes, bytes);
  }

  const KvRanks cache_;
  AlignedBuffer landing_;
};

}  // namespace

Expected<std::unique_ptr<KvMover>> make_host_mover(const KvMover::Options& options,
                                                   const KvRanks& cache,
                                                   std::unique_ptr<KvTransports> transports) {
  AlignedBuffer landing;
  if (options.slots.num_landing > 0) {
    SLUICE_TRY(
        landing,
        AlignedBuffer::allocate(
            options.slots.host_bytes(), "landing slots", AlignedBuffer::Pages::kSmall));
  }
  return std::make_unique<HostMover>(options, cache, std::move(transports), std::move(landing));
}

}  // namespace sluice
