// SPDX-License-Identifier: Apache-2.0
// wgmma: products happen at any time between their issue and the wait that asks for them.
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/simt/async.h"
#include "tests/support/simt/block.h"
#include "tests/support/simt/ptx_simt.h"
#include "tests/support/simt/sched.h"
#include "tests/support/simt/swizzle.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::simt {
namespace {

AsyncState& state() { return current_block().async(); }

struct Descriptor {
  int64_t start;
  int64_t atom_stride;
  int64_t rows_stride;  // if transposed
  Swizzle swizzle;
};

Descriptor parse(uint64_t bits, const Instruction& here) {
  constexpr Swizzle kModes[] = {Swizzle::kNone, Swizzle::k128, Swizzle::k64, Swizzle::k32};
  Descriptor d{.start = static_cast<int64_t>(bits & 0x3FFF) << 4,
               .atom_stride = static_cast<int64_t>(bits >> 32 & 0x3FFF) << 4,
               .rows_stride = static_cast<int64_t>(bits >> 16 & 0x3FFF) << 4,
               .swizzle = kModes[bits >> 62]};
  if (d.swizzle == Swizzle::kNone) fail(here + ": a descriptor without swizzle");
  const int64_t row = row_bytes(d.swizzle);
  if (d.start % row % 32 != 0 || d.start / row % 8 != 0 || d.atom_stride % (8 * row) != 0) {
    fail(here + ": a descriptor that starts at " + std::to_string(d.start) + " with " +
         std::to_string(d.atom_stride) + " bytes from atom to atom of " + std::to_string(8 * row));
  }
  return d;
}

Descriptor parse_transposed(uint64_t bits, int rows, const Instruction& here) {
  const Descriptor d = parse(bits, here);
  const int64_t row = row_bytes(d.swizzle);
  if (d.start % (8 * row) != 0 || (2 * rows > row && d.rows_stride % (8 * row) != 0)) {
    fail(here + ": a transposed descriptor that starts at " + std::to_string(d.start) + " with " +
         std::to_string(d.rows_stride) + " bytes to the next rows");
  }
  return d;
}

void read_piece(int64_t logical, Swizzle swizzle, int unit, std::byte* out) {
  Block& block = current_block();
  const std::byte* const p = block.arena() + swizzled(logical, swizzle);
  block.shared_offset(p, 16, {"wgmma"});
  if (block.race() != nullptr) {
    block.race()->read(unit, RaceDetector::Proxy::kAsync, p, 16, nullptr);
  }
  std::memcpy(out, p, 16);
}

using Row = std::array<std::byte, 32>;  // 32 bytes of K

std::vector<Row> read_rows(const Descriptor& d, int first, int count, int unit) {
  std::vector<Row> rows(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int row = first + i;
    for (int piece = 0; piece < 2; ++piece) {
      const int64_t in_row = row % 8 * row_bytes(d.swizzle) + piece * 16;
      std::byte* const to = rows[static_cast<size_t>(i)].data() + piece * 16;
      read_piece(d.start + row / 8 * d.atom_stride + in_row, d.swizzle, unit, to);
    }
  }
  return rows;
}

// Reads a matrix in which a piece is 8 rows of one k.
std::vector<Row> read_transposed(const Descriptor& d, int count, int unit) {
  std::vector<Row> rows(static_cast<size_t>(count));
  const int64_t atom_rows = row_bytes(d.swizzle) / 2;
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < count; row += 8) {
      const int64_t in_atom = k % 8 * row_bytes(d.swizzle) + row % atom_rows * 2;
      std::byte piece[16];
      read_piece(d.start + k / 8 * d.atom_stride + row / atom_rows * d.rows_stride + in_atom,
                 d.swizzle,
                 unit,
                 piece);
      for (int i = 0; i < 8; ++i) {
        std::memcpy(rows[static_cast<size_t>(row + i)].data() + 2 * k, piece + 2 * i, 2);
      }
    }
  }
  return rows;
}

// Returns a warp's 16 rows from its registers, in mma.sync's layout.
std::vector<Row> rows_of(const std::vector<uint32_t>& words) {
  std::vector<Row> rows(16);
  for (int lane = 0; lane < 32; ++lane) {
    for (int word = 0; word < 4; ++word) {
      Row& row = rows[static_cast<size_t>(lane / 4 + word % 2 * 8)];
      const size_t from = static_cast<size_t>(4 * lane + word);
      std::memcpy(row.data() + word / 2 * 16 + lane % 4 * 4, &words[from], sizeof(uint32_t));
    }
  }
  return rows;
}

