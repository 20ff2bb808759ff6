// SPDX-License-Identifier: Apache-2.0
// The place where operators run. The model runner builds an ExecContext once and passes it to every
// call.
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

struct CUstream_st;  // declared by CUDA's headers

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
  // kCpu: whether a core reads memory fastest as one stream; if not, several streams side by side
  // are faster. The bits do not depend on it.
  bool one_stream = false;
  // kCpu: whether unpacking costs little beside products. AVX-512 then takes more rows before
  // weights are unpacked once for all of them, and Q4_1 never is. The bits do not depend on it.
  bool unpacks_fast = false;
  bool dots_bf16 = false;  // kCpu: FP8 uses AVX-512's vdpbf16ps, not fma; same bits
  // kCuda: the stream that work is put on, and device memory that operators use one after the
  // other: workspace_bytes (gemm.h).
  CUstream_st* stream = nullptr;
  std::span<std::byte> workspace = {};
};

// The backend of one engine: owns the compute threads and, for a GPU, its memory and the stream
// that all operators run on. One thread at a time may call operators; it is worker 0.
class Device {
 public:
  struct Options {
    DeviceType type = DeviceType::kCpu;
    std::string isa = "auto";  // auto, scalar, avx2, avx512, amx; for host operators
    int32_t threads = 0;       // 0: default_num_threads()
    int32_t number = 0;        // kCuda: index among the GPUs that CUDA shows
    Placement placement = make_placement(NumaMode::kOff, false);
  };

  // Error: kUnsupported, naming what was asked for and what this machine has.
  static Expected<std::unique_ptr<Device>> create(const Options& options);
  ~Device();

  [[nodiscard]] const ExecContext& context() const { return context_; }

  // The context for operators on host memory; on the CPU equal to context().
  [[nodiscard]] const ExecContext& host_context() const { return host_context_; }

  // The memory that operators read and write: the device's own, or the host's.
  [[nodiscard]] DeviceMemory& memory() const { return own_memory_ ? *own_memory_ : host_memory(); }

  [[nodiscard]] DeviceType type() const { return context_.device; }

  [[nodiscard]] int32_t num_threads() const;

  // Called once by the thread that calls operators, before its first: takes the thread's place on
  // the machine and makes this device current. Threads that it starts afterwards share the place.
  void enter() const;

  [[nodiscard]] std::string name() const;  // "cpu:avx512", "cuda:NVIDIA H100 80GB HBM3"

 private:
  Device();
  std::unique_ptr<cpu::ThreadPool> pool_;
  std::unique_ptr<cpu::ReadAhead> read_ahead_;
  std::unique_ptr<DeviceMemory> own_memory_;  // null on the CPU
  std::string name_;
  ExecContext context_;
  ExecContext host_context_;
};

// Returns how many threads to start: min(the placement's CPUs, cgroup quota rounded up), at least
// 1.
int32_t default_num_threads(const Placement& placement);

}  // namespace sluice::kernels
