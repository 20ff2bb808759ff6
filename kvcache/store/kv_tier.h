// SPDX-License-Identifier: Apache-2.0
// A place for KV blocks below the cache. A thread of its own reads and writes; the owner's thread
// hands over and collects, and waits for neither. Bytes pass through a fixed set of buffers, so a
// slow place loses blocks, never memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/queue.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kvcache/store/kv_file.h"
#include "kvcache/store/tier_index.h"

namespace sluice {

// Keeps blocks as header and payload (kv_file.h), all of one size. Tier's thread only.
class KvPlace {
 public:
  virtual ~KvPlace() = default;
  // Keeps the block, which has room for the header. Returns false where it was not kept.
  [[nodiscard]] virtual bool put(const KvFileName& name, std::span<std::byte> block) = 0;
  // Reads the block. False: there is none, or another than was put (with a line in the log).
  [[nodiscard]] virtual bool get(const KvFileName& name, std::span<std::byte> block) = 0;
  virtual void remove(const TierIndex::Name& name) = 0;
};

struct KvTierOptions {
  int64_t max_bytes = 0;
  int32_t block_size = 0;
  int64_t payload_bytes = 0;
  int64_t least_buffers = 8;  // however large a block is
};

// The bytes of one block: header and payload.
constexpr int64_t kv_tier_block_bytes(const KvTierOptions& options) {
  return kv_file_header_bytes(options.block_size) + options.payload_bytes;
}

// The bytes of all buffers, for the memory plan.
int64_t kv_tier_buffer_bytes(const KvTierOptions& options);

// All calls come from the thread that created the tier.
class KvTier {
 public:
  // The tier's thread calls `wake` when a load has ended, once until the next collect().
  static Expected<std::unique_ptr<KvTier>> create(const KvTierOptions& options,
                                                  std::unique_ptr<KvPlace> place,
                                                  std::function<void()> wake);
  ~KvTier();  // returns after everything handed over is written
  KvTier(const KvTier&) = delete;
  KvTier& operator=(const KvTier&) = delete;

  // Called on the owner's thread, in the order of the changes, with each block that now lies in the
  // tier and with each that no longer does or will not. Set before the first save.
  using Listener = std::function<void(const KvKey& key, bool is_there)>;

  void set_listener(Listener listener) { listener_ = std::move(listener); }

  // Adds what the place has already, in the order of last use. Called before anything else.
  void add_found(std::span<const TierIndex::Name> names);

  // Whether the block is in the tier, or is being written.
  [[nodiscard]] bool contains(const KvKey& key) const { return index_.contains(key); }

  void touch(const KvKey& key) { index_.touch(key); }

  // A free buffer or kNone. The buffer is the caller's until saved, loaded into or given back.
  static constexpr int32_t kNone = -1;
  [[nodiscard]] int32_t take_buffer();
  void give_back(int32_t buffer);
  [[nodiscard]] std::span<std::byte> payload(int32_t buffer) const;

  [[nodiscard]] size_t num_free_buffers() const { return free_buffers_.size(); }

  // Writes the buffer's payload as the block of this name, evicting others where the tier is full.
  // Returns false, with the buffer given back, where the tier is full of blocks that others follow.
  bool save(const KvFileName& name, int32_t buffer);
  // Reads the block into the buffer, which comes back by collect() under this ticket, in order.
  void load(const KvFileName& name, int32_t buffer, uint64_t ticket);

  struct Loaded {
    uint64_t ticket = 0;
    int32_t buffer = kNone;  // now the caller's
    bool ok = false;         // false: no such block after all
    double seconds = 0;      // time that the read took
  };

  // Appends the loads that have ended since the last call. Also gives back the buffers of saves.
  void collect(std::vector<Loaded>& loaded);

  [[nodiscard]] int64_t num_blocks() const { return index_.size(); }

  [[nodiscard]] uint64_t num_written() const { return num_written_; }

 private:
  enum class Kind : uint8_t { kSave, kLoad, kRemove };

  struct Job {
    Kind kind;
    TierIndex::Name name;
    int32_t buffer;
    uint64_t ticket;
  };

  struct Done {
    Job job;
    bool ok;
    double seconds;
  };

  KvTier(const KvTierOptions& options,
         std::unique_ptr<KvPlace> place,
         std::function<void()> wake,
         int32_t num_buffers);

  [[nodiscard]] std::span<std::byte> block_bytes(int32_t buffer) const;
  [[nodiscard]] KvFileName file_name(const Job& job) const;
  void queue(Kind kind, const KvFileName& name, int32_t buffer, uint64_t ticket);
  void notify(const KvKey& key, bool is_there) const;
  void evict_but(const KvKey& wanted);
  void run();
  void do_job(const Job& job);

  const KvTierOptions options_;
  const std::unique_ptr<KvPlace> place_;
  const std::function<void()> wake_;
  // Owner's thread only.
  Listener listener_;  // empty: no listener
  TierIndex index_;
  std::vector<int32_t> free_buffers_;
  std::vector<Done> collected_;  // scratch
  uint64_t num_written_ = 0;
  // A buffer and its token ids belong to the thread that holds the buffer's number.
  AlignedBuffer buffers_;
  std::vector<TokenId> token_ids_;  // [buffer][block_size]
  Inbox<Job> jobs_;
  std::mutex done_mutex_;
  std::vector<Done> done_;  // guarded by done_mutex_
  std::atomic<bool> has_done_ = false;
  std::atomic<bool> woken_ = false;  // true since the last collect()
  std::atomic<bool> closing_ = false;
  std::thread thread_;
};

}  // namespace sluice
