// SPDX-License-Identifier: Apache-2.0
// Where operators run. An ExecContext is built once by the model runner and passed to every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice::kernels {

namespace cpu {
class ThreadPool;
}

// Instruction sets of the CPU backend, in order of preference. All compute the same bits.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAmx };
const char* to_string(Isa isa);

struct ExecContext {
  DeviceType device = DeviceType::kCpu;
  Isa isa = Isa::kScalar;
  cpu::ThreadPool* pool = nullptr;  // kCpu: not null
};

// The backend of one engine: owns the compute threads. One thread at a time may call operators; it
// is worker 0.
class Device {
 public:
  struct Options {
    DeviceType type = DeviceType::kCpu;
    std::string isa = "auto";  // auto, scalar, avx2, avx512, amx
    int32_t threads = 0;       // 0: default_num_threads()
    Placement placement = make_placement(NumaMode::kOff, false);
  };

  // kUnsupported names what was asked for and what this machine has.
  static Expected<std::unique_ptr<Device>> create(const Options& options);
  ~Device();

  [[nodiscard]] const ExecContext& context() const { return context_; }

  [[nodiscard]] int32_t num_threads() const;

  // By the thread that calls operators, once, before it does: it takes its place on the machine.
  // Threads that it makes afterwards have the same place.
  void enter() const;

  [[nodiscard]] std::string name() const;  // "cpu:avx512"

 private:
  Device();
  std::unique_ptr<cpu::ThreadPool> pool_;
  ExecContext context_;
};

// Threads worth starting: min(the placement's CPUs, cgroup CPU quota rounded up), at least 1.
int32_t default_num_threads(const Placement& placement);

}  // namespace sluice::kernels
