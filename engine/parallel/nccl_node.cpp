// SPDX-License-Identifier: Apache-2.0
#include "engine/parallel/nccl_node.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/core/hex.h"
#include "engine/core/log.h"
#include "engine/parallel/group_values.h"
#include "engine/parallel/rank_group.h"
#include "kernels/device_memory.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::kNcclInProgress;
using kernels::kNcclSuccess;
using kernels::NcclComm;
using kernels::NcclLibrary;
using kernels::NcclResult;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kPollInterval{100};
constexpr milliseconds kConnectInterval{2};
constexpr seconds kRank0Speaks{10};  // before another rank gives up connecting
constexpr seconds kCallerLeaves{2};  // before an abort no longer waits for a call
constexpr NcclResult kSystemError = 2;
constexpr NcclResult kAborted = 3;  // ncclInternalError
constexpr NcclResult kRemoteError = 6;

bool is_error(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

std::string name_of(const RankGroup& group) { return "rank " + std::to_string(group.rank()); }

// Another rank's failure has these errors, too, and that rank says why.
void fail_with(RankGroup& group, NcclResult error, const std::string& what) {
  const std::string why = what + "; NCCL_DEBUG=INFO says more";
  const bool may_be_others = error == kSystemError || error == kRemoteError;
  may_be_others ? group.fail_unless_told(why) : group.fail(why);
}

// A communicator for the thread that calls and the one that watches, which may free it.
class SharedComm {
 public:
  explicit SharedComm(const NcclLibrary& library) : library_(library) {}

  // Begins to connect: only the state says when that is done.
  NcclResult begin(int32_t size, const kernels::NcclId& id, int32_t rank) {
    const std::scoped_lock lock(mutex_);
    kernels::NcclConfig config;
    config.blocking = 0;
    NcclComm made = nullptr;
    const NcclResult begun = library_.comm_init_rank_config(&made, size, id, rank, &config);
    comm_ = made;
    return begun;
  }

  NcclResult all_gather(std::span<const std::byte> part, const DeviceRank& own) {
    const std::scoped_lock lock(mutex_);
    const NcclComm comm = comm_;
    if (comm == nullptr) return kAborted;
    return library_.all_gather(
        part.data(), own.received.data(), part.size(), kernels::kNcclInt8, comm, own.stream);
  }

  NcclResult state() {
    const std::scoped_lock lock(mutex_);
    return ask();
  }

  // Empty while another thread is in a call.
  std::optional<NcclResult> state_now() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    return lock.owns_lock() ? std::optional(ask()) : std::nullopt;
  }

  // The last error is the library's, whatever the communicator.
  [[nodiscard]] std::string text_of(NcclResult result) const {
    const char* const more = library_.last_error(nullptr);
    std::string text = library_.error_string(result);
    if (more != nullptr && *more != '\0') text += std::string(": ") + more;
    return text;
  }

  // A call that waits for the device, which waits for a rank that is gone, ends by the abort alone:
  // NCCL first sets the flag at which all that is on the device returns.
  void abort() {
    const auto end = Clock::now() + kCallerLeaves;
    std::unique_lock lock(mutex_, std::try_to_lock);
    while (!lock.owns_lock() && Clock::now() < end) {
      poll(nullptr, 0, 1);
      (void)lock.try_lock();
    }
    const NcclComm comm = comm_.exchange(nullptr);
    // The abort may wait until recorded steps are gone, whose thread may be on its way in here.
    if (lock.owns_lock()) lock.unlock();
    if (comm != nullptr) library_.comm_abort(comm);
  }

 private:
  NcclResult ask() {
    const NcclComm comm = comm_;
    if (comm == nullptr) return kAborted;
    NcclResult found = kNcclSuccess;
    const NcclResult asked = library_.comm_get_async_error(comm, &found);
    return asked == kNcclSuccess ? found : asked;
  }

  const NcclLibrary library_;
  std::mutex mutex_;                      // held in every call of the library but the abort's
  std::atomic<NcclComm> comm_ = nullptr;  // null: not begun, or aborted
};

class NcclNode final : public Communicator {
 public:
  NcclNode(const NcclNodeOptions& options,
           RankGroup& group,
           std::unique_ptr<SharedComm> comm,
           const DeviceRank& own)
      : options_(options),
        group_(group),
        comm_(std::move(comm)),
        own_(own),
        table_(static_cast<size_t>(group.size())),
        watch_([this](const std::stop_token& stop) { watch(stop); }) {}

  ~NcclNode() override;
  NcclNode(const NcclNode&) = delete;
  NcclNode& operator=(const NcclNode&) = delete;

  // Waits until NCCL has connected this rank, and on rank 0 all.
  Expected<void> connect();

  [[nodiscard]] int32_t rank() const override { return group_.rank(); }

