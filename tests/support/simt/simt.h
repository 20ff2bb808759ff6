// SPDX-License-Identifier: Apache-2.0
// CUDA on the CPU: the names that kernels use, for .cu files compiled as C++. A launch runs its
// grid block by block on the calling thread; every CUDA thread is a fiber that runs until it
// waits. Only kernels/cuda/gpu.h includes it. simt.md says what it can and cannot see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// On a GPU launches are real, and only the arithmetic below remains, for models of kernels.
#if defined(SLUICE_TESTS_ON_GPU)
#include "tests/support/gpu/run.h"
#endif

namespace sluice::simt {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct ThreadView {
  Dim3 thread_idx;
  Dim3 block_idx;
  Dim3 block_dim;
  Dim3 grid_dim;
};

// The running CUDA thread's view; null between launches.
extern constinit thread_local const ThreadView* current_thread;

#if !defined(SLUICE_TESTS_ON_GPU)
// The errors that a Run finds. kPlain: wrong bits, waits that never end, broken rules of an
// instruction. kRace: also unordered accesses to shared memory, and to a launch's global memory,
// and reads of shared memory that was never written, in files compiled with -fsanitize=thread.
enum class Mode : uint8_t { kPlain, kRace };

// Holds the schedule of the launches made in its lifetime, and their errors. One at a time; a
// launch without one aborts, and so does a destructor with reports that were not taken.
class Run {
 public:
  // The seed picks the order of blocks, threads and asynchronous copies: 0 runs the latest ready
  // thread first and copies as late as possible, every fourth starves one warp, others are random.
  // `host_waited`: what ran on this thread before has ended, also for a launch that overlaps.
  explicit Run(uint64_t seed, Mode mode = Mode::kPlain, bool host_waited = true);
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Returns one line per error, in the order found, and clears them. A launch ends at its first
  // error; races are collected.
  std::vector<std::string> take_reports();
  // Returns the number of launches of this run so far.
  [[nodiscard]] int num_launches() const;
  // Returns the number of their blocks.
  [[nodiscard]] int64_t num_blocks() const;
};

// Sets the device that launches see in its lifetime: its compute capability, major * 10 + minor, 90
// by default. It decides mma_bf16's step.
class GivenDevice {
 public:
  explicit GivenDevice(int compute_capability);
  ~GivenDevice();
  GivenDevice(const GivenDevice&) = delete;
  GivenDevice& operator=(const GivenDevice&) = delete;

  // Whether launches see this device; a GPU has its own (tests/support/gpu/run.h).
  [[nodiscard]] static bool is_here() { return true; }
};
#endif

struct LaunchShape {
  Dim3 grid;
  int threads;
  int64_t shared_bytes;
  int together;  // blocks along y that run in one schedule
  bool overlaps = false;
};

void run_grid(const LaunchShape& shape, const std::function<void()>& body);

}  // namespace sluice::simt

struct CUstream_st;  // declared by CUDA's headers; work is in order

namespace sluice::simt {

// Runs the work at once without a stream; else when a thread waits for it (memory.h).
void enqueue(CUstream_st* stream, std::function<void()> work);

// Lets kernels of this thread also read these bytes, its parameters, in its lifetime. Scopes nest.
class ParameterSpace {
 public:
  ParameterSpace(const void* begin, int64_t bytes);
  ~ParameterSpace();
  ParameterSpace(const ParameterSpace&) = delete;
  ParameterSpace& operator=(const ParameterSpace&) = delete;

  // Whether the bytes are in a living ParameterSpace.
  static bool contains(const void* p, int64_t bytes);

