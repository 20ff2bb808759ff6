// SPDX-License-Identifier: Apache-2.0
// Memory, copies and the stream by the CUDA runtime. It is linked static and opens libcuda at its
// first call, so that a machine without a driver only gets an error here. The twin is
// tests/support/simt/memory.cpp.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "kernels/cuda/cuda_operators.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/open_device.h"

namespace sluice::kernels::cuda {
namespace {

// Ends the process if a call failed: earlier work failed or we have a bug, and the device's
// contents cannot be relied on any more.
void must(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  SLUICE_UNREACHABLE((std::string(what) + ": " + cudaGetErrorString(result)).c_str());
}

// Up to this many bytes, a copy by threads ends sooner than a copy engine's, with its start and the
// signal to the stream.
constexpr int64_t kSmallCopy = 256 * 1024;

bool is_pinned(const void* p) {
  cudaPointerAttributes attributes;
  must(cudaPointerGetAttributes(&attributes, p), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost;
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// A stream and its device.
struct Place {
  int device = 0;
  cudaStream_t stream = nullptr;

  // Makes the device the thread's current one, before each call: callers may be on any thread.
  void enter() const { must(cudaSetDevice(device), "cudaSetDevice"); }
};

class Graph final : public RecordedWork {
 public:
  Graph(cudaGraphExec_t graph, const Place& place) : graph_(graph), place_(place) {}

  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  ~Graph() override { cudaGraphExecDestroy(graph_); }

  void run() override {
    place_.enter();
    must(cudaGraphLaunch(graph_, place_.stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t graph_;
  Place place_;
};

class Event final : public DeviceEvent {
 public:
  // Waiting threads sleep: a step is long beside the time to wake, and CPU quotas forbid spinning.
  explicit Event(const Place& place) : place_(place) {
    must(cudaEventCreateWithFlags(&event_, cudaEventBlockingSync), "cudaEventCreate");
  }

  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  ~Event() override { cudaEventDestroy(event_); }

  void record() override {
    place_.enter();
    must(cudaEventRecord(event_, place_.stream), "cudaEventRecord");
  }

  void wait() override {
    place_.enter();
    must(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

  [[nodiscard]] bool is_done() override {
    place_.enter();
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    must(result, "cudaEventQuery");
    return true;
  }

  // Makes work put into the stream from now on wait for the event.
  void hold_up(cudaStream_t stream) const {
    must(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
  }

  [[nodiscard]] double seconds_since(const DeviceEvent& before) const override {
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, static_cast<const Event&>(before).event_, event_),
         "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
  Place place_;
};

// Copies and kernels beside those of a step, with lower priority.
class Queue final : public DeviceQueue {
 public:
  explicit Queue(const Place& steps) : steps_(steps), own_(created(steps)) {}

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  ~Queue() override {
    own_.enter();
    must(cudaStreamSynchronize(own_.stream), "cudaStreamSynchronize");
    cudaStreamDestroy(own_.stream);
  }

  [[nodiscard]] CUstream_st* stream() const override { return own_.stream; }

  void follow() override {
    behind_steps_.record();
    behind_steps_.hold_up(own_.stream);
  }

  void lead() override {
    behind_own_.record();
    behind_own_.hold_up(steps_.stream);
  }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyHostToDevice);
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDeviceToHost);
  }

  // Borrowed memory may be another GPU's.
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDefault);
  }

  std::unique_ptr<DeviceEvent> make_event() override {
    own_.enter();
    return std::make_unique<Event>(own_);
  }

 private:
  static Place created(const Place& steps) {
    steps.enter();
    Place place = steps;
    int lowest = 0;
    int highest = 0;
    must(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    must(cudaStreamCreateWithPriority(&place.stream, cudaStreamNonBlocking, lowest),
         "cudaStreamCreateWithPriority");
    return place;
  }

  void copy_async(std::byte* to, const std::byte* from, int64_t bytes, cudaMemcpyKind kind) {
    own_.enter();
    must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, own_.stream),
         "cudaMemcpyAsync");
  }

  const Place steps_;
  const Place own_;
  Event behind_steps_{steps_};
  Event behind_own_{own_};
};

// Memory of this process that it has lent: CUDA opens no handle where it was made.
class OwnLoans {
 public:
  using Handle = std::array<std::byte, sizeof(cudaIpcMemHandle_t)>;

  void add(const Handle& handle, const std::byte* data) {
    const std::scoped_lock lock(mutex_);
    data_[handle] = data;
  }

  // Null: another process's.
  const std::byte* find(const Handle& handle) {
    const std::scoped_lock lock(mutex_);
    const auto found = data_.find(handle);
    return found == data_.end() ? nullptr : found->second;
  }

  [[nodiscard]] bool has(const std::byte* data) {
    const std::scoped_lock lock(mutex_);
    return std::any_of(
        data_.begin(), data_.end(), [data](const auto& loan) { return loan.second == data; });
  }

  void remove(const std::byte* data) {
    const std::scoped_lock lock(mutex_);
    std::erase_if(data_, [data](const auto& loan) { return loan.second == data; });
  }

 private:
  std::mutex mutex_;
  std::map<Handle, const std::byte*> data_;  // guarded by mutex_
};

OwnLoans& own_loans() {
  static auto* const loans = new OwnLoans();
  return *loans;
}

// Returns the bytes of an allocation from `data` on; nullopt: CUDA does not report it.
std::optional<uint64_t> allocated_at(const std::byte* data) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  must(cudaGetDriverEntryPointByVersion(
           "cuMemGetAddressRange", &entry, 12000, cudaEnableDefault, &found),
       "cudaGetDriverEntryPointByVersion");
  CHECK_EQ(found, cudaDriverEntryPointSuccess);
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  const auto range = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr)>(entry);
  const auto at = reinterpret_cast<CUdeviceptr>(data);
  if (range(&begin, &bytes, at) != CUDA_SUCCESS) return std::nullopt;
  return begin + bytes - at;
}

DeviceId uuid_of(int device) {
  cudaDeviceProp properties;
  must(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  DeviceId uuid;
  static_assert(sizeof(properties.uuid) == sizeof(uuid));
  std::memcpy(uuid.data(), &properties.uuid, sizeof(uuid));
  return uuid;
}

// Returns the visible GPUs by number. CUDA is asked once: it takes a millisecond a GPU.
const std::vector<DeviceId>& device_ids() {
  static const auto* const ids = [] {
    int count = 0;
    must(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    auto* const all = new std::vector<DeviceId>();
    for (int device = 0; device < count; ++device) all->push_back(uuid_of(device));
    return all;
  }();
  return *ids;
}

class GpuMemory final : public DeviceMemory {
 public:
  // Takes over the stream.
  explicit GpuMemory(const Place& place) : place_(place) {}

  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  ~GpuMemory() override { cudaStreamDestroy(place_.stream); }

  void enter() const override { place_.enter(); }

  Expected<std::byte*> allocate(int64_t bytes, const char* purpose, AlignedBuffer::Pages) override {
    enter();
    void* data = nullptr;
    const cudaError_t result = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (result == cudaErrorMemoryAllocation) return no_memory(bytes, purpose, "the GPU");
    must(result, "cudaMalloc");
    must(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), place_.stream), "cudaMemsetAsync");
    return static_cast<std::byte*>(data);
  }

  void release(std::byte* data) override {
    wait();
    own_loans().remove(data);
    must(cudaFree(data), "cudaFree");
  }

  Expected<std::byte*> allocate_pinned(int64_t bytes, const char* purpose) override {
    enter();
    void* data = nullptr;
    const cudaError_t result =
        cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault);
    if (result == cudaErrorMemoryAllocation) return no_memory(bytes, purpose, "the system, to pin");
    must(result, "cudaHostAlloc");
    return static_cast<std::byte*>(data);
  }

