// SPDX-License-Identifier: Apache-2.0
// The instructions of kernels/cuda/ptx.h on the CPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/tensor_map.h"
#include "tests/support/simt/simt.h"

namespace sluice::simt {

enum class MatrixType : uint8_t { kBF16, kF16, kS8, kE4M3 };  // kE4M3: wgmma only

// One lane's part of wgmma; `accumulators` has columns / 2 words.
struct MatrixOperand {
  MatrixType type;
  int columns;
  uint64_t a;
  uint64_t b;
  uint32_t* accumulators;
  bool accumulate;
  const uint32_t* rows = nullptr;  // [4], A in registers, with a transposed B; null: `a` is A
};

void issue_matrix(MatrixOperand operand, Site site);

template <typename Sum, int kWords>
void issue_wgmma(
    MatrixType type, Sum (&d)[kWords], uint64_t a, uint64_t b, bool accumulate, Site site) {
  static_assert(kWords == 4 || kWords == 8 || kWords == 16 || kWords == 32 || kWords == 64,
                "the widths that ptx.h has");
  issue_matrix({.type = type,
                .columns = 2 * kWords,
                .a = a,
                .b = b,
                .accumulators = reinterpret_cast<uint32_t*>(d),
                .accumulate = accumulate},
               site);
}

template <int kWords>
void issue_wgmma_rows(MatrixType type,
                      float (&d)[kWords],
                      const uint32_t (&a)[4],
                      uint64_t b,
                      bool accumulate,
                      Site site) {
  static_assert(kWords == 32 || kWords == 64, "the widths that ptx.h has");
  issue_matrix({.type = type,
                .columns = 2 * kWords,
                .a = 0,
                .b = b,
                .accumulators = reinterpret_cast<uint32_t*>(d),
                .accumulate = accumulate,
                .rows = a},
               site);
}

void copy_box(
    void* to, const gpu::TensorMap& map, const int32_t (&at)[4], uint64_t* barrier, Site site);
void wait_matrix(int pending, Site site);

// One lane's part of mma.sync.
struct MmaOperand {
  MatrixType type;
  uint32_t a[4];
  uint32_t b[2];
  uint32_t* d;  // [4]
};

void multiply_now(MmaOperand operand, Site site);

template <typename Sum>
void multiply_mma(
    MatrixType type, Sum* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  multiply_now({.type = type,
                .a = {a[0], a[1], a[2], a[3]},
                .b = {b0, b1},
                .d = reinterpret_cast<uint32_t*>(d)},
               site);
}

void wait_copies(int pending, Site site);

}  // namespace sluice::simt

namespace sluice::gpu::ptx {

inline constexpr bool kHasWgmma = true;

// Launches run one after the other; overlap.h lists the reports of early accesses.
void wait_for_launches();

inline void start_next_launch() {}

uint32_t shared_address(const void* p);
void mbar_init(uint64_t* barrier, int arrivals, simt::Site site = {});
void fence_mbar_init();
void mbar_arrive(uint64_t* barrier, simt::Site site = {});
void mbar_arrive_expect_tx(uint64_t* barrier, uint32_t bytes, simt::Site site = {});
void mbar_wait(uint64_t* barrier, int parity, simt::Site site = {});
void fence_proxy_async();
void fence_device();
void wgmma_fence(simt::Site site = {});
void wgmma_commit(simt::Site site = {});
void cp_async_16(void* to, const void* from, int bytes, simt::Site site = {});
void cp_async_commit();
void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Site site = {});
void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Site site = {});
uint32_t pack_bf16(float low, float high);
uint32_t pack_f16(float low, float high);

inline uint32_t select_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15U;
    const auto byte = static_cast<uint32_t>(both >> (nibble % 8 * 8)) & 0xFFU;
    const uint32_t sign = byte < 128 ? 0U : 0xFFU;
    bytes |= (nibble < 8 ? byte : sign) << (8 * i);
  }
  return bytes;
}

uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c, simt::Site site = {});

inline void bar_sync(int id, int threads, simt::Site site = {}) {
  simt::block_barrier(id, threads, "bar_sync", site);
}

inline void tma_load_2d(void* to,
                        const TensorMap* map,
                        int32_t i0,
                        int32_t i1,
                        uint64_t* barrier,
                        simt::Site site = {}) {
  simt::copy_box(to, *map, {i0, i1, 0, 0}, barrier, site);
}

inline void tma_load_4d(void* to,
                        const TensorMap* map,
                        int32_t i0,
                        int32_t i1,
                        int32_t i2,
                        int32_t i3,
                        uint64_t* barrier,
                        simt::Site site = {}) {
  simt::copy_box(to, *map, {i0, i1, i2, i3}, barrier, site);
}

template <int kPending>
void wgmma_wait(simt::Site site = {}) {
  simt::wait_matrix(kPending, site);
}

template <typename Sum, int kWords>
void fence_registers(Sum (&)[kWords]) {}

template <int kRegisters>
void give_registers() {}

template <int kRegisters>
void take_registers() {}

template <int kWords>
void wgmma_bf16(float (&d)[kWords], uint64_t a, uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma(simt::MatrixType::kBF16, d, a, b, accumulate, site);
}

template <int kWords>
void wgmma_f16(float (&d)[kWords], uint64_t a, uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma(simt::MatrixType::kF16, d, a, b, accumulate, site);
}

template <int kWords>
void wgmma_s8(int32_t (&d)[kWords], uint64_t a, uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma(simt::MatrixType::kS8, d, a, b, accumulate, site);
}

template <int kWords>
void wgmma_e4m3(float (&d)[kWords], uint64_t a, uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma(simt::MatrixType::kE4M3, d, a, b, accumulate, site);
}

template <int kWords>
void wgmma_rows_bf16(
    float (&d)[kWords], const uint32_t (&a)[4], uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma_rows(simt::MatrixType::kBF16, d, a, b, accumulate, site);
}

template <int kWords>
void wgmma_rows_f16(
    float (&d)[kWords], const uint32_t (&a)[4], uint64_t b, bool accumulate, simt::Site site = {}) {
  simt::issue_wgmma_rows(simt::MatrixType::kF16, d, a, b, accumulate, site);
}

template <int kPending>
void cp_async_wait(simt::Site site = {}) {
  simt::wait_copies(kPending, site);
}

inline void mma_bf16(
    float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, simt::Site site = {}) {
  simt::multiply_mma(simt::MatrixType::kBF16, d, a, b0, b1, site);
}

inline void mma_f16(
    float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, simt::Site site = {}) {
  simt::multiply_mma(simt::MatrixType::kF16, d, a, b0, b1, site);
}

inline void mma_s8(
    int32_t* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, simt::Site site = {}) {
  simt::multiply_mma(simt::MatrixType::kS8, d, a, b0, b1, site);
}

}  // namespace sluice::gpu::ptx