 private:
  const std::byte* begin_;
  const std::byte* end_;
  const ParameterSpace* outer_;
};

// A place in a kernel, for reports.
struct Site {
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

// Ends the launch with a report.
[[noreturn]] void fail(const std::string& what);

// An instruction that the lanes of `mask` execute together. The last to arrive calls `complete`
// with every lane's operand (null: not in the mask); then all continue. Lanes that arrive with the
// same mask at another instruction, and lanes that have left the kernel, are errors.
// `orders_memory`: whether each lane's writes are then visible to the others, which a shuffle does
// not promise.
using Complete = void (*)(void* const operands[32], uint32_t mask);
void warp_collective(uint32_t mask,
                     const char* name,
                     void* operand,
                     Complete complete,
                     bool orders_memory,
                     Site site);

// Waits until `count` threads have arrived; 0: every thread of the block.
void block_barrier(int id, int count, const char* name, Site site);

// Returns the block's memory for one declaration; `key` tells declarations apart.
void* shared_memory(const void* key, int64_t bytes, int64_t alignment, const char* name);
void* dynamic_shared_memory(int64_t bytes, const char* name);

template <typename To, typename From>
To bits_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Returns a result of a float instruction as a GPU gives it: its NaN is this one, whatever the
// operands' NaNs (PTX ISA 8.7, "Floating Point Instructions"; an H200's tensor cores as well).
inline float with_gpus_nan(float result) {
  return result == result ? result : bits_cast<float>(0x7FFFFFFFU);
}

struct ShuffleOperand {
  uint32_t value;
  int source;
};

void complete_shuffle(void* const operands[32], uint32_t mask);
void complete_max(void* const operands[32], uint32_t mask);
void complete_match(void* const operands[32], uint32_t mask);
void complete_add(void* const operands[32], uint32_t mask);
void complete_nothing(void* const operands[32], uint32_t mask);

inline int lane_id() { return static_cast<int>(current_thread->thread_idx.x % 32); }

}  // namespace sluice::simt

#define __global__
#define __device__
// always_inline, like nvcc; and g++ reports no store of a call's result to the race detector.
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (::sluice::simt::current_thread->thread_idx)
#define blockIdx (::sluice::simt::current_thread->block_idx)
#define blockDim (::sluice::simt::current_thread->block_dim)
#define gridDim (::sluice::simt::current_thread->grid_dim)

#define GPU_SHARED(T, name, n)      \
  static const char name##_key = 0; \
  T(&name)                          \
  [n] = *static_cast<T(*)[n]>(      \
      ::sluice::simt::shared_memory(&name##_key, sizeof(T) * (n), alignof(T), #name))
#define GPU_DYN_SHARED(T, name) \
  T& name = *static_cast<T*>(::sluice::simt::dynamic_shared_memory(sizeof(T), #name))
#define GPU_DYN_SHARED_ARRAY(T, name) \
  T* const name = static_cast<T*>(::sluice::simt::dynamic_shared_memory(0, #name))

struct alignas(16) float4 {
  float x, y, z, w;
};

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

inline void __syncthreads(sluice::simt::Site site = {}) {
  sluice::simt::block_barrier(0, 0, "__syncthreads", site);
}

inline void __syncwarp(uint32_t mask = 0xFFFFFFFFU, sluice::simt::Site site = {}) {
  char operand = 0;
  sluice::simt::warp_collective(
      mask, "__syncwarp", &operand, sluice::simt::complete_nothing, true, site);
}

inline float __shfl_xor_sync(uint32_t mask, float value, int lanes, sluice::simt::Site site = {}) {
  sluice::simt::ShuffleOperand operand{sluice::simt::bits_cast<uint32_t>(value),
                                       sluice::simt::lane_id() ^ lanes};
  sluice::simt::warp_collective(
      mask, "__shfl_xor_sync", &operand, sluice::simt::complete_shuffle, false, site);
  return sluice::simt::bits_cast<float>(operand.value);
}

inline int32_t __shfl_xor_sync(uint32_t mask,
                               int32_t value,
                               int lanes,
                               sluice::simt::Site site = {}) {
  sluice::simt::ShuffleOperand operand{static_cast<uint32_t>(value),
                                       sluice::simt::lane_id() ^ lanes};
  sluice::simt::warp_collective(
      mask, "__shfl_xor_sync", &operand, sluice::simt::complete_shuffle, false, site);
  return static_cast<int32_t>(operand.value);
}

inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t value, sluice::simt::Site site = {}) {
  sluice::simt::warp_collective(
      mask, "__reduce_max_sync", &value, sluice::simt::complete_max, false, site);
  return value;
}

inline int32_t __reduce_add_sync(uint32_t mask, int32_t value, sluice::simt::Site site = {}) {
  sluice::simt::warp_collective(
      mask, "__reduce_add_sync", &value, sluice::simt::complete_add, false, site);
  return value;
}

// Lanes below `lanes` keep their own value.
inline int32_t __shfl_up_sync(uint32_t mask,
                              int32_t value,
                              int lanes,
                              sluice::simt::Site site = {}) {
  const int lane = sluice::simt::lane_id();
  sluice::simt::ShuffleOperand operand{static_cast<uint32_t>(value),
                                       lane < lanes ? lane : lane - lanes};
  sluice::simt::warp_collective(
      mask, "__shfl_up_sync", &operand, sluice::simt::complete_shuffle, false, site);
  return static_cast<int32_t>(operand.value);
}

// Returns the lanes that have the same value.
inline uint32_t __match_any_sync(uint32_t mask, uint32_t value, sluice::simt::Site site = {}) {
  sluice::simt::warp_collective(
      mask, "__match_any_sync", &value, sluice::simt::complete_match, false, site);
  return value;
}

inline int __popc(uint32_t a) { return __builtin_popcount(a); }

inline float __fadd_rn(float a, float b) { return sluice::simt::with_gpus_nan(a + b); }

inline float __fsub_rn(float a, float b) { return sluice::simt::with_gpus_nan(a - b); }

inline float __fmul_rn(float a, float b) { return sluice::simt::with_gpus_nan(a * b); }

inline float __fdiv_rn(float a, float b) { return sluice::simt::with_gpus_nan(a / b); }

inline float __fmaf_rn(float a, float b, float c) {
  return sluice::simt::with_gpus_nan(__builtin_fmaf(a, b, c));
}

inline float __fsqrt_rn(float a) { return sluice::simt::with_gpus_nan(__builtin_sqrtf(a)); }

inline float __int2float_rn(int32_t a) { return static_cast<float>(a); }

// Values out of range give the range's end; NaN gives 0 in 32 bits, the highest bit in 64.
inline int32_t __float2int_rn(float a) {
  const float rounded = __builtin_rintf(a);
  if (!(rounded == rounded)) return 0;
  if (rounded >= 0x1p31F) return INT32_MAX;
  return rounded < -0x1p31F ? INT32_MIN : static_cast<int32_t>(rounded);
}

inline double __dmul_rn(double a, double b) { return a * b; }

inline double __ull2double_rn(unsigned long long a) { return static_cast<double>(a); }

inline unsigned long long __float2ull_rz(float a) {
  if (!(a == a)) return 0x8000000000000000U;
  if (a >= 0x1p64F) return UINT64_MAX;
  return a < 0 ? 0U : static_cast<unsigned long long>(a);
}

inline float __int_as_float(int32_t bits) { return sluice::simt::bits_cast<float>(bits); }

inline int32_t __float_as_int(float a) { return sluice::simt::bits_cast<int32_t>(a); }

namespace sluice::gpu {

using Stream = CUstream_st*;

// Defined like the device's (kernels/cuda/gpu.h).
int compute_capability();

// Returns few, unlike a device, so that a block's share of a list of work is long.
inline int multiprocessors() { return 5; }

// The race detector is told that these are atomic, so they are not inline.
uint32_t shared_add(uint32_t* p, uint32_t value);
unsigned long long shared_add(unsigned long long* p, unsigned long long value);

// Like the device's, in global memory; a counter that was not 0 at first is an error.
bool arrive_last(uint32_t* counter, uint32_t arrivals);

struct LaunchShape {
  int64_t blocks_x = 1;
  int64_t blocks_y = 1;
  int threads = 128;
  int64_t shared_bytes = 0;
  bool overlaps = false;  // with launches in front (kernels/cuda/gpu.h)
};

// Returns few, unlike a device, so that kernels take several tiles in turn in small tests, too.
template <typename... Parameters>
int64_t blocks_at_once(const LaunchShape&, void (*)(Parameters...)) {
  return 3;
}

template <typename... Parameters, typename... Arguments>
void launch(Stream stream,
            const LaunchShape& shape,
            void (*kernel)(Parameters...),
            const Arguments&... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  const simt::Dim3 grid{static_cast<unsigned>(shape.blocks_x),
                        static_cast<unsigned>(shape.blocks_y)};
  const simt::LaunchShape whole{grid, shape.threads, shape.shared_bytes, 1, shape.overlaps};
  const auto call = std::make_pair(kernel, std::make_tuple(args...));
  simt::enqueue(stream, [whole, call] {
    const simt::ParameterSpace parameters(&call, sizeof(call));
    simt::run_grid(whole, [&call = call] { std::apply(call.first, call.second); });
  });
}

}  // namespace sluice::gpu
