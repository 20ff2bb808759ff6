// SPDX-License-Identifier: Apache-2.0
// mbarriers, the copy engine and wgmma: everything that happens asynchronously. Copies and products
// happen at any time between their issue and the wait that asks for them.
#include "tests/support/simt/async.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tests/support/simt/block.h"
#include "tests/support/simt/overlap.h"
#include "tests/support/simt/ptx_simt.h"
#include "tests/support/simt/reach.h"
#include "tests/support/simt/sched.h"
#include "tests/support/simt/tensorcore.h"

namespace sluice::simt {
namespace {

using gpu::Swizzle;
using gpu::TensorMap;
using gpu::TensorMapShape;

constexpr uint64_t kMbarrierMark =
    0x51A0CE00'00000000U;  // plus its number: the contents of its 64 bits

constexpr uint32_t kPeerMark = 0x80000000U;  // marks peer_address; below: rank and offset

// Returns where the 16-byte piece at `address` of a tile really is.
int64_t swizzled(int64_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32:
      return address ^ (address >> 3 & 0x10);
    case Swizzle::k64:
      return address ^ (address >> 3 & 0x30);
    case Swizzle::k128:
      return address ^ (address >> 3 & 0x70);
  }
  return address;
}

int64_t row_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32:
      return 32;
    case Swizzle::k64:
      return 64;
    case Swizzle::k128:
      return 128;
  }
  return 0;
}

AsyncState& state() { return current_block().async(); }

// Returns the number of an mbarrier in `home`'s shared memory that the running thread uses.
int index_of(Block& home, uint64_t* barrier, const char* who, Site site) {
  const std::string here = std::string(who) + " at " + describe(site);
  home.shared_offset(barrier, sizeof(*barrier), here.c_str());
  RaceDetector* const race = home.race();
  if (race != nullptr) {
    const int self = current_block().self().agent;
    race->read(self, RaceDetector::Proxy::kGeneric, barrier, sizeof(*barrier), nullptr);
  }
  const uint64_t index = *barrier - kMbarrierMark;
  if (index >= home.async().barriers.size()) fail(here + ": an mbarrier that is not initialized");
  return static_cast<int>(index);
}

void complete_phase_if_due(Block& home, MbarrierState& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  const uint32_t parity = barrier.phase % 2;
  barrier.done_clock[parity] = std::exchange(barrier.clock, {});
  barrier.done_peers_clock[parity] = std::exchange(barrier.peers_clock, {});
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
  for (const int thread : std::exchange(barrier.waiting, {})) home.wake(thread);
}

// Checks an access of the running thread, or of its copy, to another block's shared memory.
void check_not_ended(const Block& home, const std::string& here) {
  if (!home.has_ended()) return;
  fail(here + ": shared memory of block " + std::to_string(home.rank()) +
       " of the cluster, which has ended");
}

void arrive(Block& home, uint64_t* p, int64_t bytes, const char* who, Site site) {
  const std::string here = std::string(who) + " at " + describe(site);
  check_not_ended(home, here);
  const auto index = static_cast<size_t>(index_of(home, p, who, site));
  MbarrierState& barrier = home.async().barriers[index];
  if (barrier.pending == 0) {
    fail(here + ": more arrivals than the " + std::to_string(barrier.arrivals) + " of the phase");
  }
  barrier.bytes += bytes;
  --barrier.pending;
  if (RaceDetector* const race = home.race(); race != nullptr) {
    const int self = current_block().self().agent;
    const bool is_own = &home == &current_block();
    if (!is_own) home.async().peers[self] = race->now(self);
    race->release(self, is_own ? barrier.clock : barrier.peers_clock);
  }
  complete_phase_if_due(home, barrier);
}

const MbarrierState& wait_phase(uint64_t* p, int parity, const char* who, Site site) {
  Block& self = current_block();
  const auto index = static_cast<size_t>(index_of(self, p, who, site));
  std::vector<MbarrierState>& barriers = self.async().barriers;
  // The vector may grow meanwhile, so no reference is kept.
  while (static_cast<int>(barriers[index].phase % 2) == parity) {
    barriers[index].waiting.push_back(self.self().index);
    self.wait(who, site);
  }
  RaceDetector* const race = self.race();
  if (race != nullptr) race->acquire(self.self().agent, barriers[index].done_clock[parity]);
  return barriers[index];
}

