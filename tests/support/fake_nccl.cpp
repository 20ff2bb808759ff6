// SPDX-License-Identifier: Apache-2.0
// A library with NCCL's interface for ranks that are threads, whose device memory is the process's
// and whose streams run at once. Parts of 13 bytes are an error, parts of 14 an error that is found
// later; with parts of 15 a call returns at once, and they never arrive. The same device twice is
// refused. Giving back a communicator that another thread is using ends the process.
//
// Communicators of pairs (tests/support/fake_nccl.h) are made without waiting. An end's first send
// or receive stays on its way into the stream until the other end has called its own, since they
// connect then, and every second one until it is asked for; a call meanwhile ends the process. So
// does a receive, other than the first, that is called before its send is in the stream: a GPU
// would wait, on multiprocessors that steps want. A pair's payloads go in order, when both sides
// are present; aborting one end leaves the other.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/fake_nccl.h"

namespace {

using sluice::testing::FakeNcclBehavior;
using sluice::testing::FakeNcclStream;

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 4;
constexpr int kInternalError = 3;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
constexpr int kInt8 = 0;
constexpr size_t kBadCount = 13;
constexpr size_t kLaterBadCount = 14;
constexpr size_t kQueuedCount = 15;

struct Group {
  explicit Group(int num_ranks) : size(num_ranks), parts(static_cast<size_t>(num_ranks)) {}

  // Returns false if aborted.
  bool meet() {
    std::unique_lock lock(mutex);
    const uint64_t own = generation;
    if (++arrived == size) {
      arrived = 0;
      ++generation;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return generation != own || is_aborted; });
    return generation != own;
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<const void*> parts;
  int arrived = 0;
  uint64_t generation = 0;
  bool is_aborted = false;
  std::atomic<bool> has_error = false;
};

std::mutex behavior_mutex;
FakeNcclBehavior behavior;  // guarded by behavior_mutex

FakeNcclBehavior behavior_now() {
  const std::scoped_lock lock(behavior_mutex);
  return behavior;
}

struct Payload {
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
  FakeNcclStream* stream = nullptr;
};

// A pair of two ranks.
struct Pair {
  // Exchanges what both ranks have put in, unless it is held.
  void exchange() {
    if (behavior_now().holds) return;
    for (size_t sender = 0; sender < 2; ++sender) {
      std::deque<Payload>& sent = sends[sender];
      std::deque<Payload>& received = receives[1 - sender];
      while (!sent.empty() && !received.empty() && !has_error) {
        has_error = sent.front().bytes != received.front().bytes ||
                    behavior_now().breaks_after == num_exchanged;
        if (has_error) break;
        std::memcpy(received.front().to, sent.front().from, sent.front().bytes);
        ++sent.front().stream->num_done;
        ++received.front().stream->num_done;
        sent.pop_front();
        received.pop_front();
        ++num_exchanged;
      }
    }
  }

  std::mutex mutex;
  std::array<bool, 2> is_here{};  // this and the rest: guarded by mutex
  std::array<std::deque<Payload>, 2> sends;
  std::array<std::deque<Payload>, 2> receives;
  std::array<bool, 2> has_called{};   // an operation, by rank
  std::array<int, 2> num_sends{};     // in their stream so far, by rank
  std::array<int, 2> num_receives{};  // called so far
  int num_exchanged = 0;
  bool has_error = false;
};

std::mutex pairs_mutex;
std::map<uint64_t, std::shared_ptr<Pair>> pairs;  // by id; guarded by pairs_mutex
uint64_t last_id = 0;                             // guarded by pairs_mutex

struct Comm {
  std::shared_ptr<Group> group;
  int rank;
  std::shared_ptr<Pair> pair = nullptr;
  int asks_left = 0;  // calls until it is ready
  int num_payloads = 0;
  bool is_beginning = false;  // the last payload is on its way into the stream
  bool is_sending = false;    // that is a send
  std::atomic<int> num_users = 0;
};

// A scope in which a call uses a communicator.
class Use {
 public:
  explicit Use(Comm* comm) : comm_(comm) { ++comm_->num_users; }

