// SPDX-License-Identifier: Apache-2.0
// Speed of copies on a machine with one GPU: through NCCL from a rank to itself, through CUDA IPC
// from one process to another, and from and to pinned host memory; and how long a link takes to
// end beside a kernel that waits, and a launch beside that. A line of JSON each: {"what", "bytes",
// "us", "gb_per_second"}, or {"failed", "why"}, which makes the exit code 1.
//   gpu_links          all measurements
//   gpu_links reader   the second process: the handle comes on stdin
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "bench/gpu_rig.h"
#include "bench/gpu_wait.h"

namespace sluice::bench {
namespace {

constexpr int kRepeats = 20;
constexpr int64_t kLargest = int64_t{256} << 20;
constexpr int kPattern = 0x5A;

int num_failed = 0;

void print_figure(const char* what, int64_t bytes, double us) {
  std::printf("{\"what\": \"%s\", \"bytes\": %lld, \"us\": %.3f, \"gb_per_second\": %.3f}\n",
              what,
              static_cast<long long>(bytes),
              us,
              static_cast<double>(bytes) / us / 1e3);
  std::fflush(stdout);
}

void print_failure(const char* what, const std::string& why) {
  std::printf("{\"failed\": \"%s\", \"why\": \"%s\"}\n", what, why.c_str());
  std::fflush(stdout);
  ++num_failed;
}

// Returns the microseconds of one of kRepeats pieces of work in a row, by the GPU's clock.
double time_of(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  work();
  must(cudaEventRecord(begin, stream), "cudaEventRecord");
  for (int i = 0; i < kRepeats; ++i) work();
  must(cudaEventRecord(end, stream), "cudaEventRecord");
  must(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0;
  must(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  must(cudaEventDestroy(begin), "cudaEventDestroy");
  must(cudaEventDestroy(end), "cudaEventDestroy");
  return 1e3 * static_cast<double>(ms) / kRepeats;
}

void* allocate(int64_t bytes, int value) {
  void* data = nullptr;
  must(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc");
  must(cudaMemset(data, value, static_cast<size_t>(bytes)), "cudaMemset");
  return data;
}

bool has_pattern(const void* data, int64_t bytes) {
  std::vector<uint8_t> got(static_cast<size_t>(bytes));
  must(cudaMemcpy(got.data(), data, got.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (const uint8_t byte : got) {
    if (byte != kPattern) return false;
  }
  return true;
}

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

// Times the end of a link while a kernel of another queue waits, as NCCL's do for a peer that has
// stopped, and the longest piece of work that an engine's thread would have launched and waited for
// meanwhile.
void time_end(const std::string& what, const std::function<void()>& end) {
  constexpr auto kKernelWaits = std::chrono::milliseconds(100);
  void* const data = allocate(64, 0);
  uint32_t* word = nullptr;
  must(cudaMallocHost(&word, sizeof(*word)), "cudaMallocHost");
  const std::atomic_ref<uint32_t> is_told(*word);
  is_told = 0;
  std::atomic<bool> has_begun = false;
  std::atomic<bool> is_over = false;
  double longest = 0;
  std::thread engine([&] {
    cudaStream_t const stream = new_stream();
    while (!is_over) {
      const Clock::time_point begin = Clock::now();
      must(cudaMemsetAsync(data, 0, 64, stream), "cudaMemsetAsync");
      must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
      if (has_begun) longest = std::max(longest, us_since(begin));
      has_begun = true;
    }
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
  });
  while (!has_begun) std::this_thread::yield();
  cudaStream_t const waiting = new_stream();
  launch_wait(waiting, word);
  std::thread peer([&] {
    std::this_thread::sleep_for(kKernelWaits);
    is_told = 1;
  });
  const Clock::time_point begin = Clock::now();
  end();
  print_figure((what + ", its end beside a kernel that waits 100 ms").c_str(), 0, us_since(begin));
  is_over = true;
  engine.join();
  print_figure((what + ", the longest launch beside its end").c_str(), 0, longest);
  peer.join();
  must(cudaStreamSynchronize(waiting), "cudaStreamSynchronize");
  must(cudaStreamDestroy(waiting), "cudaStreamDestroy");
  must(cudaFreeHost(word), "cudaFreeHost");
  must(cudaFree(data), "cudaFree");
}

// Copies device to device from the memory of another process.
int read_from_other_process() {
  cudaIpcMemHandle_t handle;
  if (read(STDIN_FILENO, &handle, sizeof(handle)) != ssize_t{sizeof(handle)}) return 1;
  void* from = nullptr;
  must(cudaIpcOpenMemHandle(&from, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  void* const to = allocate(kLargest, 0);
  for (const int64_t bytes : {int64_t{1} << 20, int64_t{16} << 20, kLargest}) {
    const double us = time_of(nullptr, [&] {
      must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, nullptr),
           "cudaMemcpyAsync");
    });
    print_figure("CUDA IPC, two processes of one GPU", bytes, us);
  }
  if (!has_pattern(to, kLargest)) print_failure("CUDA IPC", "other bytes than were written");
  must(cudaFree(to), "cudaFree");
  time_end("CUDA IPC", [&] { must(cudaIpcCloseMemHandle(from), "cudaIpcCloseMemHandle"); });
  return num_failed == 0 ? 0 : 1;
}

void measure_ipc() {
  void* const data = allocate(kLargest, kPattern);
  cudaIpcMemHandle_t handle;
  must(cudaIpcGetMemHandle(&handle, data), "cudaIpcGetMemHandle");
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  int ends[2];
  if (pipe(ends) != 0) return print_failure("CUDA IPC", "no pipe");
  const pid_t reader = fork();
  if (reader == 0) {  // between fork and exec nothing of CUDA is used
    dup2(ends[0], STDIN_FILENO);
    close(ends[1]);
    execl("/proc/self/exe", "gpu_links", "reader", static_cast<char*>(nullptr));
    _exit(127);
  }
  close(ends[0]);
  const bool written = write(ends[1], &handle, sizeof(handle)) == ssize_t{sizeof(handle)};
  close(ends[1]);
  int status = 0;
  waitpid(reader, &status, 0);
  if (!written || status != 0) {
    print_failure("CUDA IPC", "the reader ended with " + std::to_string(status));
  }
  must(cudaFree(data), "cudaFree");
}

void measure_host() {
  void* const data = allocate(kLargest, kPattern);
  void* host = nullptr;
  must(cudaMallocHost(&host, static_cast<size_t>(kLargest)), "cudaMallocHost");
  const auto copy = [&](void* to, const void* from) {
    return time_of(nullptr, [=] {
      must(cudaMemcpyAsync(to, from, static_cast<size_t>(kLargest), cudaMemcpyDefault, nullptr),
           "cudaMemcpyAsync");
    });
  };
  print_figure("to pinned memory of the host", kLargest, copy(host, data));
  print_figure("from pinned memory of the host", kLargest, copy(data, host));
  must(cudaFreeHost(host), "cudaFreeHost");
  must(cudaFree(data), "cudaFree");
}

// NCCL's interface, unchanged since 2.7 by its manual.
struct Nccl {
  struct UniqueId {
    char bytes[128];
  };

  using Comm = void*;
  static constexpr int kInt8 = 0;

  explicit Nccl(void* library) {
    const auto find = [&](auto& function, const char* symbol) {
      void* const found = dlsym(library, symbol);
      if (found == nullptr) missing = symbol;
      std::memcpy(&function, &found, sizeof(found));
    };
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init_rank, "ncclCommInitRank");
    find(comm_abort, "ncclCommAbort");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
  }

  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank)(Comm* comm, int size, UniqueId id, int rank);
  int (*comm_abort)(Comm comm);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* p, size_t count, int type, int to, Comm comm, cudaStream_t stream);
  int (*receive)(void* p, size_t count, int type, int from, Comm comm, cudaStream_t stream);
  std::string missing;
};

// Grouped send and receive of one rank.
void measure_nccl() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return print_failure("NCCL", "no libnccl.so.2");
  const Nccl nccl(library);
  if (!nccl.missing.empty()) return print_failure("NCCL", "it has no " + nccl.missing);
  Nccl::UniqueId id;
  Nccl::Comm comm = nullptr;
  const Clock::time_point begin = Clock::now();
  int result = nccl.get_unique_id(&id);
  if (result == 0) result = nccl.comm_init_rank(&comm, 1, id, 0);
  if (result != 0) return print_failure("NCCL", "no rank: " + std::to_string(result));
  print_figure("NCCL, the start of one rank", 0, us_since(begin));
  cudaStream_t stream = nullptr;
  must(cudaStreamCreate(&stream), "cudaStreamCreate");
  void* const from = allocate(kLargest, kPattern);
  void* const to = allocate(kLargest, 0);
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (const int64_t bytes : {int64_t{1} << 16, int64_t{1} << 20, int64_t{16} << 20, kLargest}) {
    const auto count = static_cast<size_t>(bytes);
    const double us = time_of(stream, [&] {
      result += nccl.group_start();
      result += nccl.send(from, count, Nccl::kInt8, 0, comm, stream);
      result += nccl.receive(to, count, Nccl::kInt8, 0, comm, stream);
      result += nccl.group_end();
    });
    if (result == 0) print_figure("NCCL, a rank to itself", bytes, us);
  }
  if (result != 0 || !has_pattern(to, kLargest)) print_failure("NCCL", "an error, or other bytes");
  time_end("NCCL", [&] { nccl.comm_abort(comm); });
  must(cudaFree(from), "cudaFree");
  must(cudaFree(to), "cudaFree");
  must(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

int measure_all() {
  measure_host();
  measure_ipc();
  measure_nccl();
  return num_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  using namespace sluice::bench;
  if (argc > 1 && std::strcmp(argv[1], "reader") == 0) return read_from_other_process();
  return run_on_gpu([](GpuRig&) { return measure_all(); });
}
