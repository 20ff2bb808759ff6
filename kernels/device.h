// SPDX-License-Identifier: Apache-2.0
// Where operators run. An ExecContext is built once by the model runner and passed to every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/device_memory.h"

struct CUstream_st;  // as in CUDA's headers

namespace sluice::kernels {

namespace cpu {
class ReadAhead;
class ThreadPool;
}  // namespace cpu

// Instruction sets of the CPU backend, in order of preference. All compute the same bits.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAmx };
const char* to_string(Isa isa);

struct ExecContext {
  DeviceType device = DeviceType::kCpu;
  Isa isa = Isa::kScalar;
  cpu::ThreadPool* pool = nullptr;       // kCpu: not null
  cpu::ReadAhead* read_ahead = nullptr;  // kCpu: what linear layers bring to caches; null: nothing
  // kCpu: a core reads memory fastest as one stream, else as several side by side. The bits are the
  // same.
  bool one_stream = false;
  // kCpu: unpacking costs little beside products, so that with AVX-512 it takes more rows than
  // elsewhere until weights are unpacked once for all of them, and Q4_1 never is. The bits are the
  // same.
  bool unpacks_fast = false;
  bool dots_bf16 = false;  // kCpu: FP8 takes AVX-512's vdpbf16ps, not fma. The bits are the same.
  // kCuda: where work is put, and room in the device's memory that operators use one after the
  // other: workspace_bytes (gemm.h).
  CUstream_st* stream = nullptr;
  std::span<std::byte> workspace = {};
};

// The backend of one engine: owns the compute threads and, of a GPU, its memory and the stream that
// all operators run on. One thread at a time may call operators; it is worker 0.
class Device {
 public:
  struct Options {
    DeviceType type = DeviceType::kCpu;
    std::string isa = "auto";  // auto, scalar, avx2, avx512, amx: of operators on the host
    int32_t threads = 0;       // 0: default_num_threads()
    int32_t number = 0;        // kCuda: which GPU of those that CUDA shows
    Placement placement = make_placement(NumaMode::kOff, false);
  };

  // kUnsupported names what was asked for and what this machine has.
  static Expected<std::unique_ptr<Device>> create(const Options& options);
  ~Device();

  [[nodiscard]] const ExecContext& context() const { return context_; }

  // For operators on memory of the host; context() on the CPU.
  [[nodiscard]] const ExecContext& host_context() const { return host_context_; }

  // What operators read and write: its own, or the host's.
  [[nodiscard]] DeviceMemory& memory() const { return own_memory_ ? *own_memory_ : host_memory(); }

  [[nodiscard]] DeviceType type() const { return context_.device; }

  [[nodiscard]] int32_t num_threads() const;

  // By the thread that calls operators, once, before it does: it takes its place on the machine,
  // and this device is its current one. Threads that it makes afterwards have the same place.
  void enter() const;

  [[nodiscard]] std::string name() const;  // "cpu:avx512", "cuda:NVIDIA H100 80GB HBM3"

 private:
  Device();
  std::unique_ptr<cpu::ThreadPool> pool_;
  std::unique_ptr<cpu::ReadAhead> read_ahead_;
  std::unique_ptr<DeviceMemory> own_memory_;  // of a GPU
  std::string name_;
  ExecContext context_;
  ExecContext host_context_;
};

// Threads worth starting: min(the placement's CPUs, cgroup CPU quota rounded up), at least 1.
int32_t default_num_threads(const Placement& placement);

}  // namespace sluice::kernels