uint32_t multiply(MatrixType type, const Row& a, const Row& b, uint32_t c) {
  if (type == MatrixType::kE4M3) {
    uint8_t x[32];
    uint8_t y[32];
    std::memcpy(x, a.data(), sizeof(x));
    std::memcpy(y, b.data(), sizeof(y));
    return bits_cast<uint32_t>(
        wgmma_float8_step(Float8::kE4M3, x, Float8::kE4M3, y, bits_cast<float>(c)));
  }
  if (type != MatrixType::kS8) {
    uint16_t x[16];
    uint16_t y[16];
    std::memcpy(x, a.data(), sizeof(x));
    std::memcpy(y, b.data(), sizeof(y));
    const Half half = type == MatrixType::kBF16 ? Half::kBF16 : Half::kF16;
    return bits_cast<uint32_t>(tensor_core_step(half, x, y, bits_cast<float>(c)));
  }
  for (int i = 0; i < 32; ++i) {
    const auto at = static_cast<size_t>(i);
    c += static_cast<uint32_t>(static_cast<int8_t>(a[at]) * static_cast<int8_t>(b[at]));
  }
  return c;
}

// Runs the warp's oldest product: its 16 of the warpgroup's 64 rows.
void run_front(int warp) {
  WarpUnit& unit = state().units[static_cast<size_t>(warp)];
  if (unit.queue.empty()) return;
  const Product product = std::move(unit.queue.front());
  unit.queue.pop_front();
  Block& block = current_block();
  RaceDetector* const race = block.race();
  const int agent = race == nullptr ? 0 : race->warp_unit(block.rank(), warp);
  if (race != nullptr) race->begin(agent, product.clock);
  const Instruction here{"wgmma", product.site};
  const int n = product.columns;
  std::vector<Row> rows;
  std::vector<Row> columns;
  if (product.rows.empty()) {
    rows = read_rows(parse(product.a, here), warp % 4 * 16, 16, agent);
    columns = read_rows(parse(product.b, here), 0, n, agent);
  } else {
    rows = rows_of(product.rows);
    columns = read_transposed(parse_transposed(product.b, n, here), n, agent);
  }
  Accumulators& d = unit.accumulators[product.accumulators];
  for (int column = 0; column < n; ++column) {
    const Row& other = columns[static_cast<size_t>(column)];
    for (int row = 0; row < 16; ++row) {
      const int lane = row % 8 * 4 + column % 8 / 2;
      const int word = column / 8 * 4 + row / 8 * 2 + column % 2;
      uint32_t& value = d.words[static_cast<size_t>(lane * n / 2 + word)];
      value = multiply(
          product.type, rows[static_cast<size_t>(row)], other, product.accumulate ? value : 0);
    }
  }
  --d.pending;
  if (race != nullptr) unit.time[product.group] = race->now(agent);
}

// Every lane has the warp's operand; only the accumulators differ by lane.
void complete_issue(void* const operands[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFU) fail("wgmma by a part of a warp");
  Block& block = current_block();
  const int warp = block.self().index / 32;
  WarpUnit& unit = state().units[static_cast<size_t>(warp)];
  const auto& first = *static_cast<MatrixOperand*>(operands[0]);
  const int words = first.columns / 2;
  Product product{.type = first.type,
                  .columns = first.columns,
                  .a = first.a,
                  .b = first.b,
                  .accumulate = first.accumulate,
                  .accumulators = first.accumulators,
                  .group = unit.open_group,
                  .site = state().issue_site,
                  .clock = {}};
  Accumulators& shadow = unit.accumulators[product.accumulators];
  const bool fresh = shadow.words.empty();
  if (fresh) shadow.words.resize(static_cast<size_t>(32 * words));
  if (block.race() != nullptr) product.clock = block.race()->empty_clock();
  HeldRows held{.words = {}, .registers = {}, .group = unit.open_group, .site = product.site};
  for (int lane = 0; lane < 32; ++lane) {
    const auto& operand = *static_cast<MatrixOperand*>(operands[lane]);
    if (operand.a != first.a || operand.b != first.b || operand.accumulate != first.accumulate) {
      fail("wgmma with operands that differ between the lanes of a warp");
    }
    if (operand.rows != nullptr) {
      held.registers[lane] = operand.rows;
      held.words.insert(held.words.end(), operand.rows, operand.rows + 4);
    }
    // The registers belong to the unit until the wait.
    if (fresh) {
      uint32_t* const kept = &shadow.words[static_cast<size_t>(lane * words)];
      std::memcpy(kept, operand.accumulators, static_cast<size_t>(words) * 4);
      std::memset(operand.accumulators, 0xFF, static_cast<size_t>(words) * 4);
      shadow.registers[lane] = operand.accumulators;
    }
    if (block.race() == nullptr) continue;
    block.race()->add_to(product.clock, block.race()->thread(block.rank(), warp * 32 + lane));
  }
  ++unit.issued;
  ++shadow.pending;
  shadow.group = product.group;
  product.rows = held.words;
  if (!held.words.empty()) unit.held.push_back(std::move(held));
  unit.queue.push_back(std::move(product));
  block.start_async([warp] { run_front(warp); });
}

