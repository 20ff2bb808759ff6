// SPDX-License-Identifier: Apache-2.0
// A library with NCCL's interface for ranks in processes of one machine, which share a file in
// memory that the id names; threads of one process may play them. Communicators are made without
// waiting, and every second gather is still on its way when its call returns: a call meanwhile ends
// the process, and so does an abort while another thread is in a call that is not waiting for one.
// What is on a stream waits for the other ranks until its own is aborted, whether they live or not;
// an abort returns when nothing is on a stream or recorded any more.
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/fake_nccl_nodes.h"

namespace {

using sluice::testing::FakeEnqueue;
using sluice::testing::FakeNodeFaults;

constexpr int kSuccess = 0;
constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
constexpr int kInt8 = 0;
constexpr size_t kMostRanks = 8;
constexpr size_t kPiece = size_t{64} << 10;  // bytes of a part that travel at once

std::mutex faults_mutex;
FakeNodeFaults faults;  // guarded by faults_mutex, as is what follows
FakeEnqueue enqueue = nullptr;
int num_questions = 0;  // of the version

FakeEnqueue enqueue_of_all() {
  const std::scoped_lock lock(faults_mutex);
  return enqueue;
}

FakeNodeFaults faults_of(int rank) {
  const std::scoped_lock lock(faults_mutex);
  return rank == faults.rank ? faults : FakeNodeFaults{};
}

// What all ranks have in common. A new file's bytes are zeros.
struct Shared {
  std::atomic<uint32_t> num_joined;
  std::array<std::atomic<uint32_t>, kMostRanks> is_here;
  std::atomic<uint32_t> has_error;  // 1 + the rank that has it
  std::atomic<uint32_t> num_arrived;
  std::atomic<uint32_t> generation;  // futex
  std::array<std::array<std::byte, kPiece>, kMostRanks> parts;
};

// A rank's place among them, which what is on a stream shares with the communicator.
class Place {
 public:
  Place(Shared* shared, int rank, int size) : shared_(shared), rank_(rank), size_(size) {}

  ~Place() { munmap(shared_, sizeof(Shared)); }

  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  // Returns false if the place is taken.
  bool join() {
    if (shared_->is_here[index(rank_)].exchange(1) != 0) return false;
    ++shared_->num_joined;
    return true;
  }

  [[nodiscard]] bool is_aborted() const { return is_aborted_; }

  [[nodiscard]] bool is_whole() const {
    return shared_->num_joined == static_cast<uint32_t>(size_);
  }

  // 0: none.
  [[nodiscard]] int error() const {
    const uint32_t of = shared_->has_error;
    return of == 0 ? kSuccess : of == 1 + index(rank_) ? kInternalError : kRemoteError;
  }

  // A gather that runs ends soon; one that has not begun will touch no memory.
  void abort() { is_aborted_ = true; }

  // The bytes that a gather into `parts` writes.
  [[nodiscard]] std::span<std::byte> received(void* parts, size_t bytes) const {
    return {static_cast<std::byte*>(parts), index(size_) * bytes};
  }

  // Runs on a stream.
  void gather(const std::byte* part, std::byte* parts, size_t bytes) {
    if (is_aborted_) return;
    const FakeNodeFaults own = faults_of(rank_);
    ++num_gathers_;
    if (num_gathers_ == own.kills) raise(SIGKILL);
    if (num_gathers_ == own.stops) raise(SIGSTOP);
    if (num_gathers_ == own.bad_gather) {
      shared_->has_error = 1 + static_cast<uint32_t>(rank_);
      return;
    }
    for (size_t at = 0; at < bytes; at += kPiece) {
      const size_t count = std::min(kPiece, bytes - at);
      std::memcpy(shared_->parts[index(rank_)].data(), part + at, count);
      if (!meet()) return leave(parts, own.abort_ms);
      for (int rank = 0; rank < size_; ++rank) {
        std::memcpy(parts + index(rank) * bytes + at, shared_->parts[index(rank)].data(), count);
      }
      if (!meet()) return leave(parts, own.abort_ms);
    }
  }

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }

  // A gather that an abort ends may write until it has returned.
  static void leave(std::byte* parts, int after_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
    *parts = std::byte{0xEE};
  }

