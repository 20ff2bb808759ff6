// SPDX-License-Identifier: Apache-2.0
#include "engine/nccl.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// NCCL's interface, as its manual has it since 2.4.
using Result = int;
constexpr Result kSuccess = 0;
constexpr Result kInProgress = 7;
constexpr int kInt8 = 0;
using Handle = void*;  // ncclComm_t

}  // namespace

struct Nccl::Functions {
  const char* (*error_string)(Result result);
  Result (*get_unique_id)(NcclId* id);
  Result (*comm_init_rank)(Handle* comm, int size, NcclId id, int rank);
  Result (*comm_destroy)(Handle comm);
  Result (*comm_abort)(Handle comm);
  Result (*comm_get_async_error)(Handle comm, Result* error);
  Result (*all_gather)(
      const void* part, void* parts, size_t count, int type, Handle comm, void* stream);

  [[nodiscard]] tl::unexpected<Error> error(const char* what, Result result) const {
    return make_error(ErrorCode::kUnavailable, std::string(what) + ": " + error_string(result));
  }
};

class NcclRank;

// The ranks of a group that are in this process: what fails one, fails all.
struct NcclGroup {
  std::mutex mutex;
  std::vector<NcclRank*> ranks;  // guarded by mutex
};

class NcclRank final : public Communicator {
 public:
  NcclRank(std::shared_ptr<const Nccl> nccl,
           std::shared_ptr<NcclGroup> group,
           Handle comm,
           const DeviceRank& rank)
      : nccl_(std::move(nccl)),
        group_(std::move(group)),
        comm_(comm),
        own_(rank),
        table_(static_cast<size_t>(rank.size)) {
    const std::scoped_lock lock(group_->mutex);
    group_->ranks.push_back(this);
  }

  // What is broken cannot be destroyed in order: that waits for the others.
  ~NcclRank() override {
    if (has_failed()) fail();
    {
      const std::scoped_lock lock(group_->mutex);
      std::erase(group_->ranks, this);
    }
    if (aborting_.joinable()) aborting_.join();
    if (comm_ != nullptr) nccl_->functions_->comm_destroy(comm_);
  }

  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  [[nodiscard]] int32_t rank() const override { return own_.rank; }

  [[nodiscard]] int32_t size() const override { return own_.size; }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    CHECK_LE(part.size(), own_.received.size() / table_.size());
    std::byte* const parts = own_.received.data();
    bool is_called = false;
    {
      const std::scoped_lock lock(mutex_);
      is_called = !failed_ && !is_broken() &&
                  nccl_->functions_->all_gather(
                      part.data(), parts, part.size(), kInt8, comm_, own_.stream) == kSuccess;
    }
    if (!is_called) {
      fail();
      return {};
    }
    for (size_t rank = 0; rank < table_.size(); ++rank) table_[rank] = parts + rank * part.size();
    return table_;
  }

  void fail() override {
    const std::scoped_lock lock(group_->mutex);
    for (NcclRank* const rank : group_->ranks) rank->begin_abort();
  }

  [[nodiscard]] bool has_failed() const override {
    if (failed_) return true;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() && is_broken();
  }

 private:
  // With the group's lock held. On a thread of its own, after whoever is inside of the library: the
  // last abort of a process waits until what was recorded with its communicators is gone.
  void begin_abort() {
    if (failed_.exchange(true)) return;
    aborting_ = std::thread([this] {
      Handle comm = nullptr;
      {
        const std::scoped_lock lock(mutex_);
        comm = std::exchange(comm_, nullptr);
      }
      if (comm != nullptr) nccl_->functions_->comm_abort(comm);
    });
  }

  // With the lock held.
  [[nodiscard]] bool is_broken() const {
    if (comm_ == nullptr) return true;
    Result error = kSuccess;
    const Result asked = nccl_->functions_->comm_get_async_error(comm_, &error);
    return asked != kSuccess || (error != kSuccess && error != kInProgress);
  }

  const std::shared_ptr<const Nccl> nccl_;
  const std::shared_ptr<NcclGroup> group_;
  std::atomic<bool> failed_ = false;
  std::thread aborting_;  // guarded by the group's lock
  // An abort frees what it names: nobody else may be inside of the library with it.
  mutable std::mutex mutex_;
  Handle comm_;  // guarded by mutex_; null: aborted
  const DeviceRank own_;
  std::vector<const std::byte*> table_;
};

Nccl::~Nccl() { dlclose(library_); }

Expected<std::shared_ptr<const Nccl>> Nccl::open(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return make_error(ErrorCode::kUnavailable, "NCCL: " + std::string(dlerror()));
  std::shared_ptr<Nccl> nccl(new Nccl());
  nccl->library_ = handle;
  auto functions = std::make_unique<Functions>();
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    void* const symbol = dlsym(handle, name);
    if (symbol == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(symbol);
  };
  find(functions->error_string, "ncclGetErrorString");
  find(functions->get_unique_id, "ncclGetUniqueId");
  find(functions->comm_init_rank, "ncclCommInitRank");
  find(functions->comm_destroy, "ncclCommDestroy");
  find(functions->comm_abort, "ncclCommAbort");
  find(functions->comm_get_async_error, "ncclCommGetAsyncError");
  find(functions->all_gather, "ncclAllGather");
  if (!missing.empty()) {
    return make_error(ErrorCode::kUnavailable, "NCCL: " + library + " has no " + missing);
  }
  nccl->functions_ = std::move(functions);
  return nccl;
}

Expected<NcclId> Nccl::make_id() const {
  NcclId id{};
  const Result result = functions_->get_unique_id(&id);
  if (result != kSuccess) return functions_->error("ncclGetUniqueId", result);
  return id;
}

Expected<std::unique_ptr<Communicator>> Nccl::connect(const std::shared_ptr<const Nccl>& nccl,
                                                      const NcclId& id,
                                                      const DeviceRank& rank,
                                                      std::shared_ptr<NcclGroup> group) {
  Handle comm = nullptr;
  const Result result = nccl->functions_->comm_init_rank(&comm, rank.size, id, rank.rank);
  if (result != kSuccess) return nccl->functions_->error("ncclCommInitRank", result);
  if (group == nullptr) group = std::make_shared<NcclGroup>();
  return std::make_unique<NcclRank>(nccl, std::move(group), comm, rank);
}

Expected<ConnectRank> make_nccl_group(const std::string& library) {
  SLUICE_TRY(const auto nccl, Nccl::open(library));
  SLUICE_TRY(const NcclId id, nccl->make_id());
  return [nccl, id, group = std::make_shared<NcclGroup>()](const DeviceRank& rank) {
    return Nccl::connect(nccl, id, rank, group);
  };
}

}  // namespace sluice