  [[nodiscard]] int32_t size() const override { return group_.size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (has_failed()) return {};
    CHECK_LE(part.size(), own_.received.size() / table_.size());
    NcclResult result = comm_->all_gather(part, own_);
    const auto end = Clock::now() + RankGroup::kExchange;
    while (result == kNcclInProgress && !has_failed()) {
      std::this_thread::yield();
      result = comm_->state();
      if (Clock::now() < end) continue;
      group_.fail(name_of(group_) + ": NCCL has not begun a gather within " +
                  std::to_string(RankGroup::kExchange.count()) + " s");
    }
    if (!has_failed() && is_error(result)) report(result);
    if (has_failed()) return {};
    for (size_t rank = 0; rank < table_.size(); ++rank) {
      table_[rank] = own_.received.data() + rank * part.size();
    }
    return table_;
  }

  void fail() override { group_.fail(name_of(group_) + ": it failed"); }

  [[nodiscard]] bool has_failed() const override { return group_.is_over(); }

 private:
  // Where a rank is on its way into the communicator.
  enum class Place : uint8_t { kOutside, kBegun, kConnected };

  void hear_places(std::vector<Place>& places);
  [[nodiscard]] std::string missing(std::span<const Place> places, Place last);

  void report(NcclResult result) {
    fail_with(group_, result, name_of(group_) + ": NCCL: " + comm_->text_of(result));
  }

  void watch(const std::stop_token& stop);

  const NcclNodeOptions options_;
  RankGroup& group_;
  const std::unique_ptr<SharedComm> comm_;
  const DeviceRank own_;
  std::vector<const std::byte*> table_;
  std::jthread watch_;  // last: starts when the rest is there
};

// Returns whether a stop was asked for within the time.
bool is_stopped(const std::stop_token& stop, milliseconds within) {
  std::mutex mutex;
  std::condition_variable_any asked;
  std::unique_lock lock(mutex);
  asked.wait_for(lock, stop, within, [] { return false; });
  return stop.stop_requested();
}

// Looks for errors that no call returns until the group or this rank has an end, and then aborts.
void NcclNode::watch(const std::stop_token& stop) {
  while (!has_failed() && !is_stopped(stop, kPollInterval)) {
    const std::optional<NcclResult> state = comm_->state_now();
    if (state && is_error(*state)) report(*state);
  }
  comm_->abort();  // which waits until recorded work is destroyed
}

// While the abort lasts, the GPU may use memory that is about to be freed.
NcclNode::~NcclNode() {
  const std::jthread deadline([this](const std::stop_token& aborted) {
    if (is_stopped(aborted, options_.abort_within)) return;
    log_event(LogLevel::kError, "nccl_abort_stuck", "rank", rank());
    std::_Exit(EXIT_FAILURE);
  });
  watch_.request_stop();
  watch_.join();
}

Expected<void> NcclNode::connect() {
  const seconds within = options_.within;
  const bool is_first = rank() == 0;
  const auto deadline = Clock::now() + within + (is_first ? seconds(0) : kRank0Speaks);
  std::vector<Place> places(table_.size(), Place::kOutside);
  Place& own = places[static_cast<size_t>(rank())];
  const auto go_to = [&](Place place) {
    own = place;
    if (!is_first) (void)send_value(group_, 0, place);
  };
  go_to(Place::kBegun);
  const auto is_there = [](Place place) { return place == Place::kConnected; };
  while (is_first ? !std::ranges::all_of(places, is_there) : !is_there(own)) {
    if (is_first) hear_places(places);
    if (!is_there(own) && comm_->state() == kNcclSuccess) go_to(Place::kConnected);
    if (has_failed()) return group_error(group_);
    if (Clock::now() > deadline) {
      std::string why = name_of(group_) + ": NCCL has not connected the GPUs within " +
                        std::to_string(within.count()) + " s (--rank-init-timeout)";
      if (is_first) {
        const std::string outside = missing(places, Place::kOutside);
        why += outside.empty() ? "; it still connects " + missing(places, Place::kBegun)
                               : "; it has not begun on " + outside;
      }
      group_.fail_unless_told(why +
                              ". All ports must be open between the machines, at the "
                              "interface of NCCL_SOCKET_IFNAME; NCCL_DEBUG=INFO says more");
      return group_error(group_);
    }
    poll(nullptr, 0, static_cast<int>(kConnectInterval.count()));
  }
  return {};
}

void NcclNode::hear_places(std::vector<Place>& places) {
  for (int32_t other = 1; other < size(); ++other) {
    Place& place = places[static_cast<size_t>(other)];
    if (place == Place::kConnected || !group_.has_sent(other)) continue;
    if (const Expected<Place> heard = receive_value<Place>(group_, other); heard) place = *heard;
  }
}

// The ranks that have come no further than `last`.
std::string NcclNode::missing(std::span<const Place> places, Place last) {
  std::string list;
  for (int32_t other = 0; other < size(); ++other) {
    if (places[static_cast<size_t>(other)] > last) continue;
    list += (list.empty() ? "" : ", ") + (other == 0 ? "rank 0" : group_.name(other));
  }
  return list;
}