  void release_pinned(std::byte* data) override {
    wait();
    must(cudaFreeHost(data), "cudaFreeHost");
  }

  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (copy_small(to, from, bytes, from)) return;
    copy_async(to, from, bytes, cudaMemcpyHostToDevice);
  }

  void upload_rows(std::byte* to,
                   const std::byte* from,
                   int64_t bytes,
                   int64_t stride,
                   int64_t num_rows) override {
    enter();
    const auto pitch = static_cast<size_t>(stride);
    must(cudaMemcpy2DAsync(to,
                           pitch,
                           from,
                           pitch,
                           static_cast<size_t>(bytes),
                           static_cast<size_t>(num_rows),
                           cudaMemcpyHostToDevice,
                           place_.stream),
         "cudaMemcpy2DAsync");
  }

  void upload_parts(std::byte* to, const std::byte* from, std::span<const Part> parts) override {
    int64_t bytes = 0;
    for (const Part& part : parts) bytes += part.bytes * part.num_rows;
    enter();
    if (bytes > kSmallCopy || parts.size() > kMostCopyParts || !is_pinned(from)) {
      return DeviceMemory::upload_parts(to, from, parts);
    }
    launch_copy_parts(place_.stream, to, from, parts);
  }

  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    if (copy_small(to, from, bytes, to)) return;
    copy_async(to, from, bytes, cudaMemcpyDeviceToHost);
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    copy_async(to, from, bytes, cudaMemcpyDeviceToDevice);
  }

  void wait() override {
    enter();
    must(cudaStreamSynchronize(place_.stream), "cudaStreamSynchronize");
  }

  std::unique_ptr<DeviceEvent> make_event() override {
    enter();
    return std::make_unique<Event>(place_);
  }

  std::unique_ptr<DeviceQueue> make_queue() override { return std::make_unique<Queue>(place_); }

  void begin_recording() override {
    enter();
    must(cudaStreamBeginCapture(place_.stream, cudaStreamCaptureModeThreadLocal),
         "cudaStreamBeginCapture");
  }

  Expected<std::unique_ptr<RecordedWork>> end_recording() override {
    cudaGraph_t graph = nullptr;
    // A library called meanwhile may have invalidated the capture.
    if (const cudaError_t ended = cudaStreamEndCapture(place_.stream, &graph);
        ended != cudaSuccess) {
      cudaGetLastError();
      return make_error(
          ErrorCode::kUnavailable,
          std::string("CUDA graph: recording ended with: ") + cudaGetErrorString(ended));
    }
    cudaGraphExec_t ready = nullptr;
    cudaError_t result = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    // Device memory of the graph is taken now, not by its first run.
    if (result == cudaSuccess) result = cudaGraphUpload(ready, place_.stream);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      if (ready != nullptr) cudaGraphExecDestroy(ready);
      return make_error(ErrorCode::kResourceExhausted,
                        "CUDA graph: no memory on the GPU; --enforce-eager does without");
    }
    must(result, "cudaGraphInstantiate");
    return std::make_unique<Graph>(ready, place_);
  }

  // Whether the other one's work reaches this one's memory from now on. CUDA opens all of it.
  bool open_to(const GpuMemory& with) const {
    if (with.place_.device == place_.device) return true;
    // 0 where it does not reach it, and over PCIe, where releases and acquires of several GPUs in
    // one GPU's memory have no order (CUDA programming guide, 5.7.3).
    int is_native = 0;
    must(cudaDeviceGetP2PAttribute(
             &is_native, cudaDevP2PAttrNativeAtomicSupported, with.place_.device, place_.device),
         "cudaDeviceGetP2PAttribute");
    if (is_native == 0) return false;
    with.enter();
    const cudaError_t result = cudaDeviceEnablePeerAccess(place_.device, 0);
    if (result != cudaSuccess) cudaGetLastError();
    return result == cudaSuccess || result == cudaErrorPeerAccessAlreadyEnabled;
  }

  [[nodiscard]] DeviceId id() const override {
    return device_ids()[static_cast<size_t>(place_.device)];
  }

  [[nodiscard]] bool reaches(const DeviceId& uuid) const override {
    const std::vector<DeviceId>& ids = device_ids();
    const auto found = std::find(ids.begin(), ids.end(), uuid);
    if (found == ids.end()) return false;
    const auto device = static_cast<int>(found - ids.begin());
    if (device == place_.device) return true;
    int can = 0;
    must(cudaDeviceCanAccessPeer(&can, place_.device, device), "cudaDeviceCanAccessPeer");
    return can != 0;
  }

  Expected<MemoryLoan> lend(const std::byte* data) override {
    enter();
    MemoryLoan loan;
    cudaIpcMemHandle_t handle;
    if (const cudaError_t result = cudaIpcGetMemHandle(&handle, const_cast<std::byte*>(data));
        result != cudaSuccess) {
      cudaGetLastError();
      return make_error(ErrorCode::kUnsupported,
                        std::string("memory is not lent: ") + cudaGetErrorString(result));
    }
    static_assert(sizeof(handle) == sizeof(loan.handle));
    std::memcpy(loan.handle.data(), &handle, sizeof(handle));
    loan.device = id();
    const std::optional<uint64_t> bytes = allocated_at(data);
    CHECK(bytes.has_value());
    loan.bytes = *bytes;
    own_loans().add(loan.handle, data);
    return loan;
  }

  Expected<const std::byte*> borrow(const MemoryLoan& loan) override {
    enter();
    if (!reaches(loan.device)) return cannot_borrow("its GPU is none that this one reaches");
    const std::byte* data = own_loans().find(loan.handle);
    if (data == nullptr) {
      cudaIpcMemHandle_t handle;
      std::memcpy(&handle, loan.handle.data(), sizeof(handle));
      void* opened = nullptr;
      const cudaError_t result =
          cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess);
      if (result != cudaSuccess) {
        cudaGetLastError();
        return cannot_borrow(cudaGetErrorString(result));
      }
      data = static_cast<const std::byte*>(opened);
    }
    // Where CUDA says nothing of memory that it has just mapped, the lender's word stands.
    const uint64_t bytes = allocated_at(data).value_or(loan.bytes);
    if (bytes >= loan.bytes) return data;
    give_back(data);
    return cannot_borrow("found " + std::to_string(bytes) + " bytes, expected " +
                         std::to_string(loan.bytes));
  }

  void give_back(const std::byte* data) override {
    if (own_loans().has(data)) return;
    enter();
    must(cudaIpcCloseMemHandle(const_cast<std::byte*>(data)), "cudaIpcCloseMemHandle");
  }

  [[nodiscard]] int64_t free_bytes() const override {
    enter();
    size_t free = 0;
    size_t total = 0;
    must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

 private:
  static tl::unexpected<Error> no_memory(int64_t bytes, const char* purpose, const char* whose) {
    cudaGetLastError();  // clears the error for the next call
    return make_error(
        ErrorCode::kResourceExhausted,
        std::string(purpose) + ": cannot get " + std::to_string(bytes) + " bytes from " + whose);
  }

  static tl::unexpected<Error> cannot_borrow(const std::string& why) {
    return make_error(ErrorCode::kUnavailable, "memory of another process: " + why);
  }

  // Copies by a kernel and returns true, or does nothing. `host` is the side in host memory.
  bool copy_small(std::byte* to, const std::byte* from, int64_t bytes, const std::byte* host) {
    if (bytes > kSmallCopy || !is_aligned(to) || !is_aligned(from)) return false;
    enter();
    if (!is_pinned(host)) return false;
    launch_copy(place_.stream, to, from, bytes);
    return true;
  }

  void copy_async(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    enter();
    must(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, place_.stream),
         "cudaMemcpyAsync");
  }

  Place place_;
};

