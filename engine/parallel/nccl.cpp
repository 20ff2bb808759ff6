// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/nccl.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/nccl_library.h"

namespace sluice {
namespace {

using kernels::NcclLibrary;

constexpr std::chrono::milliseconds kWatchInterval{100};

class NcclRank;

// Ranks that fail together. A separate thread polls for errors that no call returns.
class Group {
 public:
  explicit Group(int32_t size)
      : meeting_(size), watch_([this](const std::stop_token& stop) { watch(stop); }) {}

  // Waits for every rank. A gather blocks its GPU until the other ranks' gathers are called; before
  // that, a thread must not call what waits for its GPU or holds shared driver resources, as
  // allocations, copies of pageable memory and launches into a full queue do.
  bool meet() { return meeting_.arrive(); }

  void add(NcclRank* rank);
  void remove(NcclRank* rank);
  void watch_failure(NcclRank& rank, std::function<void()> on_failure);
  void fail();

 private:
  void watch(const std::stop_token& stop);
  void fail_all();  // requires the lock

  Meeting meeting_;
  std::mutex mutex_;
  std::vector<NcclRank*> ranks_;  // guarded by mutex_
  std::condition_variable_any stopped_;
  std::jthread watch_;  // last member: starts after and joins before the others
};

class NcclRank final : public Communicator {
 public:
  NcclRank(const NcclLibrary& library,
           std::shared_ptr<Group> group,
           kernels::NcclComm comm,
           int32_t rank,
           int32_t size,
           const DeviceRank& own)
      : library_(library),
        group_(std::move(group)),
        comm_(comm),
        rank_(rank),
        own_(own),
        table_(static_cast<size_t>(size)) {
    group_->add(this);
  }

  // A broken communicator cannot be destroyed normally: that would wait for other ranks.
  ~NcclRank() override {
    if (is_broken()) fail();
    group_->remove(this);
    if (aborting_.joinable()) aborting_.join();
    if (comm_ != nullptr) library_.comm_destroy(comm_);
  }

  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  [[nodiscard]] int32_t rank() const override { return rank_; }

  [[nodiscard]] int32_t size() const override { return static_cast<int32_t>(table_.size()); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    CHECK_LE(part.size(), own_.received.size() / table_.size());
    std::byte* const parts = own_.received.data();
    bool is_called = false;
    {
      const std::scoped_lock lock(mutex_);
      is_called = !failed_ && comm_ != nullptr &&
                  library_.all_gather(
                      part.data(), parts, part.size(), kernels::kNcclInt8, comm_, own_.stream) ==
                      kernels::kNcclSuccess;
    }
    if (!is_called) fail();
    if (!group_->meet()) return {};
    for (size_t rank = 0; rank < table_.size(); ++rank) table_[rank] = parts + rank * part.size();
    return table_;
  }

  void fail() override { group_->fail(); }

  [[nodiscard]] bool has_failed() const override { return failed_; }

  // Returns false also while another thread uses the communicator in the library.
  [[nodiscard]] bool is_broken() const {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || comm_ == nullptr) return false;
    kernels::NcclResult error = kernels::kNcclSuccess;
    const kernels::NcclResult asked = library_.comm_get_async_error(comm_, &error);
    return asked != kernels::kNcclSuccess ||
           (error != kernels::kNcclSuccess && error != kernels::kNcclInProgress);
  }

  void watch_failure(std::function<void()> on_failure) override {
    group_->watch_failure(*this, std::move(on_failure));
  }

  // Requires the group's lock.
  void set_on_failure(std::function<void()> on_failure) {
    on_failure_ = std::move(on_failure);
    if (failed_) on_failure_();
  }

  // Requires the group's lock.
  void set_failed() {
    failed_ = true;
    if (on_failure_) on_failure_();
  }

  // Requires the group's lock. Runs on its own thread, after any thread inside the library: the
  // last abort of a process waits until recorded work with its communicators is gone.
  void begin_abort() {
    if (aborting_.joinable()) return;
    aborting_ = std::thread([this] {
      kernels::NcclComm comm = nullptr;
      {
        const std::scoped_lock lock(mutex_);
        comm = std::exchange(comm_, nullptr);
      }
      if (comm != nullptr) library_.comm_abort(comm);
    });
  }

 private:
  const NcclLibrary library_;
  const std::shared_ptr<Group> group_;
  std::atomic<bool> failed_ = false;
  std::thread aborting_;              // guarded by the group's lock
  std::function<void()> on_failure_;  // guarded by the group's lock
  // An abort frees the communicator: no other thread may be using it in the library.
  mutable std::mutex mutex_;
  kernels::NcclComm comm_;  // guarded by mutex_; null: aborted
  const int32_t rank_;
  const DeviceRank own_;
  std::vector<const std::byte*> table_;
};

void Group::add(NcclRank* rank) {
  const std::scoped_lock lock(mutex_);
  ranks_.push_back(rank);
}

void Group::remove(NcclRank* rank) {
  const std::scoped_lock lock(mutex_);
  std::erase(ranks_, rank);
}

void Group::watch_failure(NcclRank& rank, std::function<void()> on_failure) {
  const std::scoped_lock lock(mutex_);
  rank.set_on_failure(std::move(on_failure));
}

void Group::fail() {
  const std::scoped_lock lock(mutex_);
  fail_all();
}

void Group::fail_all() {
  // A rank that wakes up must find the failure set.
  for (NcclRank* const rank : ranks_) rank->set_failed();
  meeting_.fail();
  for (NcclRank* const rank : ranks_) rank->begin_abort();
}

void Group::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    for (const NcclRank* const rank : ranks_) {
      if (rank->is_broken()) {
        fail_all();
        break;
      }
    }
    stopped_.wait_for(lock, stop, kWatchInterval, [] { return false; });
  }
}

Expected<std::vector<std::unique_ptr<Communicator>>> connect(const NcclLibrary& library,
                                                             std::span<const DeviceRank> ranks) {
  std::vector<int> devices;
  for (const DeviceRank& rank : ranks) devices.push_back(rank.device);
  std::vector<kernels::NcclComm> comms(ranks.size());
  const auto size = static_cast<int32_t>(ranks.size());
  if (const kernels::NcclResult result = library.comm_init_all(comms.data(), size, devices.data());
      result != kernels::kNcclSuccess) {
    return make_error(ErrorCode::kUnavailable,
                      "NCCL cannot connect the GPUs: " + std::string(library.error_string(result)) +
                          ": " + library.last_error(nullptr));
  }
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> connected;
  for (int32_t rank = 0; rank < size; ++rank) {
    const auto i = static_cast<size_t>(rank);
    connected.push_back(std::make_unique<NcclRank>(library, group, comms[i], rank, size, ranks[i]));
  }
  return connected;
}

}  // namespace

Expected<ConnectRanks> open_nccl(const std::string& library) {
  SLUICE_TRY(const NcclLibrary opened, NcclLibrary::open(library));
  return [opened](std::span<const DeviceRank> ranks) { return connect(opened, ranks); };
}

}  // namespace sluice
