// SPDX-License-Identifier: Apache-2.0
// Ranks on shim devices, in the place of NCCL. A gather is ordered on its rank's stream, and waits
// there for the other ranks' gathers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/parallel/parallel.h"
#include "tests/support/simt/memory.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/simt.h"

namespace sluice::testing {

class ShimGroup {
 public:
  explicit ShimGroup(int32_t size) : parts_(static_cast<size_t>(size)), on_host_(size) {}

  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(parts_.size()); }

  // Runs on a stream, the only place where device memory is accessible.
  void exchange(int32_t rank, std::span<const std::byte> part, std::byte* received) {
    parts_[static_cast<size_t>(rank)].assign(part.begin(), part.end());
    if (!meet()) return;
    for (const std::vector<std::byte>& each : parts_) {
      CHECK_EQ(each.size(), part.size());
      std::memcpy(received, each.data(), each.size());
      simt::note_copied(received, std::ssize(each));  // no later launch reads that early
      received += each.size();
    }
    meet();
  }

  // Waits on the ranks' threads, as NCCL's calls do.
  bool meet_on_host() { return on_host_.arrive(); }

  // Waits for all ranks; false when one has failed.
  bool meet() {
    std::unique_lock lock(mutex_);
    const uint64_t own = generation_;
    if (++arrived_ == size()) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return generation_ != own || has_failed_; });
    return !has_failed_;
  }

  void fail() {
    const std::scoped_lock lock(mutex_);
    has_failed_ = true;
    changed_.notify_all();
    on_host_.fail();
  }

  [[nodiscard]] bool has_failed() const { return has_failed_; }

 private:
  std::vector<std::vector<std::byte>> parts_;
  Meeting on_host_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t arrived_ = 0;      // guarded by mutex_
  uint64_t generation_ = 0;  // guarded by mutex_
  std::atomic<bool> has_failed_ = false;
};

class ShimRank final : public Communicator {
 public:
  // Fails in its `num_calls`-th gather; 0: never.
  ShimRank(std::shared_ptr<ShimGroup> group, const DeviceRank& own, int num_calls)
      : group_(std::move(group)), own_(own), calls_left_(num_calls) {}

  // Devices are numbered as ranks are.
  [[nodiscard]] int32_t rank() const override { return own_.device; }

  [[nodiscard]] int32_t size() const override { return group_->size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (--calls_left_ == 0) fail();
    if (has_failed()) return {};
    CHECK_LE(part.size() * static_cast<size_t>(size()), own_.received.size());
    simt::enqueue(own_.stream, [group = group_, own = own_, part] {
      group->exchange(own.device, part, own.received.data());
    });
    if (!group_->meet_on_host()) return {};
    table_.clear();
    for (size_t rank = 0; rank < static_cast<size_t>(size()); ++rank) {
      table_.push_back(own_.received.data() + rank * part.size());
    }
    return table_;
  }

  void fail() override { group_->fail(); }

  [[nodiscard]] bool has_failed() const override { return group_->has_failed(); }

 private:
  const std::shared_ptr<ShimGroup> group_;
  const DeviceRank own_;
  int calls_left_;
  std::vector<const std::byte*> table_;
};

// Rank `failing` fails in its `num_calls`-th gather.
inline RankGroups shim_groups(int32_t failing = -1, int num_calls = 0) {
  const ConnectRanks connect = [failing, num_calls](std::span<const DeviceRank> ranks) {
    const auto group = std::make_shared<ShimGroup>(static_cast<int32_t>(ranks.size()));
    std::vector<std::unique_ptr<Communicator>> connected;
    for (const DeviceRank& own : ranks) {
      CHECK_EQ(static_cast<size_t>(own.device), connected.size());
      connected.push_back(
          std::make_unique<ShimRank>(group, own, own.device == failing ? num_calls : 0));
    }
    return connected;
  };
  return {.on_cpu = make_local_ranks, .on_devices = [connect] { return connect; }};
}

// Provides `count` devices for one test.
class ShimDevices {
 public:
  // `fails_to_record`: the device whose recordings fail; -1: none.
  explicit ShimDevices(int count, int fails_to_record = -1) {
    simt::set_device_options({.count = count, .fails_to_record = fails_to_record});
  }

  ShimDevices(const ShimDevices&) = delete;
  ShimDevices& operator=(const ShimDevices&) = delete;

  ~ShimDevices() { simt::set_device_options({}); }
};

// Returns null, with a failure of the test, if the engine does not start.
inline std::unique_ptr<Engine> start_ranks(Config config) {
  config.max_num_batched_tokens = std::min(config.max_num_batched_tokens, 64);  // all run at start
  auto engine = create_engine(config, shim_groups());
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  return engine ? std::move(*engine) : nullptr;
}

}  // namespace sluice::testing