// Architectures such as "80 90a". Code of one with a letter runs on that compute capability alone,
// other code also on later ones of its generation.
constexpr std::string_view kBuiltFor = SLUICE_CUDA_ARCHITECTURES;

bool has_kernels_for(int major, int minor) {
  int number = 0;
  for (const char c : std::string(kBuiltFor) + " ") {
    if (c >= '0' && c <= '9') {
      number = 10 * number + (c - '0');
      continue;
    }
    const bool exact = c != ' ';
    if (number / 10 == major && (exact ? number % 10 == minor : number % 10 <= minor)) return true;
    number = 0;
  }
  return false;
}

// Returns "13.0" for 13000.
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Returns how many GPUs CUDA shows; an error says why there is none.
Expected<int> count_devices() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  int driver = 0;  // stays 0 without a driver
  if (result == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver > 0) {
    return make_error(ErrorCode::kUnavailable,
                      "CUDA driver: found one for CUDA " + version_text(driver) +
                          ", expected at least " + version_text(CUDART_VERSION),
                      "device");
  }
  return no_device(result == cudaSuccess ? "the driver has none" : cudaGetErrorString(result));
}

}  // namespace

void limit_blocks(int most_multiprocessors, int most_blocks) {
  gpu::most_multiprocessors = most_multiprocessors;
  gpu::most_blocks = most_blocks;
}