  // Returns false if this rank is aborted. Ranks sleep: they may have fewer cores than they are.
  bool meet() {
    constexpr timespec kNap = {.tv_sec = 0, .tv_nsec = 5'000'000};  // then an abort is seen
    const uint32_t own = shared_->generation;
    if (shared_->num_arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
      shared_->num_arrived = 0;
      ++shared_->generation;
      syscall(SYS_futex, &shared_->generation, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
    while (shared_->generation == own) {
      if (is_aborted_) return false;
      syscall(SYS_futex, &shared_->generation, FUTEX_WAIT, own, &kNap, nullptr, 0);
    }
    return true;
  }

  Shared* const shared_;
  const int rank_;
  const int size_;
  std::atomic<bool> is_aborted_ = false;
  int num_gathers_ = 0;  // on the stream
};

struct Comm {
  std::shared_ptr<Place> place;
  int rank = 0;
  int num_calls = 0;
  bool stays_away = false;
  bool is_beginning = false;
  std::atomic<bool> is_held = false;  // in a call that ends by an abort
  std::thread running = {};           // a gather without a stream
  std::atomic<bool> is_running = false;
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

Shared* map(int file) {
  void* const at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Shared*>(at);
}

}  // namespace

extern "C" {

struct NcclId {
  int64_t process;
  int64_t file;
  char rest[112];
};

struct NcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

void fake_nccl_nodes_set(const FakeNodeFaults* wanted, FakeEnqueue wanted_enqueue) {
  const std::scoped_lock lock(faults_mutex);
  faults = *wanted;
  enqueue = wanted_enqueue;
}

int ncclGetVersion(int* version) {
  const std::scoped_lock lock(faults_mutex);
  *version = 23007 + (faults.versions != 0 ? ++num_questions : 0);
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited" : "internal error";
}

const char* ncclGetLastError(Comm*) { return "of this test"; }

int ncclCommInitAll(Comm**, int, const int*) { return kInternalError; }

// The file lives as long as this process or a rank that has it.
int ncclGetUniqueId(NcclId* id) {
  const int file = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) return kInternalError;
  *id = {.process = getpid(), .file = file, .rest = {}};
  return kSuccess;
}

int ncclCommInitRankConfig(Comm** made, int size, NcclId id, int rank, NcclConfig* config) {
  const bool is_right = size >= 2 && size <= static_cast<int>(kMostRanks) && rank >= 0 &&
                        rank < size && config->magic == 0xcafebeef && config->version >= 21400 &&
                        config->size >= 48 && config->blocking == 0;
  if (!is_right) return kInvalidArgument;
  const FakeNodeFaults own = faults_of(rank);
  if (own.refuses_to_make != 0) return kInternalError;
  const std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  Shared* const shared = map(file);
  close(file);
  if (shared == nullptr) return kInternalError;
  auto place = std::make_shared<Place>(shared, rank, size);
  if (own.stays_away == 0 && !place->join()) return kInvalidArgument;
  *made = new Comm{.place = std::move(place), .rank = rank, .stays_away = own.stays_away != 0};
  return kInProgress;
}

int ncclCommGetAsyncError(Comm* comm, int* error) {
  const Use use(comm);
  // Where threads play ranks, another one comes in between.
  if (enqueue_of_all() == nullptr) std::this_thread::yield();
  const bool is_busy = std::exchange(comm->is_beginning, false) || comm->is_running ||
                       comm->stays_away || !comm->place->is_whole();
  *error = comm->place->error();
  if (*error == kSuccess && is_busy) *error = kInProgress;
  return kSuccess;
}

int ncclAllGather(const void* part, void* parts, size_t count, int type, Comm* comm, void* stream) {
  const Use use(comm);
  if (comm->is_beginning || comm->is_running || !comm->place->is_whole()) std::abort();
  const FakeNodeFaults own = faults_of(comm->rank);
  if (type != kInt8 || ++comm->num_calls == own.bad_call) return kInternalError;
  if (comm->num_calls == own.endless_call) {
    comm->is_held = true;
    while (!comm->place->is_aborted()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return kInternalError;
  }
  auto run = [place = comm->place, part, parts, count] {
    place->gather(static_cast<const std::byte*>(part), static_cast<std::byte*>(parts), count);
  };
  if (const FakeEnqueue put = enqueue_of_all(); put != nullptr) {
    put(static_cast<CUstream_st*>(stream), run, comm->place->received(parts, count));
    comm->is_beginning = comm->num_calls % 2 == 0;
    return comm->is_beginning ? kInProgress : kSuccess;
  }
  if (comm->running.joinable()) comm->running.join();
  comm->is_running = true;
  comm->running = std::thread([comm, run] {
    run();
    comm->is_running = false;
  });
  return kInProgress;
}

int ncclCommAbort(Comm* comm) {
  const bool is_held = comm->is_held;
  if (comm->num_users != (is_held ? 1 : 0)) std::abort();
  comm->place->abort();
  while (is_held && comm->num_users != 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(faults_of(comm->rank).abort_ms));
  if (comm->running.joinable()) comm->running.join();
  while (comm->place.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (comm->num_users != 0) std::abort();
  delete comm;
  return kSuccess;
}

int ncclCommDestroy(Comm*) { return kInternalError; }

int ncclSend(const void*, size_t, int, int, Comm*, void*) { return kInternalError; }

int ncclRecv(void*, size_t, int, int, Comm*, void*) { return kInternalError; }

}  // extern "C"