// What ranks compare before they connect.
struct Facts {
  int32_t version = 0;
  std::array<char, 128> device = {};
  kernels::DeviceId id = {};
  int32_t may_share = 0;  // whether NCCL lets this rank share its GPU

  [[nodiscard]] std::string name() const { return {device.data(), strnlen(device.data(), 128)}; }
};

static_assert(std::has_unique_object_representations_v<Facts>);

// Tells whether NCCL lets this process share its GPU; it reads the variable like this.
bool may_share_gpu() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::strtoll(value, nullptr, 0) != 0;
}

// Returns what nvidia-smi -L prints after "GPU-".
std::string uuid_text(const kernels::DeviceId& id) {
  std::array<uint8_t, sizeof(id)> bytes;
  std::memcpy(bytes.data(), id.data(), sizeof(id));
  std::string text = to_hex(bytes);
  for (const size_t at : {20, 16, 12, 8}) text.insert(at, "-");
  return text;
}

std::string version_text(int32_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Rank 0 hears what the others have; a difference fails the group, and a GPU that two have.
Expected<void> compare_facts(RankGroup& group, const Facts& own) {
  if (group.rank() != 0) return send_value(group, 0, own);
  std::vector<Facts> all = {own};
  for (int32_t other = 1; other < group.size(); ++other) {
    SLUICE_TRY(const Facts found, receive_value<Facts>(group, other));
    const auto differs = [&](const std::string& what, const std::string& a, const std::string& b) {
      group.fail(group.name(other) + ": found " + what + a + ", rank 0 has " + b);
      return group_error(group);
    };
    if (found.version != own.version) {
      return differs("NCCL ", version_text(found.version), version_text(own.version));
    }
    if (found.name() != own.name()) return differs("", found.name(), own.name());
    const auto same = std::ranges::find(all, found.id, &Facts::id);
    if (same != all.end() && (same->may_share == 0 || found.may_share == 0)) {
      const auto rank = static_cast<int32_t>(same - all.begin());
      group.fail(group.name(other) + ": found GPU " + uuid_text(found.id) + ", which " +
                 (rank == 0 ? "rank 0" : group.name(rank)) +
                 " has: CUDA_VISIBLE_DEVICES tells each process of a machine its GPU "
                 "(NCCL_MULTI_RANK_GPU_ENABLE=1 on all lets them share one)");
      return group_error(group);
    }
    all.push_back(found);
  }
  return {};
}

// Rank 0 makes the id by which NCCL's own connections find each other, when all have loaded; the
// others have it then.
Expected<kernels::NcclId> share_id(const NcclLibrary& library, RankGroup& group) {
  if (group.rank() != 0) return receive_value<kernels::NcclId>(group, 0, kWhileLoading);
  kernels::NcclId id;
  if (const NcclResult made = library.get_unique_id(&id); made != kNcclSuccess) {
    group.fail("rank 0: NCCL makes no id: " + std::string(library.error_string(made)) + ": " +
               library.last_error(nullptr));
    return group_error(group);
  }
  for (int32_t other = 1; other < group.size(); ++other) {
    SLUICE_TRY_VOID(send_value(group, other, id));
  }
  return id;
}

Expected<std::unique_ptr<Communicator>> connect_node(const NcclLibrary& library,
                                                     const NcclNodeOptions& options,
                                                     RankGroup& group,
                                                     const DeviceRank& own) {
  Facts facts;
  if (const NcclResult asked = library.get_version(&facts.version); asked != kNcclSuccess) {
    group.fail(name_of(group) + ": NCCL has no version: " + library.error_string(asked));
  }
  std::ranges::copy(own.name.substr(0, facts.device.size()), facts.device.begin());
  facts.id = own.memory->id();
  facts.may_share = may_share_gpu() ? 1 : 0;
  SLUICE_TRY_VOID(compare_facts(group, facts));
  SLUICE_TRY(const kernels::NcclId id, share_id(library, group));
  auto comm = std::make_unique<SharedComm>(library);
  const NcclResult begun = comm->begin(group.size(), id, group.rank());
  if (is_error(begun)) {
    fail_with(group, begun, name_of(group) + ": NCCL cannot connect: " + comm->text_of(begun));
  }
  // Aborts if that fails.
  auto node = std::make_unique<NcclNode>(options, group, std::move(comm), own);
  SLUICE_TRY_VOID(node->connect());
  log_event(LogLevel::kInfo, "ranks_connected", "by", "NCCL " + version_text(facts.version));
  return std::unique_ptr<Communicator>(std::move(node));
}

}  // namespace

void prepare_nccl_environment() {
  if (std::getenv("NCCL_RAS_ADDR") == nullptr) setenv("NCCL_RAS_ENABLE", "0", /*replace=*/0);
}

Expected<ConnectNode> open_nccl_node(const NcclNodeOptions& options) {
  SLUICE_TRY(const NcclLibrary library, NcclLibrary::open(options.library));
  return [library, options](RankGroup& group, const DeviceRank& own) {
    return connect_node(library, options, group, own);
  };
}

}  // namespace sluice
