// SPDX-License-Identifier: Apache-2.0
// Ranks that exchange by kernels/peer_rows.h in tests of kernels: each is a thread of the host
// whose launches are a device's, in a schedule of its own.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/peer_rows.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/support/simt/peers.h"
#include "tests/support/simt/simt.h"

namespace sluice::kernels::test {

class PeerRanks {
 public:
  explicit PeerRanks(int32_t size) : size_(size), stop_(std::make_unique<uint32_t>(0)) {
    for (int32_t rank = 0; rank < size; ++rank) {
      windows_.push_back(std::make_unique<DeviceBytes>(kPeerWindowBytes));
      std::memset(windows_.back()->data(), 0, kPeerWindowBytes);
      shared_.push_back(
          std::make_unique<simt::PeerMemory>(windows_.back()->data(), kPeerWindowBytes));
    }
  }

  [[nodiscard]] int32_t size() const { return size_; }

  [[nodiscard]] PeerWindows windows(int32_t rank) const {
    PeerWindows view{
        .rank = rank, .size = size_, .windows = {}, .stop = stop_.get(), .limit_ns = limit_ns_};
    for (size_t i = 0; i < windows_.size(); ++i) view.windows[i] = windows_[i]->data();
    return view;
  }

  // Ends waits of launches from now on.
  void set_limit_ns(int64_t limit_ns) { limit_ns_ = limit_ns; }

  [[nodiscard]] std::atomic_ref<uint32_t> stop() const { return std::atomic_ref(*stop_); }

  // Sets all counts as if this was the latest exchange's.
  void set_number(uint32_t number) {
    for (const auto& window : windows_) {
      for (int64_t at = 0; at < kPeerHeadBytes; at += 4) {
        std::memcpy(window->data() + at, &number, sizeof(number));
      }
    }
  }

  // Calls body(rank) on every rank's thread; returns what the schedules reported.
  std::string run(uint64_t seed, simt::Mode mode, const std::function<void(int32_t)>& body) const {
    std::mutex mutex;
    std::string reports;
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        simt::Run schedule(seed + static_cast<uint64_t>(rank), mode);
        body(rank);
        const std::string own = joined(schedule.take_reports());
        const std::scoped_lock lock(mutex);
        reports += own;
      });
    }
    for (std::thread& thread : threads) thread.join();
    return reports;
  }

 private:
  const int32_t size_;
  const std::unique_ptr<uint32_t> stop_;
  int64_t limit_ns_ = int64_t{600} * 1'000'000'000;  // only a broken exchange reaches it
  std::vector<std::unique_ptr<DeviceBytes>> windows_;
  std::vector<std::unique_ptr<simt::PeerMemory>> shared_;
};

}  // namespace sluice::kernels::test