TensorMapShape shape_of(const TensorMap& map) {
  TensorMapShape shape;
  std::memcpy(static_cast<void*>(&shape), &map, sizeof(shape));
  return shape;
}

// Copies the box, row by row of its innermost dimension. `early`: issued before wait_for_launches.
void copy(std::byte* to, const TensorMapShape& shape, const int32_t (&at)[4], bool early) {
  int64_t box[4];
  for (int i = 0; i < 4; ++i) box[i] = i < shape.rank ? shape.box[i] : 1;
  const int64_t inner = box[0] * shape.element_bytes;
  auto* const arena = current_block().arena();
  const int64_t base = to - arena;
  for (int64_t row = 0; row < box[1] * box[2] * box[3]; ++row) {
    const int64_t index[4] = {at[0],
                              at[1] + row % box[1],
                              at[2] + row / box[1] % box[2],
                              at[3] + row / (box[1] * box[2])};
    bool inside = true;
    const auto* from = static_cast<const std::byte*>(shape.data);
    for (int i = 1; i < shape.rank; ++i) {
      inside = inside && index[i] >= 0 && index[i] < shape.sizes[i];
      from += index[i] * shape.strides[i];
    }
    for (int64_t i = 0; i < box[0]; ++i) {
      const int64_t column = index[0] + i;
      const int64_t offset = swizzled(base + row * inner + i * shape.element_bytes, shape.swizzle);
      if (inside && column >= 0 && column < shape.sizes[0]) {
        const std::byte* const element = from + column * shape.element_bytes;
        check_reach(element, shape.element_bytes, "a tensor copy", nullptr);
        if (early) check_early_read(element, shape.element_bytes, nullptr);
        std::memcpy(arena + offset, element, static_cast<size_t>(shape.element_bytes));
      } else {
        std::memset(arena + offset, 0, static_cast<size_t>(shape.element_bytes));
      }
    }
  }
}

struct Descriptor {
  int64_t start;
  int64_t atom_stride;
  int64_t rows_stride;  // if transposed
  Swizzle swizzle;
};

