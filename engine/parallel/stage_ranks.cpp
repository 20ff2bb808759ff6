// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/stage_ranks.h"

#include <xxhash.h>

#include <array>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/types.h"
#include "engine/parallel/rank_group.h"
#include "engine/parallel/shared_count.h"

namespace sluice {
namespace {

constexpr uint32_t kSlots = 2;  // of a border that does not end at rank 0

// In front of the rows of a call.
struct RowsHeader {
  uint64_t bytes = 0;
  uint64_t sign = 0;  // of `bytes`: what is no header is not taken for one
  uint64_t hash = 0;  // of the rows, seeded by the number of the border's call

  [[nodiscard]] bool is_whole() const { return sign == XXH3_64bits(&bytes, sizeof(bytes)); }
};

uint64_t hash_of(std::span<const std::byte> rows, uint64_t number) {
  return XXH3_64bits_withSeed(rows.data(), rows.size(), number);
}

RowsHeader header_of(std::span<const std::byte> rows, uint64_t number) {
  RowsHeader header = {.bytes = rows.size(), .sign = 0, .hash = hash_of(rows, number)};
  header.sign = XXH3_64bits(&header.bytes, sizeof(header.bytes));
  return header;
}

// What both carriers have in common: who gives and who takes.
class StageRank : public Communicator {
 public:
  StageRank(RankGroup& group, const RankTeam& team) : group_(group), team_(team) {}

  [[nodiscard]] int32_t rank() const override { return team_.index(group_.rank()); }

  [[nodiscard]] int32_t size() const override { return team_.size; }

  std::span<const std::byte* const> all_gather(std::span<const std::byte>) override {
    SLUICE_UNREACHABLE("stages gather nothing");
  }

  bool pass(int32_t from, int32_t to, std::span<std::byte> bytes) override {
    CHECK_EQ(to, (from + 1) % size());
    if (has_failed()) return false;
    if (rank() == from) return give(to, bytes);
    return rank() != to || take(from, bytes);
  }

  void fail() override { group_.fail("this rank failed"); }

  [[nodiscard]] bool has_failed() const override { return group_.is_over(); }

 protected:
  virtual bool give(int32_t to, std::span<const std::byte> rows) = 0;
  virtual bool take(int32_t from, std::span<std::byte> rows) = 0;

  // Whether the rows of the border's latest call, which are here now, are those that were given.
  bool check(int32_t from, std::span<const std::byte> rows, const RowsHeader& header) {
    if (header.bytes != rows.size()) return fail_stray(from);
    if (header.hash == hash_of(rows, num_taken_)) return true;
    group_.fail_changed(team_.rank(from), num_taken_);
    return false;
  }

  // A stage, as the group calls its rank.
  [[nodiscard]] std::string name_of(int32_t stage) const {
    return "rank " + std::to_string(team_.rank(stage));
  }

  bool fail_stray(int32_t from) {
    group_.fail_stray(team_.rank(from), num_taken_);
    return false;
  }

  RankGroup& group_;
  const RankTeam team_;
  uint64_t num_given_ = 0;
  uint64_t num_taken_ = 0;
};

// The slots of a border, used in turn.
struct alignas(128) Border {
  SharedCount given;  // calls
  SharedCount taken;
};

static_assert(sizeof(Border) * kMostRanks <= kPageBytes);

int64_t slot_bytes(const ExchangeSizes& sizes) {
  return align_up(static_cast<int64_t>(sizeof(RowsHeader)) + sizes.passed_bytes, kPageBytes);
}

// What a last stage hands back in steps that rank 0 has begun and not awaited has room, so that it
// never waits for rank 0, which may wait for it.
uint32_t slots_of(int32_t border, const ExchangeSizes& sizes) {
  if (border + 1 < sizes.num_stages) return kSlots;
  const int64_t calls = std::max<int64_t>(ceil_div(sizes.returned_bytes, sizes.passed_bytes), 1);
  return std::bit_ceil(static_cast<uint32_t>(calls * most_steps_in_flight(sizes.num_stages)));
}

class SharedStage final : public StageRank {
 public:
  SharedStage(RankGroup& group,
              const RankTeam& team,
              std::unique_ptr<SharedSegment> segment,
              const ExchangeSizes& sizes)
      : StageRank(group, team), segment_(std::move(segment)), sizes_(sizes) {
    CHECK_EQ(team.size, sizes.num_stages);
    CHECK_LE(shared_stage_bytes(sizes), static_cast<int64_t>(segment_->bytes().size()));
  }

 protected:
  bool give(int32_t to, std::span<const std::byte> rows) override {
    CHECK_LE(static_cast<int64_t>(rows.size()), sizes_.passed_bytes);
    Border& own = border(rank());
    const auto next = static_cast<uint32_t>(++num_given_);
    const uint32_t oldest = next - slots_of(rank(), sizes_);
    if (!own.taken.await(oldest, group_, team_.rank(to), RankGroup::kStage)) return false;
    const RowsHeader header = header_of(rows, num_given_);
    std::byte* const slot = slot_of(rank(), next);
    std::memcpy(slot, &header, sizeof(header));
    std::memcpy(slot + sizeof(header), rows.data(), rows.size());
    own.given.set(next);
    return true;
  }

  bool take(int32_t from, std::span<std::byte> rows) override {
    CHECK_LE(static_cast<int64_t>(rows.size()), sizes_.passed_bytes);
    Border& other = border(from);
    const auto next = static_cast<uint32_t>(++num_taken_);
    if (!other.given.await(next, group_, team_.rank(from), RankGroup::kStage)) return false;
    const uint32_t ahead = other.given.number.load(std::memory_order_relaxed) - next;
    if (ahead >= slots_of(from, sizes_)) return fail_stray(from);
    const std::byte* const slot = slot_of(from, next);
    RowsHeader header;
    std::memcpy(&header, slot, sizeof(header));
    std::memcpy(rows.data(), slot + sizeof(header), rows.size());
    if (!check(from, rows, header)) return false;
    other.taken.set(next);
    return true;
  }

