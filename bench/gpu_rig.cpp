// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_rig.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "bench/gpu_read.h"
#include "engine/core/types.h"

namespace sluice::bench {
namespace {

constexpr int kRounds = 11;
// The least seconds of a round, which contains the host's time for the first launch.
constexpr double kRoundSeconds = 3e-3;
constexpr int64_t kProbeBytes = int64_t{2} << 30;
// Contents are this many bytes made on the host, and copied within the device from there on.
constexpr int64_t kPiece = int64_t{16} << 20;
// The time in which clocks reach their highest.
constexpr std::chrono::milliseconds kWaking{400};

kernels::DeviceBuffer allocated(kernels::DeviceMemory& memory, int64_t bytes) {
  auto buffer = kernels::DeviceBuffer::allocate(memory, bytes, "benchmark");
  if (!buffer) {
    std::fprintf(stderr, "%s\n", buffer.error().message.c_str());
    std::exit(1);
  }
  return std::move(*buffer);
}

const std::vector<float>& normals() {
  static const std::vector<float> values = [] {
    std::vector<float> made(kPiece / 4);
    std::minstd_rand rng(2);
    std::normal_distribution<float> normal;
    for (float& value : made) value = normal(rng);
    return made;
  }();
  return values;
}

}  // namespace

void must(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}

GpuRig::GpuRig(kernels::cuda::OpenedDevice opened) : opened_(std::move(opened)) {
  int bytes = 0;
  must(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "cudaDeviceGetAttribute");
  l2_bytes_ = bytes;
}

Expected<std::unique_ptr<GpuRig>> GpuRig::open() {
  SLUICE_TRY(kernels::cuda::OpenedDevice opened, kernels::cuda::open_device(0));
  std::unique_ptr<GpuRig> rig(new GpuRig(std::move(opened)));
  const auto end = std::chrono::steady_clock::now() + kWaking;
  while (std::chrono::steady_clock::now() < end) rig->probe_read();
  return rig;
}

kernels::DeviceBuffer GpuRig::zeros(int64_t bytes) {
  return allocated(*opened_.memory, std::max<int64_t>(bytes, 16));
}

kernels::DeviceBuffer GpuRig::repeated(const void* piece, int64_t piece_bytes, int64_t bytes) {
  kernels::DeviceBuffer buffer = zeros(bytes);
  const int64_t first = std::min(bytes, piece_bytes);
  opened_.memory->upload(buffer.data(), static_cast<const std::byte*>(piece), first);
  for (int64_t at = first; at < bytes; at += piece_bytes) {
    opened_.memory->copy(buffer.data() + at, buffer.data(), std::min(piece_bytes, bytes - at));
  }
  opened_.memory->wait();
  return buffer;
}

kernels::DeviceBuffer GpuRig::random(int64_t bytes) {
  static const std::vector<uint16_t> words = [] {
    std::vector<uint16_t> made(kPiece / 2);
    std::minstd_rand rng(1);
    for (uint16_t& word : made) word = static_cast<uint16_t>(0x3800 + (rng() & 0x7FF));
    return made;
  }();
  return repeated(words.data(), kPiece, bytes);
}

kernels::DeviceBuffer GpuRig::normal_floats(int64_t count) {
  return repeated(normals().data(), kPiece, count * 4);
}

kernels::DeviceBuffer GpuRig::normal_bf16(int64_t count) {
  static const std::vector<uint16_t> words = [] {
    std::vector<uint16_t> made;
    made.reserve(normals().size());
    for (const float value : normals()) {
      made.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    }
    return made;
  }();
  return repeated(words.data(), kPiece / 2, count * 2);
}

kernels::DeviceBuffer GpuRig::copy_of(const void* host, int64_t bytes) {
  kernels::DeviceBuffer buffer = zeros(bytes);
  opened_.memory->upload(buffer.data(), static_cast<const std::byte*>(host), bytes);
  opened_.memory->wait();
  return buffer;
}

std::vector<std::byte> GpuRig::to_host(const kernels::DeviceBuffer& buffer) {
  std::vector<std::byte> bytes(buffer.size());
  opened_.memory->download(bytes.data(), buffer.data(), static_cast<int64_t>(bytes.size()));
  opened_.memory->wait();
  return bytes;
}

int32_t GpuRig::copies_for(int64_t bytes) const {
  constexpr int64_t kTimes = 8;  // L2 does not always evict the oldest first
  return static_cast<int32_t>(std::clamp<int64_t>(ceil_div(kTimes * l2_bytes_, bytes), 1, 256));
}

double GpuRig::seconds(int32_t count, const std::function<void(int32_t)>& work) {
  work(0);  // kernels are loaded at their first launch
  must(cudaStreamSynchronize(stream()), "first launch");
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  must(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
       "cudaStreamBeginCapture");
  for (int32_t i = 0; i < count; ++i) work(i);
  must(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
  must(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  must(cudaEventCreate(&begin), "cudaEventCreate");
  must(cudaEventCreate(&end), "cudaEventCreate");
  const auto round_seconds = [&](int launches) {
    must(cudaEventRecord(begin, stream()), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) must(cudaGraphLaunch(ready, stream()), "cudaGraphLaunch");
    must(cudaEventRecord(end, stream()), "cudaEventRecord");
    must(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    must(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    return 1e-3 * static_cast<double>(milliseconds);
  };
  round_seconds(1);
  const int launches = static_cast<int>(
      std::ceil(std::clamp(kRoundSeconds / std::max(round_seconds(1), 1e-6), 1.0, 1000.0)));
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) times.push_back(round_seconds(launches));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] / launches / count;
}

double GpuRig::probe_read() {
  const kernels::DeviceBuffer data = random(kProbeBytes);
  const kernels::DeviceBuffer out = zeros(16);
  int multiprocessors = 0;
  must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
       "cudaDeviceGetAttribute");
  const double time = seconds(1, [&](int32_t) {
    launch_read(stream(), data.data(), kProbeBytes, 4 * multiprocessors, out.data());
  });
  return static_cast<double>(kProbeBytes) / time;
}

double GpuRig::probe_copy() {
  const kernels::DeviceBuffer from = random(kProbeBytes);
  const kernels::DeviceBuffer to = zeros(kProbeBytes);
  const double time =
      seconds(1, [&](int32_t) { opened_.memory->copy(to.data(), from.data(), kProbeBytes); });
  return 2.0 * static_cast<double>(kProbeBytes) / time;
}

int run_on_gpu(const std::function<int(GpuRig&)>& body) {
  constexpr int kSkipped = 77;
  auto rig = GpuRig::open();
  if (!rig) {
    std::printf("skipped: %s\n", rig.error().message.c_str());
    return kSkipped;
  }
  std::printf("%s\n", (*rig)->name().c_str());
  return body(**rig);
}

}  // namespace sluice::bench
