// SPDX-License-Identifier: Apache-2.0
// Every PTX instruction that kernels use, as one named function each: the device's here, the CPU's
// in tests/support/simt/ptx_simt.h. The PTX manual defines the instructions; comments here say how
// to call them. Copy engine, mbarriers and wgmma need Hopper; the rest needs sm_80 or later.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/tensor_map.h"

namespace sluice::gpu::ptx {

// A barrier in shared memory that counts arrivals and bytes; its phases have parities 0, 1, 0, ...
using Mbarrier = uint64_t;

// Describes to wgmma a matrix in shared memory with rows along K, 8 rows an atom: the swizzle gives
// the bytes of K a row, and each 8 rows begin `atom_stride` bytes after the 8 before. The start may
// lie inside an atom's row, at a multiple of 32 bytes, to go along K.
constexpr uint64_t matrix_descriptor(uint32_t shared_address,
                                     Swizzle swizzle,
                                     uint32_t atom_stride) {
  const uint64_t mode = swizzle == Swizzle::k128 ? 1 : swizzle == Swizzle::k64 ? 2 : 3;
  return uint64_t{(shared_address & 0x3FFFFU) >> 4} | uint64_t{1} << 16 |
         uint64_t{atom_stride >> 4} << 32 | mode << 62;
}

// Describes a transposed 16-bit B: a row is one k, and the swizzle gives its bytes of B's rows. 8 k
// are an atom, each `atom_stride` bytes after the atom before; B's rows past those of an atom are
// `rows_stride` bytes further. The start is an atom's.
constexpr uint64_t transposed_descriptor(uint32_t shared_address,
                                         Swizzle swizzle,
                                         uint32_t atom_stride,
                                         uint32_t rows_stride) {
  const uint64_t leading = uint64_t{0x3FFF} << 16;
  return (matrix_descriptor(shared_address, swizzle, atom_stride) & ~leading) |
         uint64_t{rows_stride >> 4} << 16;
}

// wgmma and the copy engine are Hopper's alone. gpu.h's device_overlaps is the other function that
// depends on the compute capability.
inline bool device_has_wgmma() { return compute_capability() == 90; }

}  // namespace sluice::gpu::ptx

#if defined(__CUDACC__)