 private:
  [[nodiscard]] Border& border(int32_t from) const {
    return reinterpret_cast<Border*>(segment_->bytes().data())[from];
  }

  [[nodiscard]] std::byte* slot_of(int32_t from, uint32_t number) const {
    const int64_t slot = from * int64_t{kSlots} + number % slots_of(from, sizes_);
    return segment_->bytes().data() + kPageBytes + slot * slot_bytes(sizes_);
  }

  const std::unique_ptr<SharedSegment> segment_;
  const ExchangeSizes sizes_;
};

// Rank 0 is the hub: the other ranks have no connections with each other.
class StreamStage final : public StageRank {
 public:
  StreamStage(RankGroup& group, const RankTeam& team) : StageRank(group, team) {
    if (rank() != 0) return;
    for (int32_t from = 1; from < size(); ++from) {
      readers_.emplace_back([this, from] {
        bring(from);
        const std::scoped_lock lock(mutex_);
        has_ended_ = has_ended_ || from + 1 == size();
        changed_.notify_all();
      });
    }
  }

  ~StreamStage() override {
    group_.close_rows();
    readers_.clear();
  }

 protected:
  bool give(int32_t to, std::span<const std::byte> rows) override {
    const RowsHeader header = header_of(rows, ++num_given_);
    given_.resize(sizeof(header) + rows.size());
    std::memcpy(given_.data(), &header, sizeof(header));
    std::memcpy(given_.data() + sizeof(header), rows.data(), rows.size());
    return group_.send_rows(rank() == 0 ? team_.rank(to) : 0, given_);
  }

  bool take(int32_t from, std::span<std::byte> rows) override {
    ++num_taken_;
    RowsHeader header;
    if (rank() != 0) {
      const auto deadline = std::chrono::steady_clock::now() + RankGroup::kStage;
      const auto bytes = std::as_writable_bytes(std::span(&header, 1));
      if (!group_.next_rows(0, bytes, deadline)) return false;
      if (header.bytes != rows.size()) return fail_stray(from);
      return group_.receive_rows(0, rows) && check(from, rows, header);
    }
    std::unique_lock lock(mutex_);
    const bool is_there = changed_.wait_for(
        lock, RankGroup::kStage, [this] { return !arrived_.empty() || has_ended_; });
    if (arrived_.empty()) {
      if (!is_there) group_.fail(name_of(from) + ": no rows of a step");
      return false;
    }
    std::vector<std::byte> oldest = std::move(arrived_.front());
    arrived_.pop_front();
    lock.unlock();
    const std::span<const std::byte> found = std::span(oldest).subspan(sizeof(header));
    std::memcpy(&header, oldest.data(), sizeof(header));
    if (found.size() != rows.size()) return fail_stray(from);
    std::memcpy(rows.data(), found.data(), rows.size());
    if (!check(from, rows, header)) return false;
    lock.lock();
    spare_.push_back(std::move(oldest));
    return true;
  }

 private:
  // Takes what that rank gives until its connection ends.
  void bring(int32_t from) {
    const int32_t to = (from + 1) % size();
    const int32_t name = team_.rank(from);
    std::vector<std::byte> rows;
    for (RowsHeader header;;) {
      // Between steps nothing comes, however long.
      const auto bytes = std::as_writable_bytes(std::span(&header, 1));
      if (!group_.next_rows(name, bytes, GroupDeadline::max())) return;
      if (!header.is_whole() || header.bytes > static_cast<uint64_t>(kPassBytes)) {
        return group_.fail(name_of(from) + ": its rows are not what it sent");
      }
      rows.resize(sizeof(header) + static_cast<size_t>(header.bytes));
      std::memcpy(rows.data(), &header, sizeof(header));
      if (!group_.receive_rows(name, std::span(rows).subspan(sizeof(header)))) return;
      if (to != 0) {
        if (!group_.send_rows(team_.rank(to), rows)) return;
        continue;
      }
      const std::scoped_lock lock(mutex_);
      arrived_.push_back(std::move(rows));
      rows.clear();
      if (!spare_.empty()) {
        rows = std::move(spare_.back());
        spare_.pop_back();
      }
      changed_.notify_all();
    }
  }

  std::vector<std::byte> given_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<std::byte>> arrived_;  // for rank 0; this and the following: guarded
  std::vector<std::vector<std::byte>> spare_;
  bool has_ended_ = false;             // nothing more arrives
  std::vector<std::jthread> readers_;  // on rank 0; last: join before the rest goes
};

}  // namespace

int64_t shared_stage_bytes(const ExchangeSizes& sizes) {
  const int32_t last = sizes.num_stages - 1;
  const int64_t slots = last * int64_t{kSlots} + slots_of(last, sizes);
  return kPageBytes + slots * slot_bytes(sizes);
}

std::unique_ptr<Communicator> make_shared_stage(RankGroup& group,
                                                const RankTeam& team,
                                                std::unique_ptr<SharedSegment> segment,
                                                const ExchangeSizes& sizes) {
  return std::make_unique<SharedStage>(group, team, std::move(segment), sizes);
}

std::unique_ptr<Communicator> make_stream_stage(RankGroup& group, const RankTeam& team) {
  return std::make_unique<StreamStage>(group, team);
}

}  // namespace sluice
