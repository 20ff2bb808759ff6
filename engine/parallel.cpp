// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel.h"

#include <array>
#include <atomic>
#include <chrono>

#include "engine/core/status.h"

namespace sluice {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

// What the ranks share. A call fills one of two tables, in turn: who is in call n + 1 has read what
// call n gave, so that call n + 2 may take its table. Not after a failure: then call n + 1 has
// waited for nobody.
struct Meeting {
  explicit Meeting(int32_t num_ranks) : size(num_ranks) {
    for (std::vector<const std::byte*>& table : parts) table.resize(static_cast<size_t>(size));
  }

  // False: a rank has failed.
  bool arrive() {
    const uint32_t own = generation.load();
    if (failed.load()) return false;
    if (arrived.fetch_add(1) + 1 == size) {
      arrived.store(0, std::memory_order_relaxed);
      generation.fetch_add(1);
      generation.notify_all();
    } else {
      wait_for_change(generation, own);
    }
    return !failed.load();
  }

  const int32_t size;
  std::array<std::vector<const std::byte*>, 2> parts;  // by rank
  alignas(64) std::atomic<int32_t> arrived = 0;
  alignas(64) std::atomic<uint32_t> generation = 0;
  std::atomic<bool> failed = false;
};

class LocalRank final : public Communicator {
 public:
  LocalRank(std::shared_ptr<Meeting> meeting, int32_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  [[nodiscard]] int32_t rank() const override { return rank_; }

  [[nodiscard]] int32_t size() const override { return meeting_->size; }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (has_failed()) return {};
    std::vector<const std::byte*>& table = meeting_->parts[num_calls_++ % 2];
    table[static_cast<size_t>(rank_)] = part.data();
    if (!meeting_->arrive()) return {};
    return table;
  }

  void fail() override {
    meeting_->failed.store(true);
    meeting_->generation.fetch_add(1);
    meeting_->generation.notify_all();
  }

  [[nodiscard]] bool has_failed() const override { return meeting_->failed.load(); }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const int32_t rank_;
  size_t num_calls_ = 0;
};

}  // namespace

void wait_for_change(const std::atomic<uint32_t>& word, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      __builtin_ia32_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  word.wait(old, std::memory_order_acquire);
}

std::vector<std::unique_ptr<Communicator>> make_local_ranks(int32_t size) {
  CHECK_GE(size, 1);
  const auto meeting = std::make_shared<Meeting>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<LocalRank>(meeting, rank));
  }
  return ranks;
}

}  // namespace sluice
