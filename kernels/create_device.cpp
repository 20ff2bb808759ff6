// SPDX-License-Identifier: Apache-2.0
#include "kernels/device.h"

#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "engine/core/cgroup.h"
#include "kernels/cpu/linear/read_ahead.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/open_device.h"

namespace sluice::kernels {
namespace {

// Tile registers make a thread's state 8 KiB larger, so a process has to ask for them. Once
// granted, every thread has them.
bool amx_available() {
  constexpr unsigned kTileBit = 1U << 24;
  constexpr unsigned kInt8Bit = 1U << 25;
  constexpr unsigned long kTileData = 18;  // the state component
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTileBit) == 0 || (edx & kInt8Bit) == 0) return false;
  return ::syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, kTileData) == 0;
}

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
             __builtin_cpu_supports("f16c") != 0;
    case Isa::kAvx512:
      return isa_available(Isa::kAvx2) && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
    case Isa::kAmx:
      return isa_available(Isa::kAvx512) && amx_available();
  }
  return false;
}

// On a Xeon vdpbf16ps does half of what fma does in the same time; AMD's tables give it twice.
bool has_bf16_dots() { return __builtin_cpu_supports("avx512bf16") != 0; }

// AMD and Intel differ in streams and unpacking, as measured on Zen 4, Zen 5 and Xeons, which need
// two to four streams a core and unpack on the pipes that multiply (bench/cpu.md).
bool is_amd() { return __builtin_cpu_is("amd") != 0; }

constexpr std::array kAllIsas = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx};

Expected<Isa> choose_isa(const std::string& wanted) {
  std::string available;
  Isa best = Isa::kScalar;
  for (const Isa isa : kAllIsas) {
    if (!isa_available(isa)) continue;
    best = isa;
    available += available.empty() ? "" : ", ";
    available += to_string(isa);
    if (wanted == to_string(isa)) return isa;
  }
  if (wanted == "auto") return best;
  return make_error(
      ErrorCode::kUnsupported,
      "instruction set '" + wanted + "' is not offered here; this machine has: auto, " + available);
}

}  // namespace

const char* to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

int32_t default_num_threads(const Placement& placement) {
  int32_t threads = placement.num_cpus();
  const int32_t quota = cgroup_cpus();
  if (quota > 0) threads = std::min(threads, quota);
  return std::max(threads, 1);
}

Device::Device() = default;
Device::~Device() = default;

Expected<std::unique_ptr<Device>> Device::create(const Options& options) {
  if (options.threads < 0 || options.threads > cpu::kMaxThreads) {
    return make_error(ErrorCode::kInvalidArgument,
                      "threads must be in [0, " + std::to_string(cpu::kMaxThreads) + "], got " +
                          std::to_string(options.threads));
  }
  SLUICE_TRY(const Isa isa, choose_isa(options.isa));
  std::unique_ptr<Device> device(new Device());
  if (options.type == DeviceType::kCuda) {
    SLUICE_TRY(cuda::OpenedDevice opened, cuda::open_device(options.number));
    device->own_memory_ = std::move(opened.memory);
    device->name_ = "cuda:" + opened.name;
    device->context_ = {.device = DeviceType::kCuda, .stream = opened.stream};
  }
  const int32_t threads =
      options.threads > 0 ? options.threads : default_num_threads(options.placement);
  device->pool_ = std::make_unique<cpu::ThreadPool>(threads, options.placement);
  device->read_ahead_ = std::make_unique<cpu::ReadAhead>(threads);
  device->host_context_ = {.device = DeviceType::kCpu,
                           .isa = isa,
                           .pool = device->pool_.get(),
                           .read_ahead = device->read_ahead_.get(),
                           .one_stream = is_amd(),
                           .unpacks_fast = is_amd(),
                           .dots_bf16 = is_amd() && has_bf16_dots()};
  if (options.type == DeviceType::kCpu) {
    device->context_ = device->host_context_;
    device->name_ = std::string("cpu:") + to_string(isa);
  }
  return device;
}

int32_t Device::num_threads() const { return pool_->num_threads(); }

void Device::enter() const {
  pool_->enter();
  memory().enter();
}

std::string Device::name() const { return name_; }

}  // namespace sluice::kernels