  ~Use() { --comm_->num_users; }

  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  Comm* comm_;
};

// Aborts if a pair's call comes from the thread that must not wait.
void check_thread() {
  const uint64_t own = std::hash<std::thread::id>()(std::this_thread::get_id());
  if (own == behavior_now().owner) std::abort();
}

// The last payload is in its stream. The pair is locked.
void note_begun(Comm* comm) {
  comm->is_beginning = false;
  comm->pair->num_sends[static_cast<size_t>(comm->rank)] += comm->is_sending ? 1 : 0;
}

int put(Comm* comm, const Payload& payload) {
  check_thread();
  const Use use(comm);
  if (comm->is_beginning || payload.stream == nullptr) std::abort();
  const std::scoped_lock lock(comm->pair->mutex);
  const auto rank = static_cast<size_t>(comm->rank);
  const bool is_first = comm->num_payloads++ == 0;
  comm->is_sending = payload.from != nullptr;
  if (!comm->is_sending && !is_first &&
      comm->pair->num_receives[rank] >= comm->pair->num_sends[1 - rank]) {
    std::abort();
  }
  comm->pair->num_receives[rank] += comm->is_sending ? 0 : 1;
  (comm->is_sending ? comm->pair->sends : comm->pair->receives)[rank].push_back(payload);
  comm->pair->has_called[rank] = true;
  ++payload.stream->num_begun;
  comm->is_beginning = is_first || comm->num_payloads % 2 == 0;
  if (!comm->is_beginning) note_begun(comm);
  comm->pair->exchange();
  return comm->is_beginning ? kInProgress : kSuccess;
}

int ask_pair(Comm* comm, int* error) {
  check_thread();
  const Use use(comm);
  const std::scoped_lock lock(comm->pair->mutex);
  comm->pair->exchange();
  const bool is_whole = comm->pair->is_here[0] && comm->pair->is_here[1];
  const bool is_connected = comm->pair->has_called[0] && comm->pair->has_called[1];
  const bool is_busy = !is_whole || comm->asks_left > 0 || comm->is_beginning;
  if (is_whole && comm->asks_left > 0) --comm->asks_left;
  if (comm->is_beginning && is_connected) note_begun(comm);
  *error = comm->pair->has_error ? kRemoteError : is_busy ? kInProgress : kSuccess;
  return kSuccess;
}

void abort_pair(Comm* comm) {
  check_thread();
  std::this_thread::sleep_for(std::chrono::milliseconds(behavior_now().abort_ms));
  const std::scoped_lock lock(comm->pair->mutex);
  for (auto* const payloads : {&comm->pair->sends, &comm->pair->receives}) {
    auto& own = (*payloads)[static_cast<size_t>(comm->rank)];
    for (const Payload& payload : own) ++payload.stream->num_done;
    own.clear();
  }
}

void give_back(Comm* comm) {
  if (comm->num_users != 0) std::abort();
  delete comm;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 23007;
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kInvalidArgument ? "invalid argument" : "remote process exited";
}

const char* ncclGetLastError(Comm* comm) { return comm == nullptr ? "a device twice" : ""; }

int ncclCommInitAll(Comm** comms, int size, const int* devices) {
  for (int rank = 0; rank < size; ++rank) {
    if (std::count(devices, devices + size, devices[rank]) != 1) return kInvalidArgument;
  }
  const auto group = std::make_shared<Group>(size);
  for (int rank = 0; rank < size; ++rank) comms[rank] = new Comm{.group = group, .rank = rank};
  return kSuccess;
}

int ncclCommDestroy(Comm* comm) {
  give_back(comm);
  return kSuccess;
}

int ncclCommAbort(Comm* comm) {
  if (comm->pair != nullptr) {
    abort_pair(comm);
  } else {
    // Notifies under the lock: the next owner may be the last to know the group.
    const std::scoped_lock lock(comm->group->mutex);
    comm->group->is_aborted = true;
    comm->group->changed.notify_all();
  }
  give_back(comm);
  return kSuccess;
}

int ncclCommGetAsyncError(Comm* comm, int* error) {
  if (comm->pair != nullptr) return ask_pair(comm, error);
  const Use use(comm);
  std::this_thread::yield();  // lets another thread come in between
  const std::scoped_lock lock(comm->group->mutex);
  *error = comm->group->is_aborted || comm->group->has_error ? kRemoteError : kSuccess;
  return kSuccess;
}

int ncclAllGather(const void* part, void* parts, size_t count, int type, Comm* comm, void*) {
  const Use use(comm);
  if (count == kBadCount || type != kInt8) return kInvalidArgument;
  Group& group = *comm->group;
  if (count == kLaterBadCount) {
    group.has_error = true;
    return kSuccess;
  }
  if (count == kQueuedCount) return kSuccess;
  group.parts[static_cast<size_t>(comm->rank)] = part;
  if (!group.meet()) return kRemoteError;
  for (size_t rank = 0; rank < group.parts.size(); ++rank) {
    std::memcpy(static_cast<std::byte*>(parts) + rank * count, group.parts[rank], count);
  }
  return group.meet() ? kSuccess : kRemoteError;
}

struct NcclId {
  uint64_t number;
  char rest[120];
};

struct NcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

int ncclGetUniqueId(NcclId* id) {
  check_thread();
  const std::scoped_lock lock(pairs_mutex);
  *id = {.number = ++last_id, .rest = {}};
  return kSuccess;
}

int ncclCommInitRankConfig(Comm** made, int size, NcclId id, int rank, NcclConfig* config) {
  check_thread();
  const bool is_right = size == 2 && (rank == 0 || rank == 1) && config->magic == 0xcafebeef &&
                        config->version >= 21400 && config->size >= 48 && config->blocking == 0;
  if (!is_right) return kInvalidArgument;
  if (behavior_now().refuses_to_make) return kInternalError;
  const std::scoped_lock lock(pairs_mutex);
  std::shared_ptr<Pair>& pair = pairs[id.number];
  if (pair == nullptr) pair = std::make_shared<Pair>();
  const std::scoped_lock pair_lock(pair->mutex);
  if (pair->is_here[static_cast<size_t>(rank)]) return kInvalidArgument;
  pair->is_here[static_cast<size_t>(rank)] = true;
  *made =
      new Comm{.group = nullptr, .rank = rank, .pair = pair, .asks_left = behavior_now().init_asks};
  return kInProgress;
}

int ncclSend(const void* from, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (type != kInt8 || peer != 1 - comm->rank || from == nullptr) return kInvalidArgument;
  return put(comm, {.from = from, .bytes = count, .stream = static_cast<FakeNcclStream*>(stream)});
}

int ncclRecv(void* to, size_t count, int type, int peer, Comm* comm, void* stream) {
  if (type != kInt8 || peer != 1 - comm->rank || to == nullptr) return kInvalidArgument;
  return put(comm, {.to = to, .bytes = count, .stream = static_cast<FakeNcclStream*>(stream)});
}

void fake_nccl_set(const FakeNcclBehavior* wanted) {
  const std::scoped_lock lock(behavior_mutex);
  behavior = *wanted;
}

}  // extern "C"