namespace sluice::gpu::ptx {

// Whether this pass of the compiler makes code for sm_90a; wgmma kernels are empty otherwise.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr bool kHasWgmma = false;
#else
inline constexpr bool kHasWgmma = true;
#endif

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Waits, in a launch that overlaps (LaunchShape), until all launches in front have ended and their
// writes are visible; every thread calls it. Weights, which no launch writes, may be read before.
__device__ __forceinline__ void wait_for_launches() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch's blocks start, if it overlaps, once every block of this one has called it
// or ended. It says nothing about this launch's writes: the next launch waits for them itself.
__device__ __forceinline__ void start_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// One thread calls it before any use of the barrier, then fence_mbar_init and a block barrier.
__device__ __forceinline__ void mbar_init(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ __forceinline__ void fence_mbar_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbar_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives, and makes the phase wait for `bytes` bytes as well.
__device__ __forceinline__ void mbar_arrive_expect_tx(Mbarrier* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Waits until the phase of this parity is complete; the phase before the first has parity 1.
__device__ __forceinline__ void mbar_wait(Mbarrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Makes this thread's writes to shared memory visible to copies and wgmma; a barrier follows.
__device__ __forceinline__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders global memory around gpu::arrive_last. A thread calls it between writes, its own and those
// of threads that it has met, and its arrival; and between an arrival and reads, its own or those
// of threads that it meets then, of what was written before earlier arrivals.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// A barrier of `threads` threads, in whole warps; id 0 is __syncthreads' own.
__device__ __forceinline__ void bar_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Copies the map's box at these indices, innermost first, and counts its bytes on `barrier`.
__device__ __forceinline__ void tma_load_2d(
    void* to, const TensorMap* map, int32_t i0, int32_t i1, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map),
      "r"(i0),
      "r"(i1),
      "r"(shared_address(barrier))
      : "memory");
}

__device__ __forceinline__ void tma_load_4d(void* to,
                                            const TensorMap* map,
                                            int32_t i0,
                                            int32_t i1,
                                            int32_t i2,
                                            int32_t i3,
                                            Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(map),
      "r"(i0),
      "r"(i1),
      "r"(i2),
      "r"(i3),
      "r"(shared_address(barrier))
      : "memory");
}

// Needed before the first wgmma, and after each wait or change of the accumulators.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the latest kPending groups are done.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses; no instruction. Call it before wgmma_fence() for written
// registers that wgmma takes, and after a wait for accumulators that are used next: the fence and
// the wait do not name these registers.
__device__ __forceinline__ void fence_registers(float& x) { asm volatile("" : "+f"(x)::"memory"); }

__device__ __forceinline__ void fence_registers(int32_t& x) {
  asm volatile("" : "+r"(x)::"memory");
}

__device__ __forceinline__ void fence_registers(uint32_t& x) {
  asm volatile("" : "+r"(x)::"memory");
}

template <typename Word, int kWords>
__device__ __forceinline__ void fence_registers(Word (&d)[kWords]) {
#pragma unroll
  for (int i = 0; i < kWords; ++i) fence_registers(d[i]);
}

// The registers of d as asm operands; `kind` is "+f" or "+r".
#define GPU_WORDS_4(kind) kind(d[0]), kind(d[1]), kind(d[2]), kind(d[3])
#define GPU_WORDS_8_FROM(kind, i)                                                             \
  kind(d[i]), kind(d[i + 1]), kind(d[i + 2]), kind(d[i + 3]), kind(d[i + 4]), kind(d[i + 5]), \
      kind(d[i + 6]), kind(d[i + 7])
#define GPU_WORDS_8(kind) GPU_WORDS_8_FROM(kind, 0)
#define GPU_WORDS_16(kind) GPU_WORDS_8_FROM(kind, 0), GPU_WORDS_8_FROM(kind, 8)
#define GPU_WORDS_32(kind)                                                          \
  GPU_WORDS_8_FROM(kind, 0), GPU_WORDS_8_FROM(kind, 8), GPU_WORDS_8_FROM(kind, 16), \
      GPU_WORDS_8_FROM(kind, 24)
#define GPU_WORDS_64(kind)                                                    \
  GPU_WORDS_32(kind), GPU_WORDS_8_FROM(kind, 32), GPU_WORDS_8_FROM(kind, 40), \
      GPU_WORDS_8_FROM(kind, 48), GPU_WORDS_8_FROM(kind, 56)

#define GPU_REGISTERS_4 "%0, %1, %2, %3"
#define GPU_REGISTERS_8 GPU_REGISTERS_4 ", %4, %5, %6, %7"
#define GPU_REGISTERS_16 GPU_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define GPU_REGISTERS_32 \
  GPU_REGISTERS_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define GPU_REGISTERS_64                                                             \
  GPU_REGISTERS_32                                                                   \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

#define GPU_WGMMA_OF(name, Sum, kind, types, modes, words, columns, a_at, b_at, accumulate_at)  \
  __device__ __forceinline__ void name(                                                         \
      Sum(&d)[words], uint64_t a, uint64_t b, bool accumulate) {                                \
    asm volatile(                                                                               \
        "{\n"                                                                                   \
        ".reg .pred p;\n"                                                                       \
        "setp.ne.b32 p, " accumulate_at                                                         \
        ", 0;\n"                                                                                \
        "wgmma.mma_async.sync.aligned.m64n" columns types " {" GPU_REGISTERS_##words "}, " a_at \
        ", " b_at ", p" modes                                                                   \
        ";\n"                                                                                   \
        "}\n"                                                                                   \
        : GPU_WORDS_##words(kind)                                                               \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))                                     \
        : "memory");                                                                            \
  }

// d = (accumulate ? d : 0) + A B^T over 32 bytes of K, A of 64 rows, B of 2 * (d's length). Warp w
// of the warpgroup has rows 16 w on: d[4 j + 2 h + c] is row 16 w + lane / 4 + 8 h, column
// 8 j + 2 (lane % 4) + c. `modes`: the scales of 1 and K-major operands that the types ask for.
#define GPU_WGMMA(name, Sum, kind, types, modes)                                    \
  GPU_WGMMA_OF(name, Sum, kind, types, modes, 4, "8", "%4", "%5", "%6")             \
  GPU_WGMMA_OF(name, Sum, kind, types, modes, 8, "16", "%8", "%9", "%10")           \
  GPU_WGMMA_OF(name, Sum, kind, types, modes, 16, "32", "%16", "%17", "%18")        \
  GPU_WGMMA_OF(name, Sum, kind, types, modes, 32, "64", "%32", "%33", "%34")        \
  GPU_WGMMA_OF(name, Sum, kind, types, modes, 64, "128", "%64", "%65", "%66")

GPU_WGMMA(wgmma_bf16, float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
GPU_WGMMA(wgmma_f16, float, "+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
GPU_WGMMA(wgmma_s8, int32_t, "+r", "k32.s32.s8.s8", "")
GPU_WGMMA(wgmma_e4m3, float, "+f", "k32.f32.e4m3.e4m3", ", 1, 1")

#undef GPU_WGMMA
#undef GPU_WGMMA_OF
#undef GPU_REGISTERS_64
#undef GPU_REGISTERS_32
#undef GPU_REGISTERS_16
#undef GPU_REGISTERS_8
#undef GPU_REGISTERS_4

// wgmma with A from registers, laid out as in mma_bf16 below, which must not change until the wait,
// and a transposed B.
#define GPU_WGMMA_ROWS(name, types)                                                             \
  __device__ __forceinline__ void name(                                                         \
      float(&d)[32], const uint32_t(&a)[4], uint64_t b, bool accumulate) {                      \
    asm volatile(                                                                               \
        "{\n"                                                                                   \
        ".reg .pred p;\n"                                                                       \
        "setp.ne.b32 p, %37, 0;\n"                                                              \
        "wgmma.mma_async.sync.aligned.m64n64" types                                             \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"               \
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"       \
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n"                                           \
        "}\n"                                                                                   \
        : GPU_WORDS_32("+f")                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)) \
        : "memory");                                                                            \
  }                                                                                             \
                                                                                                \
  __device__ __forceinline__ void name(                                                         \
      float(&d)[64], const uint32_t(&a)[4], uint64_t b, bool accumulate) {                      \
    asm volatile(                                                                               \
        "{\n"                                                                                   \
        ".reg .pred p;\n"                                                                       \
        "setp.ne.b32 p, %69, 0;\n"                                                              \
        "wgmma.mma_async.sync.aligned.m64n128" types                                            \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"               \
        " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"      \
        " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"      \
        " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"       \
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"                                           \
        "}\n"                                                                                   \
        : GPU_WORDS_64("+f")                                                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)) \
        : "memory");                                                                            \
  }

GPU_WGMMA_ROWS(wgmma_rows_bf16, "k16.f32.bf16.bf16")
GPU_WGMMA_ROWS(wgmma_rows_f16, "k16.f32.f16.f16")

#undef GPU_WGMMA_ROWS
#undef GPU_WORDS_64
#undef GPU_WORDS_32
#undef GPU_WORDS_16
#undef GPU_WORDS_8
#undef GPU_WORDS_8_FROM

// Sets the registers of a thread from here on, a multiple of 8; all of a warpgroup call it, once.
// Registers that some warpgroups give up others may take, in a kernel with __launch_bounds__(n, 1).
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Copies 16 bytes, those past the first `bytes` as zeros; both sides are 16-byte aligned. This
// thread sees them after cp_async_wait, other threads after a barrier too.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
}

// Ends this thread's current group of copies, which may be empty.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the latest kPending groups of this thread have arrived.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four matrices of 8 rows of 16 bytes: lane 8 m + r points to row r of matrix m. The lane
// gets in r[m] the 4 bytes from 4 (lane % 4) on of row lane / 4 of matrix m.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// ldmatrix_x4 with each matrix transposed: the low and the high half of r[m] are the lane's number
// lane / 4 of rows 2 (lane % 4) and the next.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// d[0 .. 3] += A B^T over 32 bytes of K, A of 16 rows, B of 8. As ldmatrix_x4 loads them, the lane
// has rows 0-7 and 8-15 of A's first 16 bytes, then of the others, and B's first 16 bytes, then the
// others. d[2 h + c] is row lane / 4 + 8 h, column 2 (lane % 4) + c.
#define GPU_MMA(name, Sum, kind, types)                                                           \
  __device__ __forceinline__ void name(Sum* d, const uint32_t(&a)[4], uint32_t b0, uint32_t b1) { \
    asm volatile("mma.sync.aligned.m16n8" types                                                   \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"               \
                 : GPU_WORDS_4(kind)                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                 \
  }

GPU_MMA(mma_bf16, float, "+f", "k16.row.col.f32.bf16.bf16.f32")
GPU_MMA(mma_f16, float, "+f", "k16.row.col.f32.f16.f16.f32")
GPU_MMA(mma_s8, int32_t, "+r", "k32.row.col.s32.s8.s8.s32")

#undef GPU_MMA
#undef GPU_WORDS_4

// Rounds two floats to nearest, ties to even, `low` to the low half; NaN stays NaN.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Returns four bytes out of bytes 0 to 3 (a's) and 4 to 7 (b's). The low four nibbles of `selector`
// name them by bits 2 to 0; bit 3 asks for the byte's sign in all of its bits.
__device__ __forceinline__ uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}

// Returns a * b + c for two bfloat16 each; the result must be exact.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace sluice::gpu::ptx

#else
#include "tests/support/simt/ptx_simt.h"
#endif
