// SPDX-License-Identifier: Apache-2.0
// The shim's matrix instructions: operands in shared memory and registers, and errors by name.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/kernels/cuda/schedules.h"
#include "tests/kernels/cuda/simt_reports.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::simt {
namespace {

namespace ptx = gpu::ptx;
using gpu::Swizzle;
using kernels::test::joined;
using kernels::test::on_schedules;

constexpr int kProductK = 32;
constexpr int kProductRows = 64;

template <int kColumns>
struct Transposed {
  alignas(1024) uint8_t b[kProductK * kColumns * 2];
  ptx::Mbarrier full;
};

// Multiplies a [64][k] by b [k][columns], which comes in boxes of one swizzled row of columns.
enum class Misuse : uint8_t { kNone, kChangesRows, kReadsSumsEarly };

template <int kColumns, Misuse kMisuse>
void product_kernel(
    const gpu::TensorMap map, Swizzle swizzle, int32_t box, const uint16_t* a, float* out) {
  GPU_DYN_SHARED(Transposed<kColumns>, memory);
  const auto thread = static_cast<int>(threadIdx.x);
  const uint32_t row_bytes = static_cast<uint32_t>(box) * 2;
  if (thread == 0) {
    ptx::mbar_init(&memory.full, 1);
    ptx::fence_mbar_init();
    ptx::mbar_arrive_expect_tx(&memory.full, sizeof(memory.b));
    for (int32_t first = 0; first < kColumns; first += box) {
      ptx::tma_load_2d(memory.b + first * 2 * kProductK, &map, first, 0, &memory.full);
    }
  }
  __syncthreads();
  ptx::mbar_wait(&memory.full, 0);
  const int row = thread / 32 * 16 + thread % 32 / 4;
  float d[kColumns / 2];
  uint32_t rows[kProductK / 16][4];
  for (int i = 0; i < kProductK / 16 * 4; ++i) {
    const int at = (row + i % 2 * 8) * kProductK + i / 4 * 16 + i % 4 / 2 * 8 + thread % 4 * 2;
    std::memcpy(&rows[i / 4][i % 4], a + at, sizeof(uint32_t));
  }
  ptx::wgmma_fence();
  for (int step = 0; step < kProductK / 16; ++step) {
    const auto start = ptx::shared_address(memory.b) + static_cast<uint32_t>(step) * 16 * row_bytes;
    ptx::wgmma_rows_bf16(
        d,
        rows[step],
        ptx::transposed_descriptor(start, swizzle, 8 * row_bytes, kProductK * row_bytes),
        step > 0);
  }
  ptx::wgmma_commit();
  if (kMisuse == Misuse::kChangesRows) rows[0][1] ^= 1;
  if (kMisuse != Misuse::kReadsSumsEarly) ptx::wgmma_wait<0>();
  for (int i = 0; i < kColumns / 2; ++i) {
    out[(row + i % 4 / 2 * 8) * kColumns + i / 4 * 8 + thread % 4 * 2 + i % 2] = d[i];
  }
  if (kMisuse == Misuse::kReadsSumsEarly) ptx::wgmma_wait<0>();
}

template <int kColumns>
class Products {
 public:
  Products() {
    for (size_t i = 0; i < a_.size(); ++i) a_[i] = number(i * 7);
    for (size_t i = 0; i < b_.size(); ++i) b_[i] = number(i * 13 + 5);
  }

  // Returns the product by plain loops.
  [[nodiscard]] std::vector<float> want() const {
    std::vector<float> out(kProductRows * kColumns);
    for (size_t i = 0; i < out.size(); ++i) {
      for (size_t first = 0; first < kProductK; first += 16) {
        uint16_t y[16];
        for (size_t k = 0; k < 16; ++k) y[k] = b_[(first + k) * kColumns + i % kColumns];
        out[i] = tensor_core_step(Half::kBF16, &a_[i / kColumns * kProductK + first], y, out[i]);
      }
    }
    return out;
  }

  template <Misuse kMisuse = Misuse::kNone>
  [[nodiscard]] std::vector<float> run(Swizzle swizzle, int32_t box) const {
    const gpu::TensorMap map = gpu::make_tensor_map({.data = b_.data(),
                                                     .element_bytes = 2,
                                                     .rank = 2,
                                                     .sizes = {kColumns, kProductK},
                                                     .strides = {0, kColumns * 2},
                                                     .box = {box, kProductK},
                                                     .swizzle = swizzle});
    std::vector<float> out(kProductRows * kColumns);
    gpu::launch(nullptr,
                {.threads = 128, .shared_bytes = sizeof(Transposed<kColumns>)},
                product_kernel<kColumns, kMisuse>,
                map,
                swizzle,
                box,
                static_cast<const uint16_t*>(a_.data()),
                out.data());
    return out;
  }

 private:
  // Returns a number of either sign near 1.
  static uint16_t number(size_t i) {
    return static_cast<uint16_t>((i % 2 << 15) | 0x3F00U | (i * 2654435761U >> 9 & 0xFFU));
  }

  alignas(16) std::array<uint16_t, kProductRows * kProductK> a_;
  alignas(16) std::array<uint16_t, kProductK * kColumns> b_;
};

TEST(SimtProducts, RowsFromRegistersTimesATransposedMatrixOfEverySwizzle) {
  const Products<64> narrow;
  const Products<128> wide;
  on_schedules([&] {
    EXPECT_EQ(narrow.run(Swizzle::k128, 64), narrow.want());
    EXPECT_EQ(narrow.run(Swizzle::k64, 32), narrow.want());
    EXPECT_EQ(narrow.run(Swizzle::k32, 16), narrow.want());
    EXPECT_EQ(wide.run(Swizzle::k128, 64), wide.want());
    EXPECT_EQ(wide.run(Swizzle::k32, 16), wide.want());
  });
}

TEST(SimtProducts, SumsAreNoNumbersBeforeTheWait) {
  on_schedules([] {
    const std::vector<float> early = Products<64>().run<Misuse::kReadsSumsEarly>(Swizzle::k128, 64);
    for (const float sum : early) ASSERT_TRUE(std::isnan(sum));
  });
}

TEST(SimtErrors, RowsThatChangeBeforeTheWaitAreNamed) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    simt::Run run(seed);
    (void)Products<64>().run<Misuse::kChangesRows>(Swizzle::k128, 64);
    expect_report(joined(run.take_reports()), "its rows changed before wgmma_wait");
  }
}

TEST(SimtErrors, AProductByAPartOfAWarpIsNamed) {
  const std::string report = report_of(
      [] {
        if (threadIdx.x >= 16) return;
        int32_t sums[4] = {};
        const uint32_t a[4] = {};
        ptx::mma_s8(sums, a, 0, 0);
      },
      32);
  expect_report(report, "mma_s8 at simt_products_test.cpp:");
  expect_report(report, "left the kernel");
}

TEST(SimtErrors, ATransposedDescriptorInsideOfAnAtomIsNamed) {
  const std::string report = report_of(
      [] {
        float d[32] = {};
        const uint32_t rows[4] = {};
        ptx::wgmma_fence();
        ptx::wgmma_rows_f16(d, rows, ptx::transposed_descriptor(32, Swizzle::k64, 512, 0), false);
      },
      128);
  expect_report(report, "a transposed descriptor that starts at 32");
}

}  // namespace
}  // namespace sluice::simt