bool open_window(DeviceMemory& memory, std::span<std::byte>, DeviceMemory& with) {
  return static_cast<const GpuMemory&>(memory).open_to(static_cast<const GpuMemory&>(with));
}

Expected<OpenedDevice> open_device(int number) {
  // Modules are loaded eagerly. Kernels that are loaded by their first launch take memory outside
  // of any plan, and may wait for a GPU that waits for another one's launch by the same thread.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  SLUICE_TRY(const int count, count_devices());
  if (number >= count) return too_few_devices(count, number);
  cudaDeviceProp properties;
  must(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
  if (!has_kernels_for(properties.major, properties.minor)) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("CUDA device ") + properties.name +
                          ": found compute capability " + std::to_string(properties.major) + "." +
                          std::to_string(properties.minor) + ", this build has kernels for sm_" +
                          std::string(kBuiltFor),
                      "device");
  }
  // These calls are the first that need the GPU to itself, or memory of it.
  Place place{.device = number};
  cudaError_t result = cudaSetDevice(number);
  if (result == cudaSuccess) {
    // Queues beside the steps have the lowest priority, which is also that of a stream without one.
    int lowest = 0;
    int highest = 0;
    must(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    result = cudaStreamCreateWithPriority(&place.stream, cudaStreamNonBlocking, highest);
  }
  if (result != cudaSuccess) {
    cudaGetLastError();
    return make_error(ErrorCode::kUnavailable,
                      std::string("CUDA device ") + properties.name +
                          " cannot be used: " + cudaGetErrorString(result),
                      "device");
  }
  return OpenedDevice{std::make_unique<GpuMemory>(place), place.stream, properties.name};
}

}  // namespace sluice::kernels::cuda
