// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/shared_ranks.h"

#include <xxhash.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>

#include "engine/core/types.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/shared_count.h"

namespace sluice {
namespace {

constexpr int64_t kSlots = 2;  // of a rank, used in turn

// Size, hash and rank's state of a part in a slot.
struct PartSign {
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> hash;   // seeded by the number of the call
  std::atomic<uint64_t> state;  // of its rank
};

// What a rank tells the others, in memory of them all.
struct alignas(128) Sign {
  SharedCount calls;                   // begun
  std::array<PartSign, kSlots> parts;  // by slot
};

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Sign) * kMostRanks <= kPageBytes);

int64_t slot_bytes(int64_t part_bytes) { return align_up(part_bytes, kPageBytes); }

class SharedRank final : public Communicator {
 public:
  SharedRank(RankGroup& group,
             const RankTeam& team,
             std::unique_ptr<SharedSegment> segment,
             int64_t part_bytes)
      : group_(group),
        team_(team),
        segment_(std::move(segment)),
        slot_bytes_(slot_bytes(part_bytes)) {
    CHECK_LE(shared_rank_bytes(size(), part_bytes), static_cast<int64_t>(segment_->bytes().size()));
  }

  [[nodiscard]] int32_t rank() const override { return team_.index(group_.rank()); }

  [[nodiscard]] int32_t size() const override { return team_.size; }

  // A rank writes to a slot again when all have begun the call after that in which they read it.
  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (has_failed()) return {};
    CHECK_LE(static_cast<int64_t>(part.size()), slot_bytes_);
    ++number_;
    const size_t slot = number_ % kSlots;
    Sign& own = sign(rank());
    if (!part.empty()) std::memcpy(slot_of(rank(), slot), part.data(), part.size());
    own.parts[slot].bytes.store(part.size(), std::memory_order_relaxed);
    own.parts[slot].hash.store(hash_of(part), std::memory_order_relaxed);
    own.parts[slot].state.store(state_, std::memory_order_relaxed);
    own.calls.set(number_);
    std::array<uint64_t, kMostRanks> states{};
    for (int32_t other = 0; other < size(); ++other) {
      const auto index = static_cast<size_t>(other);
      // The own part lies where this rank alone writes.
      parts_[index] = other == rank() ? part.data() : slot_of(other, slot);
      states[index] = state_;
      if (other == rank()) continue;
      const int32_t name = team_.rank(other);
      if (!sign(other).calls.await(number_, group_, name, team_.within)) return {};
      // A rank cannot be two calls ahead of one that has not begun the first.
      const uint32_t seen = sign(other).calls.number.load(std::memory_order_relaxed);
      if (seen - number_ > 1) {
        group_.fail_stray(name, number_);
        return {};
      }
      if (!check(other, slot_of(other, slot), part.size())) return {};
      states[index] = sign(other).parts[slot].state.load(std::memory_order_relaxed);
    }
    const auto count = static_cast<size_t>(size());
    if (!group_.agree(team_, std::span(states).first(count), number_)) return {};
    return std::span(parts_).first(count);
  }

  [[nodiscard]] uint64_t* state() override { return &state_; }

  void fail() override { group_.fail("this rank failed"); }

  [[nodiscard]] bool has_failed() const override { return group_.is_over(); }

 private:
  [[nodiscard]] Sign& sign(int32_t rank) const {
    return reinterpret_cast<Sign*>(segment_->bytes().data())[rank];
  }

  [[nodiscard]] std::byte* slot_of(int32_t rank, size_t slot) const {
    const int64_t index = rank * kSlots + static_cast<int64_t>(slot);
    return segment_->bytes().data() + kPageBytes + index * slot_bytes_;
  }

  [[nodiscard]] uint64_t hash_of(std::span<const std::byte> part) const {
    return XXH3_64bits_withSeed(part.data(), part.size(), number_);
  }

  // Whether a part that is there is the one of this call, and as it was written.
  bool check(int32_t other, const std::byte* bytes, size_t size) {
    const PartSign& found = sign(other).parts[number_ % kSlots];
    if (found.bytes.load(std::memory_order_relaxed) != size) {
      group_.fail_stray(team_.rank(other), number_);
      return false;
    }
    if (found.hash.load(std::memory_order_relaxed) == hash_of({bytes, size})) return true;
    group_.fail_changed(team_.rank(other), number_);
    return false;
  }

  RankGroup& group_;
  const RankTeam team_;
  const std::unique_ptr<SharedSegment> segment_;
  const int64_t slot_bytes_;
  std::array<const std::byte*, kMostRanks> parts_{};
  uint32_t number_ = 0;  // of calls; wraps
  uint64_t state_ = 0;
};

}  // namespace

int64_t shared_rank_bytes(int32_t size, int64_t part_bytes) {
  return kPageBytes + size * kSlots * slot_bytes(part_bytes);
}

std::unique_ptr<Communicator> make_shared_rank(RankGroup& group,
                                               const RankTeam& team,
                                               std::unique_ptr<SharedSegment> segment,
                                               int64_t part_bytes) {
  return std::make_unique<SharedRank>(group, team, std::move(segment), part_bytes);
}

}  // namespace sluice