// Releases the registers that products of groups up to `last` read.
void release_rows(WarpUnit& unit, int64_t last) {
  std::erase_if(unit.held, [last](const HeldRows& held) {
    if (held.group > last) return false;
    for (size_t lane = 0; lane < 32; ++lane) {
      if (std::memcmp(held.registers[lane], &held.words[4 * lane], 16) == 0) continue;
      fail("wgmma at " + describe(held.site) + ": its rows changed before wgmma_wait");
    }
    return true;
  });
}

void complete_wait(void* const operands[32], uint32_t mask) {
  if (mask != 0xFFFFFFFFU) fail("wgmma_wait by a part of a warp");
  Block& block = current_block();
  const int warp = block.self().index / 32;
  WarpUnit& unit = state().units[static_cast<size_t>(warp)];
  const int pending = *static_cast<int*>(operands[0]);
  const int64_t last = unit.open_group - 1 - pending;  // group to wait for
  while (!unit.queue.empty() && unit.queue.front().group <= last) run_front(warp);
  release_rows(unit, last);
  for (auto it = unit.accumulators.begin(); it != unit.accumulators.end();) {
    Accumulators& done = it->second;
    if (done.pending != 0 || done.group > last) {
      ++it;
      continue;
    }
    const size_t words = done.words.size() / 32;
    for (size_t lane = 0; lane < 32; ++lane) {
      std::memcpy(done.registers[lane], &done.words[lane * words], words * 4);
    }
    it = unit.accumulators.erase(it);
  }
  RaceDetector* const race = block.race();
  for (int lane = 0; lane < 32; ++lane) {
    state().ordered[static_cast<size_t>(warp * 32 + lane)] = false;
    if (race == nullptr) continue;
    for (const auto& [group, time] : unit.time) {
      if (group > last) continue;
      race->learn(
          race->thread(block.rank(), warp * 32 + lane), race->warp_unit(block.rank(), warp), time);
    }
  }
}

}  // namespace

void issue_matrix(MatrixOperand operand, Site site) {
  AsyncState& async = state();
  check_hopper("wgmma", site);
  if (!async.ordered[static_cast<size_t>(current_block().self().index)]) {
    fail("wgmma at " + describe(site) + " without wgmma_fence since the last wait");
  }
  const Instruction here{"wgmma", site};
  if (operand.rows == nullptr) {
    parse(operand.a, here);
    parse(operand.b, here);
  } else {
    parse_transposed(operand.b, operand.columns, here);
  }
  async.issue_site = site;
  warp_collective(0xFFFFFFFFU, "wgmma", &operand, complete_issue, false, site);
}

void wait_matrix(int pending, Site site) {
  warp_collective(0xFFFFFFFFU, "wgmma_wait", &pending, complete_wait, false, site);
}

}  // namespace sluice::simt

namespace sluice::gpu::ptx {

using simt::current_block;

void wgmma_fence(simt::Site site) {
  char operand = 0;
  simt::warp_collective(0xFFFFFFFFU, "wgmma_fence", &operand, simt::complete_nothing, false, site);
  current_block().async().ordered[static_cast<size_t>(current_block().self().index)] = true;
}

void wgmma_commit(simt::Site site) {
  char operand = 0;
  simt::warp_collective(
      0xFFFFFFFFU,
      "wgmma_commit",
      &operand,
      [](void* const*, uint32_t) {
        simt::Block& block = current_block();
        ++block.async().units[static_cast<size_t>(block.self().index / 32)].open_group;
      },
      false,
      site);
}

}  // namespace sluice::gpu::ptx