Descriptor parse(uint64_t bits, const std::string& here) {
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

Descriptor parse_transposed(uint64_t bits, int rows, const std::string& here) {
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
  block.shared_offset(p, 16, "wgmma");
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
  const std::string here = "wgmma at " + describe(product.site);
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

void check_hopper(const char* who, Site site) {
  const int capability = gpu::compute_capability();
  if (capability == 90) return;
  fail(std::string(who) + " at " + describe(site) + ": not on a device of " +
       std::to_string(capability));
}

struct BoxCopy {
  TensorMapShape shape;
  int32_t at[4];
  int64_t bytes;
  int64_t offset;  // target's offset in shared memory
  bool early;      // issued before wait_for_launches
  std::string here;
};

// Starts a copy by the running thread to `home`, whose mbarrier has number `index`.
void start_copy(Block& home, int index, const BoxCopy& box) {
  const bool is_own = &home == &current_block();
  Clock clock;
  RaceDetector* const race = home.race();
  if (race != nullptr) {
    clock = race->empty_clock();
    race->add_to(clock, current_block().self().agent);
  }
  home.start_async([=, &home] {
    if (!is_own) check_not_ended(home, box.here);
    std::byte* const target = home.arena() + box.offset;
    MbarrierState& counter = home.async().barriers[static_cast<size_t>(index)];
    if (race != nullptr) {
      const int agent = race->mbarrier_unit(home.rank(), index);
      race->begin(agent, clock);
      race->write(agent, RaceDetector::Proxy::kAsync, target, box.bytes, nullptr);
      race->release(agent, counter.clock);
    }
    copy(target, box.shape, box.at, box.early);
    counter.bytes -= box.bytes;
    complete_phase_if_due(home, counter);
  });
}

}  // namespace

AsyncState::AsyncState(int num_threads)
    : units(static_cast<size_t>((num_threads + 31) / 32)),
      copies(static_cast<size_t>(num_threads)),
      ordered(static_cast<size_t>(num_threads)) {}

void AsyncState::check_end() const {
  for (size_t warp = 0; warp < units.size(); ++warp) {
    if (units[warp].accumulators.empty()) continue;
    add_report("wgmma of warp " + std::to_string(warp) + ": the kernel ended before wgmma_wait");
    break;
  }
  for (size_t warp = 0; warp < units.size(); ++warp) {
    const size_t first = warp / 4 * 4;
    if (units[warp].issued == units[first].issued && first + 4 <= units.size()) continue;
    if (units[warp].issued == 0 && units[first].issued == 0) continue;
    add_report("wgmma by a part of the warpgroup of warp " + std::to_string(warp));
    break;
  }
  for (size_t thread = 0; thread < copies.size(); ++thread) {
    if (copies[thread].latest <= copies[thread].waited) continue;
    add_report("cp.async of thread " + std::to_string(thread) +
               ": the kernel ended before cp_async_wait");
    break;
  }
  RaceDetector* const race = current_block().race();
  if (race == nullptr) return;
  const int rank = current_block().rank();
  for (size_t i = 0; i < barriers.size(); ++i) {
    if (race->anyone_saw_all_of(race->mbarrier_unit(rank, static_cast<int>(i)))) continue;
    add_report("mbarrier " + std::to_string(i) +
               ": the kernel ended and nobody had waited for a copy");
    break;
  }
  for (const auto& [agent, time] : peers) {
    if (race->block_saw(rank, agent, time)) continue;
    add_report("race: block " + std::to_string(rank) + " of the cluster may have ended before " +
               race->name(agent) + " arrives there");
    break;
  }
}

void issue_matrix(MatrixOperand operand, Site site) {
  AsyncState& async = state();
  check_hopper("wgmma", site);
  if (!async.ordered[static_cast<size_t>(current_block().self().index)]) {
    fail("wgmma at " + describe(site) + " without wgmma_fence since the last wait");
  }
  const std::string here = "wgmma at " + describe(site);
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

void copy_box(
    void* to, const TensorMap& map, const int32_t (&at)[4], uint64_t* barrier, Site site) {
  copy_box_to(1U << current_block().rank(), to, map, at, barrier, site);
}

void copy_box_to(uint32_t ranks,
                 void* to,
                 const TensorMap& map,
                 const int32_t (&at)[4],
                 uint64_t* barrier,
                 Site site) {
  check_hopper("tma_load", site);
  BoxCopy box{.shape = shape_of(map),
              .at = {at[0], at[1], at[2], at[3]},
              .bytes = 0,
              .offset = 0,
              .early = !current_block().self().waited_for_launches,
              .here = "tma_load at " + describe(site)};
  box.bytes = box.shape.element_bytes;
  for (int i = 0; i < box.shape.rank; ++i) box.bytes *= box.shape.box[i];
  Block& self = current_block();
  box.offset = self.shared_offset(to, box.bytes, box.here.c_str());
  const Swizzle swizzle = box.shape.swizzle;
  const int64_t aligned = swizzle == Swizzle::kNone ? 128 : 8 * row_bytes(swizzle);
  if (box.offset % std::max<int64_t>(aligned, 128) != 0) {
    fail(box.here + ": a target that is not aligned");
  }
  Cluster& cluster = self.cluster();
  if (ranks == 0 || ranks >> cluster.size() != 0) {
    fail(box.here + ": to the blocks of mask " + std::to_string(ranks) + " of a cluster of " +
         std::to_string(cluster.size()));
  }
  const int64_t offset = self.shared_offset(barrier, sizeof(*barrier), box.here.c_str());
  for (int rank = 0; rank < cluster.size(); ++rank) {
    if ((ranks >> rank & 1U) == 0) continue;
    Block& home = cluster.block(rank);
    auto* const counter = reinterpret_cast<uint64_t*>(home.arena() + offset);
    const int index = index_of(home, counter, "tma_load", site);
    if (!home.async().barriers[static_cast<size_t>(index)].published) {
      fail(box.here + ": an mbarrier whose init no fence_mbar_init follows");
    }
    start_copy(home, index, box);
  }
}

}  // namespace sluice::simt

namespace sluice::gpu {

TensorMap make_tensor_map(const TensorMapShape& shape) {
  const int64_t inner = int64_t{shape.box[0]} * shape.element_bytes;
  bool good = reinterpret_cast<uintptr_t>(shape.data) % 16 == 0 && shape.rank >= 2 &&
              shape.rank <= 4 && inner % 16 == 0;
  // Rows of a narrower box would not lie side by side on a GPU.
  if (shape.swizzle != Swizzle::kNone) good = good && inner == simt::row_bytes(shape.swizzle);
  for (int i = 0; i < shape.rank; ++i) {
    good = good && shape.sizes[i] > 0 && shape.box[i] > 0 && shape.box[i] <= 256;
    if (i > 0) good = good && shape.strides[i] % 16 == 0;
  }
  if (!good) simt::add_report("make_tensor_map: a shape that the copy engine refuses");
  TensorMap map{};
  static_assert(sizeof(shape) <= sizeof(map));
  std::memcpy(&map, &shape, sizeof(shape));
  return map;
}

namespace ptx {

using simt::current_block;

uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(current_block().shared_offset(p, 1, "shared_address"));
}

void mbar_init(uint64_t* barrier, int arrivals, simt::Site site) {
  const std::string here = "mbar_init at " + simt::describe(site);
  simt::Block& block = current_block();
  const int64_t offset = block.shared_offset(barrier, sizeof(*barrier), here.c_str());
  std::vector<simt::MbarrierState>& all = block.async().barriers;
  if (offset % 8 != 0 || arrivals < 1) simt::fail(here + ": not aligned, or no arrivals");
  if (*barrier - simt::kMbarrierMark < all.size()) simt::fail(here + ": initialized before");
  if (all.size() == simt::RaceDetector::kMaxMbarriers) simt::fail(here + ": too many mbarriers");
  simt::RaceDetector* const race = block.race();
  if (race != nullptr) {
    race->write(block.self().agent,
                simt::RaceDetector::Proxy::kGeneric,
                barrier,
                sizeof(*barrier),
                nullptr);
  }
  *barrier = simt::kMbarrierMark + all.size();
  simt::MbarrierState& state = all.emplace_back();
  state.arrivals = arrivals;
  state.owner = block.self().index;
  state.pending = arrivals;
}

void fence_mbar_init() {
  const int self = current_block().self().index;
  for (simt::MbarrierState& barrier : current_block().async().barriers) {
    barrier.published = barrier.published || barrier.owner == self;
  }
}

void fence_proxy_async() {
  fence_mbar_init();
  simt::RaceDetector* const race = current_block().race();
  if (race != nullptr) race->proxy_fence(current_block().self().agent);
}

void fence_device() {
  simt::RaceDetector* const race = current_block().race();
  if (race != nullptr) race->device_fence(current_block().self().agent);
}

void mbar_arrive(uint64_t* barrier, simt::Site site) {
  simt::arrive(current_block(), barrier, 0, "mbar_arrive", site);
}

void mbar_arrive_expect_tx(uint64_t* barrier, uint32_t bytes, simt::Site site) {
  simt::arrive(current_block(), barrier, bytes, "mbar_arrive_expect_tx", site);
}

void mbar_arrive_peer(uint32_t address, simt::Site site) {
  simt::Block& self = current_block();
  const bool is_peer = (address & simt::kPeerMark) != 0;
  const auto rank = static_cast<int>((address & ~simt::kPeerMark) / simt::kArenaBytes);
  simt::Block& home = is_peer ? self.cluster().block(rank) : self;
  std::byte* const barrier = home.arena() + address % simt::kArenaBytes;
  simt::arrive(home, reinterpret_cast<uint64_t*>(barrier), 0, "mbar_arrive_peer", site);
}

uint32_t peer_address(const void* p, int rank, simt::Site site) {
  const std::string here = "peer_address at " + simt::describe(site);
  simt::Block& self = current_block();
  const int64_t offset = self.shared_offset(p, 1, here.c_str());
  if (rank < 0 || rank >= self.cluster().size()) {
    simt::fail(here + ": block " + std::to_string(rank) + " of a cluster of " +
               std::to_string(self.cluster().size()));
  }
  return simt::kPeerMark | static_cast<uint32_t>(rank * simt::kArenaBytes + offset);
}

int cluster_rank() { return current_block().rank(); }

void cluster_arrive(simt::Site site) { current_block().cluster().arrive(site); }

void cluster_wait(simt::Site site) { current_block().cluster().wait_for_all(site); }

void mbar_wait(uint64_t* barrier, int parity, simt::Site site) {
  simt::wait_phase(barrier, parity, "mbar_wait", site);
}

void mbar_wait_cluster(uint64_t* barrier, int parity, simt::Site site) {
  const simt::MbarrierState& state = simt::wait_phase(barrier, parity, "mbar_wait_cluster", site);
  simt::RaceDetector* const race = current_block().race();
  if (race == nullptr) return;
  race->acquire(current_block().self().agent, state.done_peers_clock[parity]);
}

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

}  // namespace ptx
}  // namespace sluice::gpu
