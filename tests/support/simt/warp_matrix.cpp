// SPDX-License-Identifier: Apache-2.0
// Matrix instructions of a warp: cp.async, ldmatrix and mma.sync. A thread's copies happen in order
// at any time between their issue and the wait that asks for them.
#include <algorithm>
#include <cstring>

#include "kernels/cuda/narrow.h"
#include "tests/support/simt/async.h"
#include "tests/support/simt/block.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/ptx_simt.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::simt {
namespace {

constexpr int kPiece = 16;  // bytes of a piece

ThreadCopies& copies_of(int thread) {
  return current_block().async().copies[static_cast<size_t>(thread)];
}

void run_front(int thread) {
  ThreadCopies& copies = copies_of(thread);
  if (copies.queue.empty()) return;
  const ThreadCopy copy = copies.queue.front();
  copies.queue.pop_front();
  std::memset(copy.to, 0, kPiece);
  std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
}

struct RowOperand {
  const std::byte* row;
  uint32_t* r;  // [4]
};

void complete_ldmatrix(void* const operands[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFU) fail("ldmatrix by a part of a warp");
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto& source = *static_cast<RowOperand*>(operands[8 * matrix + lane / 4]);
      std::memcpy(static_cast<RowOperand*>(operands[lane])->r + matrix,
                  source.row + 4 * (lane % 4),
                  sizeof(uint32_t));
    }
  }
}

void complete_ldmatrix_trans(void* const operands[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFU) fail("ldmatrix by a part of a warp");
  for (int lane = 0; lane < 32; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t halves[2];
      for (int half = 0; half < 2; ++half) {
        const auto& source =
            *static_cast<RowOperand*>(operands[8 * matrix + 2 * (lane % 4) + half]);
        std::memcpy(&halves[half], source.row + 2 * (lane / 4), sizeof(uint16_t));
      }
      static_cast<RowOperand*>(operands[lane])->r[matrix] = halves[0] | uint32_t{halves[1]} << 16;
    }
  }
}

uint32_t multiplied(MatrixType type, const std::byte* a, const std::byte* b, uint32_t c) {
  if (type != MatrixType::kS8) {
    uint16_t x[16];
    uint16_t y[16];
    std::memcpy(x, a, sizeof(x));
    std::memcpy(y, b, sizeof(y));
    const bool ampere = gpu::compute_capability() / 10 == 8;
    const TensorCore core = ampere ? kAmpereCore : kHopperCore;
    const Half half = type == MatrixType::kBF16 ? Half::kBF16 : Half::kF16;
    return bits_cast<uint32_t>(tensor_core_step(half, x, y, bits_cast<float>(c), core));
  }
  for (int i = 0; i < 32; ++i) {
    c += static_cast<uint32_t>(static_cast<int8_t>(a[i]) * static_cast<int8_t>(b[i]));
  }
  return c;
}

void complete_mma(void* const operands[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFU) fail("mma by a part of a warp");
  std::byte a[16][32];
  std::byte b[8][32];
  const MatrixType type = static_cast<MmaOperand*>(operands[0])->type;
  for (int lane = 0; lane < 32; ++lane) {
    const auto& operand = *static_cast<MmaOperand*>(operands[lane]);
    for (int word = 0; word < 4; ++word) {
      const int row = lane / 4 + word % 2 * 8;
      std::memcpy(&a[row][word / 2 * kPiece + lane % 4 * 4], &operand.a[word], 4);
    }
    for (int word = 0; word < 2; ++word) {
      std::memcpy(&b[lane / 4][word * kPiece + lane % 4 * 4], &operand.b[word], 4);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    uint32_t* const d = static_cast<MmaOperand*>(operands[lane])->d;
    for (int word = 0; word < 4; ++word) {
      d[word] = multiplied(type, a[lane / 4 + word / 2 * 8], b[lane % 4 * 2 + word % 2], d[word]);
    }
  }
}

}  // namespace

void multiply_now(MmaOperand operand, Site site) {
  const char* const names[] = {"mma_bf16", "mma_f16", "mma_s8"};
  const char* const name = names[static_cast<size_t>(operand.type)];
  warp_collective(0xFFFFFFFFU, name, &operand, complete_mma, false, site);
}

