// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/parallel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

#include "engine/core/status.h"

namespace sluice {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

// State shared by the ranks. Calls fill two tables in turn: a rank in call n + 1 has read the
// result of call n, so call n + 2 may reuse its table. This does not hold after a failure, when
// call n + 1 has not waited.
struct Exchange {
  explicit Exchange(int32_t size) : meeting(size) {
    for (std::vector<const std::byte*>& table : parts) table.resize(static_cast<size_t>(size));
  }

  Meeting meeting;
  std::array<std::vector<const std::byte*>, 2> parts;  // by rank
};

class LocalRank final : public Communicator {
 public:
  LocalRank(std::shared_ptr<Exchange> exchange, int32_t rank)
      : exchange_(std::move(exchange)), rank_(rank) {}

  [[nodiscard]] int32_t rank() const override { return rank_; }

  [[nodiscard]] int32_t size() const override { return exchange_->meeting.size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (has_failed()) return {};
    std::vector<const std::byte*>& table = exchange_->parts[num_calls_++ % 2];
    table[static_cast<size_t>(rank_)] = part.data();
    if (!exchange_->meeting.arrive()) return {};
    return table;
  }

  // No rank goes on before the receiver has its copy.
  bool pass(int32_t from, int32_t to, std::span<std::byte> bytes) override {
    if (has_failed()) return false;
    std::vector<const std::byte*>& table = exchange_->parts[num_calls_++ % 2];
    table[static_cast<size_t>(rank_)] = bytes.data();
    if (!exchange_->meeting.arrive()) return false;
    if (rank_ == to) std::memcpy(bytes.data(), table[static_cast<size_t>(from)], bytes.size());
    return exchange_->meeting.arrive();
  }

  void fail() override { exchange_->meeting.fail(); }

  [[nodiscard]] bool has_failed() const override { return exchange_->meeting.has_failed(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
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

bool Meeting::arrive() {
  const uint32_t own = generation_.load();
  if (failed_.load()) return false;
  if (arrived_.fetch_add(1) + 1 == size_) {
    arrived_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1);
    generation_.notify_all();
  } else {
    wait_for_change(generation_, own);
  }
  return !failed_.load();
}

void Meeting::fail() {
  failed_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
}

std::vector<std::unique_ptr<Communicator>> make_local_ranks(int32_t size) {
  CHECK_GE(size, 1);
  const auto exchange = std::make_shared<Exchange>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<LocalRank>(exchange, rank));
  }
  return ranks;
}

}  // namespace sluice
