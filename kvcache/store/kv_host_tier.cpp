// SPDX-License-Identifier: Apache-2.0
#include "kvcache/store/kv_host_tier.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/core/hex.h"
#include "engine/core/log.h"

namespace sluice {
namespace {

class HostMemory final : public KvPlace {
 public:
  HostMemory(AlignedBuffer memory, size_t block_bytes)
      : memory_(std::move(memory)), block_bytes_(block_bytes) {
    for (size_t slot = memory_.size() / block_bytes; slot-- > 0;) free_.push_back(slot);
  }

  bool put(const KvFileName& name, std::span<std::byte> block) override {
    seal_kv_file(name, block);
    const auto [it, added] = slots_.try_emplace(name.key, 0);
    if (added) {
      if (free_.empty()) {
        slots_.erase(it);
        return false;
      }
      it->second = free_.back();
      free_.pop_back();
    }
    std::ranges::copy(block, slot(it->second).begin());
    return true;
  }

  bool get(const KvFileName& name, std::span<std::byte> block) override {
    const auto it = slots_.find(name.key);
    if (it == slots_.end()) return false;
    std::ranges::copy(slot(it->second), block.begin());
    const Expected<void> status = check_kv_file(name, block);
    if (status) return true;
    log_event(LogLevel::kWarning,
              "kv_block_ignored",
              "block",
              to_hex(name.key),
              "reason",
              status.error().message);
    remove({name.key, name.parent});
    return false;
  }

  void remove(const TierIndex::Name& name) override {
    const auto it = slots_.find(name.key);
    if (it == slots_.end()) return;
    free_.push_back(it->second);
    slots_.erase(it);
  }

 private:
  [[nodiscard]] std::span<std::byte> slot(size_t index) const {
    return memory_.span().subspan(index * block_bytes_, block_bytes_);
  }

  AlignedBuffer memory_;
  size_t block_bytes_;
  std::unordered_map<KvKey, size_t, KvKeyHash> slots_;
  std::vector<size_t> free_;
};

}  // namespace

Expected<std::unique_ptr<KvTier>> create_kv_host_tier(const KvTierOptions& options,
                                                      std::function<void()> wake) {
  const int64_t block_bytes = kv_tier_block_bytes(options);
  if (options.max_bytes < block_bytes) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "--kv-offloading-size: one block takes " + std::to_string(block_bytes) + " bytes",
        "kv-offloading-size");
  }
  SLUICE_TRY(AlignedBuffer memory, AlignedBuffer::allocate(options.max_bytes, "host KV tier"));
  return KvTier::create(
      options,
      std::make_unique<HostMemory>(std::move(memory), static_cast<size_t>(block_bytes)),
      std::move(wake));
}

}  // namespace sluice