void wait_copies(int pending, Site) {
  Block& block = current_block();
  const int self = block.self().index;
  ThreadCopies& copies = copies_of(self);
  const int64_t last = copies.open_group - 1 - pending;  // group to wait for
  while (!copies.queue.empty() && copies.queue.front().group <= last) run_front(self);
  copies.waited = std::max(copies.waited, last);
  if (block.race() == nullptr) return;
  const int unit = block.race()->copy_unit(block.rank(), self);
  while (!copies.time.empty() && copies.time.begin()->first <= last) {
    block.race()->learn(block.self().agent, unit, copies.time.begin()->second);
    copies.time.erase(copies.time.begin());
  }
}

}  // namespace sluice::simt

namespace sluice::gpu::ptx {

using simt::current_block;

void cp_async_16(void* to, const void* from, int bytes, simt::Site site) {
  const simt::Instruction here{"cp_async_16", site};
  simt::Block& block = current_block();
  const int64_t offset = block.shared_offset(to, simt::kPiece, here);
  if (offset % simt::kPiece != 0 || reinterpret_cast<uintptr_t>(from) % simt::kPiece != 0) {
    simt::fail(here + ": not aligned");
  }
  if (bytes < 0 || bytes > simt::kPiece) simt::fail(here + ": more bytes than it copies");
  if (bytes > 0) {
    simt::check_reach(from, bytes, here, nullptr);
    simt::check_overlap(from, bytes, false, nullptr);
  }
  const int self = block.self().index;
  simt::ThreadCopies& copies = simt::copies_of(self);
  copies.latest = copies.open_group;
  copies.queue.push_back(
      {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, copies.open_group});
  block.start_async([self] { simt::run_front(self); });
  simt::RaceDetector* const race = block.race();
  if (race == nullptr) return;
  // For the race detector it is written now, and unknown to all agents until the wait.
  const int unit = race->copy_unit(block.rank(), self);
  race->begin_like(unit, block.self().agent);
  race->write(unit, simt::RaceDetector::Proxy::kGeneric, to, simt::kPiece, nullptr);
  copies.time[copies.open_group] = race->now(unit);
}

void cp_async_commit() { ++simt::copies_of(current_block().self().index).open_group; }

namespace {

void load_matrices(uint32_t (&r)[4],
                   const void* row,
                   const char* name,
                   simt::Complete complete,
                   simt::Site site) {
  const simt::Instruction here{name, site};
  simt::Block& block = current_block();
  const int64_t offset = block.shared_offset(row, simt::kPiece, here);
  if (offset % simt::kPiece != 0) simt::fail(here + ": a row that is not aligned");
  simt::RaceDetector* const race = block.race();
  if (race != nullptr) {
    race->read(block.self().agent, simt::RaceDetector::Proxy::kGeneric, row, simt::kPiece, nullptr);
  }
  simt::RowOperand operand{static_cast<const std::byte*>(row), r};
  simt::warp_collective(0xFFFFFFFFU, name, &operand, complete, false, site);
}

constexpr uint16_t kNan16 = 0x7FFF;  // from a GPU's conversions and arithmetic of 16 bits

// double holds any product of two bfloat16.
double value_of(uint32_t bf16) { return double{simt::bits_cast<float>(bf16 << 16)}; }

}  // namespace

void ldmatrix_x4(uint32_t (&r)[4], const void* row, simt::Site site) {
  load_matrices(r, row, "ldmatrix_x4", simt::complete_ldmatrix, site);
}

void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, simt::Site site) {
  load_matrices(r, row, "ldmatrix_x4_trans", simt::complete_ldmatrix_trans, site);
}

uint32_t pack_bf16(float low, float high) {
  const auto narrow = [](float x) { return x == x ? kernels::cuda::to_bf16(x) : kNan16; };
  return narrow(low) | uint32_t{narrow(high)} << 16;
}

uint32_t pack_f16(float low, float high) {
  const auto narrow = [](float x) { return x == x ? kernels::cuda::to_half(x) : kNan16; };
  return narrow(low) | uint32_t{narrow(high)} << 16;
}

uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c, simt::Site site) {
  uint32_t pair = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const double exact = value_of(a >> shift & 0xFFFFU) * value_of(b >> shift & 0xFFFFU) +
                         value_of(c >> shift & 0xFFFFU);
    const bool is_nan = exact != exact;
    const uint32_t code = is_nan ? kNan16 : kernels::cuda::to_bf16(static_cast<float>(exact));
    if (!is_nan && value_of(code) != exact) {
      simt::fail("fma_bf16x2 at " + simt::describe(site) + ": a result that is not exact");
    }
    pair |= code << shift;
  }
  return pair;
}

}  // namespace sluice::gpu::ptx
